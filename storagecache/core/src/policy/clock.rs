//! Clock: a hand goes round; a page whose use bit is set gets a second chance.
//! Units: frames.   Cost: O(1) hit (sets a bit, moves nothing), amortised O(1) victim.
//! Invariants: the ring holds every frame of the set once; the hand points into it unless empty.
//! Source: Corbato 1968; per-partition rings with a hand each are the Partitioned-Clock of Forney
//! et al., FAST 2002, section 3.2.   Deviates: a ring per partition instead of skipping foreign
//! frames of one ring (skipping becomes free); a new frame is linked just behind the hand with its
//! bit clear (as libCacheSim), or set with `insert_bit` (the paper's words).
//! Use when / not when: hits must be cheap / as LRU.
//! Checked: tests/core/test_policies.py

use super::Policy;
use crate::types::{Frame, Links, List, NIL};

#[derive(Debug)]
pub struct Clock {
    ring: List, // the ring is cut between tail and head
    hand: Frame,
    used: Vec<bool>,
    insert_bit: bool,
}

impl Clock {
    pub fn new(insert_bit: bool) -> Self {
        Self {
            ring: List::default(),
            hand: NIL,
            used: Vec::new(),
            insert_bit,
        }
    }

    fn after(&self, links: &Links, frame: Frame) -> Frame {
        let next = links.next[frame as usize];
        if next == NIL {
            self.ring.head
        } else {
            next
        }
    }
}

impl Policy for Clock {
    fn insert(&mut self, links: &mut Links, frame: Frame, _cost: u64) {
        if self.hand == NIL || self.hand == self.ring.head {
            self.ring.push_tail(links, frame); // just behind the head, the ring being round
            if self.hand == NIL {
                self.hand = frame;
            }
        } else {
            self.ring.insert_before(links, self.hand, frame);
        }
        if self.used.len() <= frame as usize {
            self.used
                .resize(links.next.len().max(frame as usize + 1), false);
        }
        self.used[frame as usize] = self.insert_bit;
    }

    fn hit(&mut self, _links: &mut Links, frame: Frame) {
        self.used[frame as usize] = true;
    }

    fn remove(&mut self, links: &mut Links, frame: Frame) {
        if self.hand == frame {
            let next = self.after(links, frame);
            self.hand = if next == frame { NIL } else { next };
        }
        self.ring.remove(links, frame);
    }

    fn victim(&mut self, links: &mut Links, may_go: &dyn Fn(Frame) -> bool) -> Option<Frame> {
        // One round clears every bit, so the second finds whoever may go.
        for _ in 0..2 * self.ring.len {
            let frame = self.hand;
            if may_go(frame) {
                if !self.used[frame as usize] {
                    return Some(frame);
                }
                self.used[frame as usize] = false;
            }
            self.hand = self.after(links, frame);
        }
        None
    }

    fn len(&self) -> usize {
        self.ring.len
    }

    fn order(&self, links: &Links) -> Vec<Frame> {
        let mut result = Vec::with_capacity(self.ring.len);
        let mut at = self.hand;
        for _ in 0..self.ring.len {
            result.push(at);
            at = self.after(links, at);
        }
        result
    }

    fn check_invariants(&self, links: &Links) -> Result<(), String> {
        self.ring
            .check(links)
            .map_err(|problem| format!("clock: {problem}"))?;
        if (self.hand == NIL) != (self.ring.len == 0) {
            return Err("clock: the hand points nowhere".into());
        }
        if self.hand != NIL && !self.ring.iter(links).any(|frame| frame == self.hand) {
            return Err("clock: the hand is outside of the ring".into());
        }
        Ok(())
    }
}
