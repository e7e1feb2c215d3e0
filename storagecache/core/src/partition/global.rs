//! No partitions: one policy over all pages. Partitions still count pages, hits and waits.
//! Cost: O(1).   Source: place-anywhere caches, Forney et al., FAST 2002, section 2.

use super::{Scheme, Sizes, Take};

#[derive(Debug, Default)]
pub struct Global;

impl Scheme for Global {
    /// Partition 0 stands for the one policy that holds every page.
    fn take(&mut self, _sizes: &Sizes, _into: usize, free: bool, tried: &[bool]) -> Take {
        if free {
            Take::Free
        } else if tried[0] {
            Take::Nothing
        } else {
            Take::From(0)
        }
    }

    fn adapts(&self) -> bool {
        false
    }
}
