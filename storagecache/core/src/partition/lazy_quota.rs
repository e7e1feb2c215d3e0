//! Lazy-quota: any partition may take any frame; who is furthest above its target gives it up.
//! Cost: O(partitions) a miss without a free frame.
//! Invariants: sizes converge to the targets as long as there are misses; no randomness.
//! Source: ours, the fix for the lottery's missing feedback (see lazy.rs).

use super::{Scheme, Sizes, Take};

#[derive(Debug, Default)]
pub struct LazyQuota;

impl Scheme for LazyQuota {
    fn take(&mut self, sizes: &Sizes, into: usize, free: bool, tried: &[bool]) -> Take {
        if free {
            return Take::Free;
        }
        let over = |index: usize| {
            sizes.pages[index] as i64 + i64::from(index == into) - sizes.targets[index] as i64
        };
        (0..sizes.pages.len())
            .filter(|index| sizes.pages[*index] > 0 && !tried[*index])
            .max_by_key(|index| (over(*index), std::cmp::Reverse(*index)))
            .map_or(Take::Nothing, Take::From)
    }
}
