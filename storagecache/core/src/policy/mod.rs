//! Replacement policies: who goes next among the frames of one set (a partition or the cache).

mod clock;
mod landlord;
mod lru;

pub use clock::Clock;
pub use landlord::Landlord;
pub use lru::Lru;

use crate::types::{Frame, Links};

/// One set of frames and its order of eviction.
///
/// The caller guarantees: a frame is in at most one policy; `insert` only for absent frames, all
/// others only for present ones; `links` is the same slab, large enough for every frame. The policy
/// guarantees: `victim` returns a present frame for which `may_go` holds, or None only if there is
/// none; it does not remove it.
pub trait Policy: Send {
    /// A page came in. `cost`: nanoseconds a page's fetch took, 0 if not known yet.
    fn insert(&mut self, links: &mut Links, frame: Frame, cost: u64);
    fn hit(&mut self, links: &mut Links, frame: Frame);
    fn remove(&mut self, links: &mut Links, frame: Frame);
    fn victim(&mut self, links: &mut Links, may_go: &dyn Fn(Frame) -> bool) -> Option<Frame>;
    /// The fetch of a present page took so long.
    fn set_cost(&mut self, _links: &mut Links, _frame: Frame, _cost: u64) {}
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// All frames, next victim first as far as that is fixed.
    fn order(&self, links: &Links) -> Vec<Frame>;
    fn check_invariants(&self, links: &Links) -> Result<(), String>;
}

/// Which policy, by the name of its paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Lru,
    Clock,
    Landlord,
}

impl Kind {
    pub const ALL: [(&'static str, Kind); 3] = [
        ("lru", Kind::Lru),
        ("clock", Kind::Clock),
        ("landlord", Kind::Landlord),
    ];

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, kind)| *kind)
    }

    pub fn build(self, clock_insert_bit: bool) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(Lru::default()),
            Self::Clock => Box::new(Clock::new(clock_insert_bit)),
            Self::Landlord => Box::new(Landlord::default()),
        }
    }
}
