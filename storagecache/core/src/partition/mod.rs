//! Partition schemes: from which partition a page is taken when another one needs a frame.

mod eager;
mod global;
mod lazy;
mod lazy_quota;
mod statics;

pub use eager::Eager;
pub use global::Global;
pub use lazy::{Lazy, Tickets};
pub use lazy_quota::LazyQuota;
pub use statics::{static_targets, Static};

/// Sizes of all partitions: `pages[i]` held, `targets[i]` wanted.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    pub pages: Vec<usize>,
    pub targets: Vec<usize>,
}

/// Where the frame for a miss comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// A free frame; only said when there is one.
    Free,
    /// A victim of this partition.
    From(usize),
    /// Nothing may be taken now: the caller waits.
    Nothing,
}

/// A partition scheme. `tried[i]` marks partitions that had no page that may go; the scheme never
/// names one of them, nor an empty one.
pub trait Scheme: Send {
    /// Partition `into` misses; `free`: there is a free frame.
    fn take(&mut self, sizes: &Sizes, into: usize, free: bool, tried: &[bool]) -> Take;
    /// Whether partitions above their target give pages up as soon as targets change.
    fn trims(&self) -> bool {
        false
    }
    /// Whether targets mean anything to this scheme and may be moved by a repartitioner.
    fn adapts(&self) -> bool {
        true
    }
    /// Targets were changed.
    fn retarget(&mut self, _sizes: &Sizes) {}
}

/// Equal targets; the remainder goes to the lowest numbers.
pub fn equal_targets(capacity: usize, partitions: usize) -> Vec<usize> {
    let (each, rest) = (capacity / partitions, capacity % partitions);
    (0..partitions)
        .map(|index| each + usize::from(index < rest))
        .collect()
}

/// Whole numbers that sum to `total`, at least `least` each, in proportion to `weights` (>= 0, not
/// all 0) by largest remainder; ties to the lowest numbers.
pub fn apportion(total: usize, weights: &[f64], least: usize) -> Vec<usize> {
    let count = weights.len();
    let spare = total.saturating_sub(least * count);
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights
        .iter()
        .map(|weight| weight / sum * spare as f64)
        .collect();
    let mut parts: Vec<usize> = exact.iter().map(|part| part.floor() as usize).collect();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|a, b| {
        let (left, right) = (exact[*a].fract(), exact[*b].fract());
        right.total_cmp(&left).then(a.cmp(b))
    });
    let mut missing = spare.saturating_sub(parts.iter().sum());
    for index in order.into_iter().cycle() {
        if missing == 0 {
            break;
        }
        parts[index] += 1;
        missing -= 1;
    }
    parts.iter().map(|part| part + least).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apportion_keeps_the_sum_and_the_floor() {
        assert_eq!(apportion(10, &[1.0, 1.0, 1.0], 0), vec![4, 3, 3]);
        assert_eq!(apportion(10, &[0.0, 0.0, 5.0], 1), vec![1, 1, 8]);
        assert_eq!(apportion(3, &[9.0, 0.1, 0.1], 1), vec![1, 1, 1]);
    }
}
