//! LANDLORD (LRU flavour): a page pays rent; who cannot pay goes, a hit restores the credit.
//! Units: cost in nanoseconds a page, recorded when the page came in.
//! Cost: O(log n) hit, insert and victim.
//! Invariants: the ordered set holds every frame once under its current (key, stamp); keys are at
//! least the rent charged so far when they were set.
//! Source: Young, "On-line file caching", SODA 1998; Forney et al., FAST 2002, section 5 (baseline).
//! Deviates: rent is charged to all by one growing offset instead of touching each page; keys are
//! integers, so that with equal costs it is exactly LRU.
//! Use when / not when: backends differ in cost and memory is placed anywhere / a backend streams.
//! Checked: tests/core/test_policies.py

use std::collections::BTreeSet;

use super::Policy;
use crate::types::{Frame, Links};

#[derive(Clone, Copy, Debug, Default)]
struct Credit {
    base: u64, // rent charged so far when the page was last touched
    cost: u64,
    stamp: u64,
}

#[derive(Debug, Default)]
pub struct Landlord {
    rent: u64,
    clock: u64,
    order: BTreeSet<(u64, u64, Frame)>,
    credits: Vec<Credit>,
}

impl Landlord {
    fn key(&self, frame: Frame) -> (u64, u64, Frame) {
        let credit = self.credits[frame as usize];
        (credit.base.saturating_add(credit.cost), credit.stamp, frame)
    }

    fn touch(&mut self, frame: Frame, cost: u64) {
        self.clock += 1;
        self.credits[frame as usize] = Credit {
            base: self.rent,
            cost,
            stamp: self.clock,
        };
        let key = self.key(frame);
        self.order.insert(key);
    }
}

impl Policy for Landlord {
    fn insert(&mut self, links: &mut Links, frame: Frame, cost: u64) {
        if self.credits.len() <= frame as usize {
            self.credits
                .resize(links.next.len().max(frame as usize + 1), Credit::default());
        }
        self.touch(frame, cost);
    }

    fn hit(&mut self, _links: &mut Links, frame: Frame) {
        let key = self.key(frame);
        self.order.remove(&key);
        self.touch(frame, self.credits[frame as usize].cost);
    }

    fn remove(&mut self, _links: &mut Links, frame: Frame) {
        let key = self.key(frame);
        self.order.remove(&key);
    }

    fn victim(&mut self, _links: &mut Links, may_go: &dyn Fn(Frame) -> bool) -> Option<Frame> {
        let found = self.order.iter().find(|entry| may_go(entry.2)).copied();
        found.map(|(key, _, frame)| {
            self.rent = self.rent.max(key);
            frame
        })
    }

    fn set_cost(&mut self, _links: &mut Links, frame: Frame, cost: u64) {
        let key = self.key(frame);
        self.order.remove(&key);
        self.credits[frame as usize].cost = cost;
        let key = self.key(frame);
        self.order.insert(key);
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn order(&self, _links: &Links) -> Vec<Frame> {
        self.order.iter().map(|entry| entry.2).collect()
    }

    fn check_invariants(&self, _links: &Links) -> Result<(), String> {
        for entry in &self.order {
            if self.key(entry.2) != *entry {
                return Err(format!(
                    "landlord: frame {} stands under an old key",
                    entry.2
                ));
            }
        }
        Ok(())
    }
}
