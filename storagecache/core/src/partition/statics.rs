//! Static: every partition keeps the size it was given; a miss evicts from its own partition.
//! Cost: O(1).   Invariants: a partition grows only below its target.
//! Source: Forney et al., FAST 2002, section 5.2.   Deviates: shares may be given; else they follow
//! the a priori service time of each backend, else they are equal.

use super::{apportion, equal_targets, Scheme, Sizes, Take};

#[derive(Debug, Default)]
pub struct Static;

/// What `Static` and `Eager` have in common: above its target a partition takes from itself.
pub(super) fn own_or_free(sizes: &Sizes, into: usize, free: bool, tried: &[bool]) -> Take {
    if sizes.pages[into] >= sizes.targets[into] && sizes.pages[into] > 0 {
        return if tried[into] {
            Take::Nothing
        } else {
            Take::From(into)
        };
    }
    if free {
        return Take::Free;
    }
    // Somebody is above its target because its pages could not go when it was trimmed.
    let over = |index: &usize| sizes.pages[*index] as i64 - sizes.targets[*index] as i64;
    (0..sizes.pages.len())
        .filter(|index| !tried[*index] && sizes.pages[*index] > 0)
        .max_by_key(|index| (over(index), std::cmp::Reverse(*index)))
        .map_or(Take::Nothing, Take::From)
}

impl Scheme for Static {
    fn take(&mut self, sizes: &Sizes, into: usize, free: bool, tried: &[bool]) -> Take {
        own_or_free(sizes, into, free, tried)
    }

    fn trims(&self) -> bool {
        true
    }

    fn adapts(&self) -> bool {
        false
    }
}

/// Targets in proportion to `weights`, at least one page each; equal without weights.
pub fn static_targets(capacity: usize, partitions: usize, weights: Option<&[f64]>) -> Vec<usize> {
    match weights {
        Some(weights) => apportion(capacity, weights, 1),
        None => equal_targets(capacity, partitions),
    }
}
