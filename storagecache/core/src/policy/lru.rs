//! LRU: the page not accessed for the longest time goes.
//! Units: frames.   Cost: O(1) hit and insert; victim O(1 + pages at the head that may not go).
//! Invariants: the list holds every frame once, in order of last access.
//! Source: the textbook; head and tail as algorithms of Forney et al., FAST 2002, section 5 use it.
//! Use when / not when: recency predicts reuse / scans and loops larger than the cache.
//! Checked: tests/core/test_policies.py

use super::Policy;
use crate::types::{Frame, Links, List};

#[derive(Debug, Default)]
pub struct Lru {
    list: List,
}

impl Policy for Lru {
    fn insert(&mut self, links: &mut Links, frame: Frame, _cost: u64) {
        self.list.push_tail(links, frame);
    }

    fn hit(&mut self, links: &mut Links, frame: Frame) {
        if self.list.tail != frame {
            self.list.remove(links, frame);
            self.list.push_tail(links, frame);
        }
    }

    fn remove(&mut self, links: &mut Links, frame: Frame) {
        self.list.remove(links, frame);
    }

    fn victim(&mut self, links: &mut Links, may_go: &dyn Fn(Frame) -> bool) -> Option<Frame> {
        self.list.iter(links).find(|frame| may_go(*frame))
    }

    fn len(&self) -> usize {
        self.list.len
    }

    fn order(&self, links: &Links) -> Vec<Frame> {
        self.list.iter(links).collect()
    }

    fn check_invariants(&self, links: &Links) -> Result<(), String> {
        self.list
            .check(links)
            .map_err(|problem| format!("lru: {problem}"))
    }
}
