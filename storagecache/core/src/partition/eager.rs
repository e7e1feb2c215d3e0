//! Eager: partitions are cut to their targets as soon as these change.
//! Cost: O(1) a miss; O(pages moved) at an epoch.   Invariants: after trimming, a partition is above
//! its target only by pages that may not go.
//! Source: Forney et al., FAST 2002, section 2.3 (Eager LRU).

use super::statics::own_or_free;
use super::{Scheme, Sizes, Take};

#[derive(Debug, Default)]
pub struct Eager;

impl Scheme for Eager {
    fn take(&mut self, sizes: &Sizes, into: usize, free: bool, tried: &[bool]) -> Take {
        own_or_free(sizes, into, free, tried)
    }

    fn trims(&self) -> bool {
        true
    }
}
