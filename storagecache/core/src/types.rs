//! Ids, links and the generator that every lottery uses. Plain data, no I/O.

/// Index of a page frame; also the index of a page's metadata in every slab.
pub type Frame = u32;

/// No frame.
pub const NIL: Frame = u32::MAX;

/// Bytes of a sector: the unit in which a frame is valid or dirty.
pub const SECTOR_BYTES: usize = 4096;

/// A page: 32 bits of object slot, 32 bits of page number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u64);

impl PageId {
    pub fn new(slot: u32, page: u32) -> Self {
        Self(u64::from(slot) << 32 | u64::from(page))
    }

    pub fn slot(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub fn page(self) -> u32 {
        self.0 as u32
    }
}

/// Links of the lists that frames stand in; a frame is in at most one list of a slab.
#[derive(Debug, Default)]
pub struct Links {
    pub prev: Vec<Frame>,
    pub next: Vec<Frame>,
}

impl Links {
    pub fn grow(&mut self, frames: usize) {
        self.prev.resize(frames, NIL);
        self.next.resize(frames, NIL);
    }
}

/// A doubly linked list of frames; the head is the next victim, the tail the safest.
#[derive(Clone, Copy, Debug)]
pub struct List {
    pub head: Frame,
    pub tail: Frame,
    pub len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            len: 0,
        }
    }
}

impl List {
    pub fn push_tail(&mut self, links: &mut Links, frame: Frame) {
        let index = frame as usize;
        links.prev[index] = self.tail;
        links.next[index] = NIL;
        if self.tail == NIL {
            self.head = frame;
        } else {
            links.next[self.tail as usize] = frame;
        }
        self.tail = frame;
        self.len += 1;
    }

    /// Insert before `at`, which is in the list.
    pub fn insert_before(&mut self, links: &mut Links, at: Frame, frame: Frame) {
        let before = links.prev[at as usize];
        links.prev[frame as usize] = before;
        links.next[frame as usize] = at;
        links.prev[at as usize] = frame;
        if before == NIL {
            self.head = frame;
        } else {
            links.next[before as usize] = frame;
        }
        self.len += 1;
    }

    pub fn remove(&mut self, links: &mut Links, frame: Frame) {
        let index = frame as usize;
        let (before, after) = (links.prev[index], links.next[index]);
        if before == NIL {
            self.head = after;
        } else {
            links.next[before as usize] = after;
        }
        if after == NIL {
            self.tail = before;
        } else {
            links.prev[after as usize] = before;
        }
        self.len -= 1;
    }

    /// Frames from head to tail.
    pub fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = Frame> + 'a {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let found = at;
            if found == NIL {
                return None;
            }
            at = links.next[found as usize];
            Some(found)
        })
    }

    /// Both directions and the length agree.
    pub fn check(&self, links: &Links) -> Result<(), String> {
        let (mut before, mut seen) = (NIL, 0);
        for frame in self.iter(links) {
            if links.prev[frame as usize] != before {
                return Err(format!("list: prev of frame {frame} is wrong"));
            }
            before = frame;
            seen += 1;
            if seen > self.len {
                break;
            }
        }
        if seen != self.len || before != self.tail {
            return Err(format!("list: {seen} frames linked, {} counted", self.len));
        }
        Ok(())
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): the one generator of the core.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}
