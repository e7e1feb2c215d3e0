//! The page table: which frame holds a page.
//! Units: entries are frames (4 bytes); keys stand in the caller's slab of page ids.
//! Cost: O(1) expected. Linear probing with backward-shift deletion, at most half full.

use crate::types::{Frame, PageId, NIL};

#[derive(Debug)]
pub struct Table {
    slots: Vec<Frame>,
    shift: u32,
    len: usize,
}

impl Table {
    pub fn new(frames: usize) -> Self {
        let size = (frames.max(4) * 2).next_power_of_two();
        Self {
            slots: vec![NIL; size],
            shift: 64 - size.trailing_zeros(),
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn home(&self, page: PageId) -> usize {
        let mixed = (page.0 ^ (page.0 >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> self.shift) as usize
    }

    pub fn get(&self, pages: &[PageId], page: PageId) -> Option<Frame> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(page);
        loop {
            let frame = self.slots[at];
            if frame == NIL {
                return None;
            }
            if pages[frame as usize] == page {
                return Some(frame);
            }
            at = (at + 1) & mask;
        }
    }

    /// `pages[frame]` is a page that is not in the table.
    pub fn insert(&mut self, pages: &[PageId], frame: Frame) {
        if (self.len + 1) * 2 > self.slots.len() {
            self.double(pages);
        }
        let mask = self.slots.len() - 1;
        let mut at = self.home(pages[frame as usize]);
        while self.slots[at] != NIL {
            at = (at + 1) & mask;
        }
        self.slots[at] = frame;
        self.len += 1;
    }

    fn double(&mut self, pages: &[PageId]) {
        let old = std::mem::take(&mut self.slots);
        self.slots = vec![NIL; old.len() * 2];
        self.shift -= 1;
        self.len = 0;
        for frame in old {
            if frame != NIL {
                self.insert(pages, frame);
            }
        }
    }

    /// `frame` is in the table under `pages[frame]`.
    pub fn remove(&mut self, pages: &[PageId], frame: Frame) {
        let mask = self.slots.len() - 1;
        let mut hole = self.home(pages[frame as usize]);
        while self.slots[hole] != frame {
            if self.slots[hole] == NIL {
                return;
            }
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let moved = self.slots[at];
            if moved == NIL {
                break;
            }
            let home = self.home(pages[moved as usize]);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = moved;
                hole = at;
            }
        }
        self.slots[hole] = NIL;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SplitMix64;
    use std::collections::HashMap;

    #[test]
    fn agrees_with_a_hash_map() {
        let mut rng = SplitMix64::new(5);
        let mut pages = vec![PageId(u64::MAX); 64];
        let mut table = Table::new(4);
        let mut model: HashMap<PageId, Frame> = HashMap::new();
        for _ in 0..20_000 {
            let frame = (rng.next_u64() % 64) as Frame;
            let page = pages[frame as usize];
            if model.get(&page) == Some(&frame) {
                table.remove(&pages, frame);
                model.remove(&page);
                pages[frame as usize] = PageId(u64::MAX);
            } else {
                let page = PageId::new((rng.next_u64() % 8) as u32, (rng.next_u64() % 16) as u32);
                if let std::collections::hash_map::Entry::Vacant(absent) = model.entry(page) {
                    pages[frame as usize] = page;
                    table.insert(&pages, frame);
                    absent.insert(frame);
                }
            }
            let probe = PageId::new((rng.next_u64() % 8) as u32, (rng.next_u64() % 16) as u32);
            assert_eq!(table.get(&pages, probe), model.get(&probe).copied());
            assert_eq!(table.len(), model.len());
        }
    }
}
