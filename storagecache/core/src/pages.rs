//! Pages: the cache and the memory store as one, as a live mount uses them.
//!
//! A page is resident, or being filled by a fetch (pinned by it), or doomed: taken out of the table
//! while a fetch or a reader still pins its frame, which goes free with the last pin. A fetch
//! therefore never writes into a frame that was given away.

use crate::cache::{Cache, CacheConfig};
use crate::error::{bad, Result};
use crate::store::MemoryStore;
use crate::types::{Frame, PageId, NIL, SECTOR_BYTES};

/// Most bytes one read may ask for, and the scratch area's size where the budget allows.
pub const REQUEST_MAX_BYTES: usize = 1 << 20;

/// One backend read: consecutive sectors of one object.
#[derive(Clone, Debug)]
pub struct Run {
    pub slot: u32,
    pub offset: u64,
    pub size: usize,
    pub frames: Vec<Frame>,
}

/// What `begin_read` decided about the first `covered` bytes of a request.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub covered: usize,
    pub frames: Vec<Frame>,
    pub runs: Vec<Run>,
    pub joined: Vec<Frame>,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    partition: u16,
    open: bool,
    head: Frame, // its pages, linked through `next_of_object`
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    pub demand_requests: u64,
    pub response_ns: u64,
    pub busy_ns: u64,
}

/// What a request wants of its object.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub slot: u32,
    pub offset: u64,
    pub size: usize,
    pub object_size: u64,
    pub read_max_bytes: usize,
    pub whole_pages: bool,
}

pub struct Pages {
    cache: Cache,
    store: MemoryStore,
    page_shift: u32,
    memory_bytes: usize,
    objects: Vec<Object>,
    free_slots: Vec<u32>,
    next_of_object: Vec<Frame>,
    prev_of_object: Vec<Frame>,
    filling: Vec<bool>,
    waits: Vec<Waits>,
}

/// Bytes set aside for gathering replies, out of a budget of `memory_bytes`.
fn scratch_bytes(memory_bytes: usize, page_bytes: usize) -> usize {
    let wanted = REQUEST_MAX_BYTES.min((memory_bytes / 8).max(page_bytes));
    wanted / page_bytes.min(wanted) * page_bytes.min(wanted)
}

impl Pages {
    pub fn new(
        mut config: CacheConfig,
        memory_bytes: usize,
        page_bytes: usize,
        reserve_bytes: usize,
    ) -> Result<Self> {
        if !page_bytes.is_power_of_two() || !(4096..=4 << 20).contains(&page_bytes) {
            return bad(
                "page_bytes",
                format!("{page_bytes} is no power of two from 4096 to 4 MiB"),
            );
        }
        let scratch = scratch_bytes(memory_bytes, page_bytes);
        config.capacity = memory_bytes.saturating_sub(scratch) / page_bytes;
        let partitions = config.partitions;
        let cache = Cache::new(config)?;
        let store = MemoryStore::new(reserve_bytes.max(memory_bytes), scratch, page_bytes)?;
        let mut pages = Self {
            cache,
            store,
            page_shift: page_bytes.trailing_zeros(),
            memory_bytes,
            objects: Vec::new(),
            free_slots: Vec::new(),
            next_of_object: Vec::new(),
            prev_of_object: Vec::new(),
            filling: Vec::new(),
            waits: vec![Waits::default(); partitions],
        };
        pages.grow();
        Ok(pages)
    }

    fn grow(&mut self) {
        let frames = self.cache.capacity().max(self.filling.len());
        self.store.grow(frames);
        self.next_of_object.resize(frames, NIL);
        self.prev_of_object.resize(frames, NIL);
        self.filling.resize(frames, false);
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    pub fn waits(&self, partition: usize) -> Waits {
        self.waits[partition]
    }

    pub fn open_objects(&self) -> usize {
        self.objects.len() - self.free_slots.len()
    }

    pub fn filling(&self) -> usize {
        self.filling.iter().filter(|filling| **filling).count()
    }

    pub fn used_bytes(&self) -> usize {
        self.store.scratch() + self.cache.used_frames() * self.store.page_bytes()
    }

    // objects

    pub fn open_object(&mut self, partition: usize) -> Result<u32> {
        if partition >= self.cache.partitions() {
            return bad("backend", format!("{partition} is out of range"));
        }
        let object = Object {
            partition: partition as u16,
            open: true,
            head: NIL,
        };
        if let Some(slot) = self.free_slots.pop() {
            self.objects[slot as usize] = object;
            return Ok(slot);
        }
        self.objects.push(object);
        Ok(self.objects.len() as u32 - 1)
    }

    fn object(&self, slot: u32) -> Result<Object> {
        match self.objects.get(slot as usize) {
            Some(object) if object.open => Ok(*object),
            _ => bad("slot", format!("{slot} is not open")),
        }
    }

    /// Drop an object and its pages. Fetches under way keep their frames, not the number.
    pub fn close_object(&mut self, slot: u32) -> Result<()> {
        self.object(slot)?;
        while self.objects[slot as usize].head != NIL {
            self.doom(self.objects[slot as usize].head);
        }
        self.objects[slot as usize].open = false;
        self.free_slots.push(slot);
        Ok(())
    }

    fn link(&mut self, slot: u32, frame: Frame) {
        let head = self.objects[slot as usize].head;
        self.next_of_object[frame as usize] = head;
        self.prev_of_object[frame as usize] = NIL;
        if head != NIL {
            self.prev_of_object[head as usize] = frame;
        }
        self.objects[slot as usize].head = frame;
    }

    fn unlink(&mut self, slot: u32, frame: Frame) {
        let (before, after) = (
            self.prev_of_object[frame as usize],
            self.next_of_object[frame as usize],
        );
        if before == NIL {
            self.objects[slot as usize].head = after;
        } else {
            self.next_of_object[before as usize] = after;
        }
        if after != NIL {
            self.prev_of_object[after as usize] = before;
        }
    }

    /// Take a page out; its frame goes free with its last pin.
    fn doom(&mut self, frame: Frame) {
        if let Some(page) = self.cache.page_of(frame) {
            self.unlink(page.slot(), frame);
            let dirty = self.store.is_dirty(frame);
            self.store.clear(frame);
            self.filling[frame as usize] = false;
            self.cache.remove(frame);
            if dirty {
                self.cache.unpin(frame); // the pin of its dirty sectors goes with them
            }
        }
    }

    fn gone(&mut self, evicted: Vec<(Frame, PageId)>) {
        for (frame, page) in evicted {
            self.unlink(page.slot(), frame);
            self.store.clear(frame);
        }
    }

    // The victim's frame is the one it left to the new page.
    fn insert(&mut self, page: PageId, partition: usize) -> Option<Frame> {
        let inserted = self.cache.insert(page, partition, 0)?;
        let frame = inserted.frame;
        if let Some(victim) = inserted.victim {
            self.unlink(victim.slot(), frame);
        }
        self.store.clear(frame);
        self.filling[frame as usize] = false;
        self.link(page.slot(), frame);
        Some(frame)
    }

    // reading

    fn page_range(&self, offset: u64, size: usize) -> (u64, u64) {
        (
            offset >> self.page_shift,
            (offset + size as u64 - 1) >> self.page_shift,
        )
    }

    /// Sectors [from, to) of page `number` that the bytes [offset, offset + size) lie in.
    fn sectors(&self, number: u64, offset: u64, size: usize) -> (usize, usize) {
        let start = number << self.page_shift;
        let from = offset.max(start) - start;
        let to = (offset + size as u64).min(start + (1 << self.page_shift)) - start;
        (
            (from as usize) / SECTOR_BYTES,
            (to as usize).div_ceil(SECTOR_BYTES),
        )
    }

    fn page_id(slot: u32, number: u64) -> Option<PageId> {
        u32::try_from(number)
            .ok()
            .map(|page| PageId::new(slot, page))
    }

    /// Start of the bytes in the arena if all are resident, counting hits; else None.
    pub fn read(&mut self, slot: u32, offset: u64, size: usize) -> Option<usize> {
        if size == 0 {
            return Some(0);
        }
        let (first, last) = self.page_range(offset, size);
        if first == last {
            let frame = self.cache.lookup(Self::page_id(slot, first)?)?;
            let (from, to) = self.sectors(first, offset, size);
            if !self.store.is_valid(frame, from, to) {
                return None;
            }
            self.cache.hit(frame);
            let within = (offset - (first << self.page_shift)) as usize;
            return Some(self.store.position(frame) + within);
        }
        let mut frames = [NIL; REQUEST_MAX_BYTES / SECTOR_BYTES + 1];
        let count = (last - first + 1) as usize;
        if count > frames.len() {
            return None;
        }
        for (index, number) in (first..=last).enumerate() {
            let frame = self.cache.lookup(Self::page_id(slot, number)?)?;
            let (from, to) = self.sectors(number, offset, size);
            if !self.store.is_valid(frame, from, to) {
                return None;
            }
            frames[index] = frame;
        }
        let start = self.collect(&frames[..count], offset, size)?;
        for frame in &frames[..count] {
            self.cache.hit(*frame);
        }
        Some(start)
    }

    /// Position of bytes that lie in `frames`: in place if these are adjacent, else in the scratch.
    fn collect(&mut self, frames: &[Frame], offset: u64, size: usize) -> Option<usize> {
        let page_bytes = 1usize << self.page_shift;
        let within = (offset as usize) & (page_bytes - 1);
        if frames.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            return Some(self.store.position(frames[0]) + within);
        }
        if size > self.store.scratch() {
            return None;
        }
        let (mut done, mut at) = (0, within);
        for frame in frames {
            let length = (page_bytes - at).min(size - done);
            self.store
                .to_scratch(self.store.position(*frame) + at, done, length);
            done += length;
            at = 0;
        }
        Some(0)
    }

    /// Pin what is there, insert what is not, say what to fetch; as far as frames can be had.
    pub fn begin_read(&mut self, want: Want, count: bool) -> Result<Plan> {
        let object = self.object(want.slot)?;
        let partition = usize::from(object.partition);
        let mut plan = Plan::default();
        let end = (want.offset + want.size as u64).min(want.object_size);
        let end = end.min(want.offset + self.store.scratch() as u64);
        if end <= want.offset {
            return Ok(plan);
        }
        let size = (end - want.offset) as usize;
        let (first, last) = self.page_range(want.offset, size);
        for number in first..=last {
            let Some(page) = Self::page_id(want.slot, number) else {
                break;
            };
            let (from, to) = self.sectors(number, want.offset, size);
            let page_end = ((number + 1) << self.page_shift).min(end);
            if let Some(frame) = self.cache.lookup(page) {
                let valid = self.store.is_valid(frame, from, to);
                let filling = self.filling[frame as usize];
                if count && (valid || filling) {
                    self.cache.hit(frame);
                } else if count {
                    self.cache.miss(partition);
                }
                self.cache.pin(frame);
                plan.frames.push(frame);
                if !valid && filling {
                    plan.joined.push(frame);
                } else if !valid {
                    self.refill(&mut plan, &want, number, frame, from, to);
                }
            } else {
                // frames that nobody may take are no reason to wait if there are pages already
                let Some(frame) = self.insert(page, partition) else {
                    break;
                };
                if count {
                    self.cache.miss(partition);
                }
                self.cache.pin(frame);
                plan.frames.push(frame);
                let (from, to) = if want.whole_pages {
                    (0, self.page_sectors(number, want.object_size))
                } else {
                    (from, to)
                };
                self.fill(&mut plan.runs, &want, number, frame, from, to);
            }
            plan.covered = (page_end - want.offset) as usize;
        }
        Ok(plan)
    }

    /// Sectors of a page up to the object's end.
    fn page_sectors(&self, number: u64, object_size: u64) -> usize {
        let start = number << self.page_shift;
        let bytes = object_size.saturating_sub(start).min(1 << self.page_shift);
        (bytes as usize).div_ceil(SECTOR_BYTES)
    }

    /// Fetch the first missing span of a page that is there in part.
    fn refill(
        &mut self,
        plan: &mut Plan,
        want: &Want,
        number: u64,
        frame: Frame,
        from: usize,
        to: usize,
    ) {
        let limit = if want.whole_pages {
            self.page_sectors(number, want.object_size).max(to)
        } else {
            to
        };
        let Some(start) = (from..to).find(|at| !self.store.is_valid(frame, *at, at + 1)) else {
            return;
        };
        let stop = (start..limit)
            .find(|at| self.store.is_valid(frame, *at, at + 1))
            .unwrap_or(limit);
        self.fill(&mut plan.runs, want, number, frame, start, stop);
    }

    /// Pin for a fetch of sectors [from, to) and add them to the runs.
    fn fill(
        &mut self,
        runs: &mut Vec<Run>,
        want: &Want,
        number: u64,
        frame: Frame,
        from: usize,
        to: usize,
    ) {
        self.filling[frame as usize] = true;
        self.cache.pin(frame);
        let offset = (number << self.page_shift) + (from * SECTOR_BYTES) as u64;
        let size = (to - from) * SECTOR_BYTES;
        if let Some(run) = runs.last_mut() {
            let follows = run.offset + run.size as u64 == offset;
            if follows && run.size + size <= want.read_max_bytes.max(1 << self.page_shift) {
                run.size += size;
                run.frames.push(frame);
                return;
            }
        }
        runs.push(Run {
            slot: want.slot,
            offset,
            size,
            frames: vec![frame],
        });
    }

    /// Insert absent pages for a fetch that nobody waits for; nothing is counted.
    pub fn begin_prefetch(&mut self, want: Want) -> Result<Vec<Run>> {
        let object = self.object(want.slot)?;
        let partition = usize::from(object.partition);
        let mut runs = Vec::new();
        let end = (want.offset + want.size as u64).min(want.object_size);
        if end <= want.offset || !self.cache.name().keeps {
            return Ok(runs);
        }
        // at most a quarter of the cache at a time
        let budget = (self.cache.capacity() / 4).max(1);
        let (first, last) = self.page_range(want.offset, (end - want.offset) as usize);
        for number in (first..=last).take(budget) {
            let Some(page) = Self::page_id(want.slot, number) else {
                break;
            };
            if self.cache.lookup(page).is_some() {
                continue;
            }
            let Some(frame) = self.insert(page, partition) else {
                break;
            };
            let to = self.page_sectors(number, want.object_size);
            self.fill(&mut runs, &want, number, frame, 0, to);
        }
        Ok(runs)
    }

    /// As `read`, from frames the caller has pinned.
    pub fn gather(&mut self, frames: &[Frame], offset: u64, size: usize) -> Option<usize> {
        if size == 0 || frames.is_empty() {
            return Some(0);
        }
        let (first, last) = self.page_range(offset, size);
        if (last - first + 1) as usize != frames.len() {
            return None;
        }
        for (number, frame) in (first..=last).zip(frames) {
            let (from, to) = self.sectors(number, offset, size);
            let here = self
                .cache
                .page_of(*frame)
                .is_some_and(|page| u64::from(page.page()) == number);
            if !here || !self.store.is_valid(*frame, from, to) {
                return None;
            }
        }
        self.collect(frames, offset, size)
    }

    pub fn unpin(&mut self, frames: &[Frame]) {
        for frame in frames {
            self.unpin_one(*frame);
        }
        let gone = self.cache.trim();
        self.gone(gone);
    }

    fn unpin_one(&mut self, frame: Frame) {
        if self.cache.unpin(frame) && self.cache.must_go(frame) {
            self.doom(frame);
        }
        if frame as usize >= self.cache.capacity() && !self.cache.in_use(frame) {
            self.store.discard(frame); // given up by a shrink that had to wait for this pin
        }
    }

    /// The parts of a run: frame, first byte within it, bytes.
    pub fn parts<'a>(&self, run: &'a Run) -> impl Iterator<Item = (Frame, usize, usize)> + 'a {
        let page_bytes = 1usize << self.page_shift;
        let mut at = (run.offset as usize) & (page_bytes - 1);
        let mut left = run.size;
        run.frames.iter().map(move |frame| {
            let start = at;
            let length = (page_bytes - start).min(left);
            left -= length;
            at = 0;
            (*frame, start, length)
        })
    }

    /// Where a run's bytes go in the arena: (position, length), adjacent ones as one.
    pub fn buffers(&self, run: &Run) -> Vec<(usize, usize)> {
        let mut result: Vec<(usize, usize)> = Vec::new();
        for (frame, start, length) in self.parts(run) {
            let position = self.store.position(frame) + start;
            match result.last_mut() {
                Some(last) if last.0 + last.1 == position => last.1 += length,
                _ => result.push((position, length)),
            }
        }
        result
    }

    fn is_of(&self, frame: Frame, run: &Run, index: usize) -> bool {
        let number = (run.offset >> self.page_shift) + index as u64;
        self.filling[frame as usize]
            && self
                .cache
                .page_of(frame)
                .is_some_and(|page| page.slot() == run.slot && u64::from(page.page()) == number)
    }

    /// A fetch returned. False if some of its pages were doomed meanwhile.
    pub fn complete(&mut self, run: &Run, bytes_read: usize, cost_ns: u64) -> bool {
        let mut whole = true;
        let mut left = bytes_read;
        let parts: Vec<(Frame, usize, usize)> = self.parts(run).collect();
        for (index, (frame, start, length)) in parts.into_iter().enumerate() {
            let got = left.min(length);
            left -= got;
            if self.is_of(frame, run, index) {
                self.store.zero(frame, start + got, length - got);
                let from = start / SECTOR_BYTES;
                self.store
                    .set_valid(frame, from, from + length.div_ceil(SECTOR_BYTES));
                self.filling[frame as usize] = false;
                self.cache.set_cost(frame, cost_ns);
            } else {
                whole = false;
            }
            self.unpin_one(frame);
        }
        let gone = self.cache.trim();
        self.gone(gone);
        whole
    }

    /// A fetch failed: pages that hold nothing valid leave.
    pub fn fail(&mut self, run: &Run) {
        for (index, frame) in run.frames.iter().enumerate() {
            if self.is_of(*frame, run, index) {
                self.filling[*frame as usize] = false;
                if !self.store.any_valid(*frame) {
                    self.doom(*frame);
                }
            }
            self.unpin_one(*frame);
        }
    }

    /// A request to a backend ended. True if an epoch ended with it.
    pub fn observe(
        &mut self,
        partition: usize,
        response_ns: u64,
        busy_ns: u64,
        now_ns: u64,
        demand: bool,
    ) -> Result<bool> {
        let Some(waits) = self.waits.get_mut(partition) else {
            return bad("backend", format!("{partition} is out of range"));
        };
        waits.busy_ns += busy_ns;
        if !demand {
            return Ok(false);
        }
        waits.response_ns += response_ns;
        waits.demand_requests += 1;
        match self.cache.complete(partition, response_ns, busy_ns, now_ns) {
            Some(gone) => {
                self.gone(gone);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    // writing

    /// The backend has taken `data`.
    pub fn write(&mut self, slot: u32, offset: u64, data: &[u8]) -> Result<()> {
        let object = self.object(slot)?;
        if data.is_empty() {
            return Ok(());
        }
        let page_bytes = 1usize << self.page_shift;
        let (first, last) = self.page_range(offset, data.len());
        for number in first..=last {
            let Some(page) = Self::page_id(slot, number) else {
                break;
            };
            let start = number << self.page_shift;
            let from = (offset.max(start) - start) as usize;
            let to = ((offset + data.len() as u64).min(start + page_bytes as u64) - start) as usize;
            let found = (start + from as u64 - offset) as usize;
            let bytes = &data[found..found + (to - from)];
            let mut frame = self.cache.lookup(page);
            if let Some(held) = frame {
                if self.filling[held as usize] {
                    self.doom(held);
                    frame = None;
                }
            }
            let whole = from == 0 && to == page_bytes;
            if frame.is_none() && whole && self.cache.name().keeps {
                frame = self.insert(page, usize::from(object.partition));
            }
            if let Some(frame) = frame {
                self.update(frame, from, bytes);
            }
        }
        Ok(())
    }

    /// Bring a resident page up to date: whole sectors become valid, others only stay so.
    fn update(&mut self, frame: Frame, from: usize, bytes: &[u8]) {
        let to = from + bytes.len();
        for sector in from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES) {
            let (start, stop) = (sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES);
            let (low, high) = (from.max(start), to.min(stop));
            let whole = low == start && high == stop;
            if whole || self.store.is_valid(frame, sector, sector + 1) {
                self.store
                    .write(frame, low, &bytes[low - from..high - from]);
                self.store.set_valid(frame, sector, sector + 1);
            }
        }
    }

    /// The object is `size` bytes long now: what lies beyond leaves or becomes zeros.
    pub fn truncate(&mut self, slot: u32, size: u64) -> Result<()> {
        let object = self.object(slot)?;
        let mut at = object.head;
        while at != NIL {
            let frame = at;
            at = self.next_of_object[frame as usize];
            let Some(page) = self.cache.page_of(frame) else {
                continue;
            };
            let start = u64::from(page.page()) << self.page_shift;
            if start + (1 << self.page_shift) <= size {
                if self.filling[frame as usize] && start + (2 << self.page_shift) > size {
                    self.doom(frame);
                }
                continue;
            }
            if start >= size || self.filling[frame as usize] {
                self.doom(frame);
                continue;
            }
            let within = (size - start) as usize;
            let sector = within / SECTOR_BYTES;
            let boundary = sector * SECTOR_BYTES;
            let mut keep = sector;
            if within > boundary {
                if self.store.is_valid(frame, sector, sector + 1) {
                    self.store
                        .zero(frame, within, boundary + SECTOR_BYTES - within);
                }
                keep = sector + 1;
            }
            let dirty = self.store.is_dirty(frame);
            self.store
                .clear_valid(frame, keep, (1 << self.page_shift) / SECTOR_BYTES);
            if dirty && !self.store.is_dirty(frame) {
                self.unpin_one(frame);
            }
        }
        Ok(())
    }

    /// Drop pages; returns how many were there.
    pub fn invalidate(&mut self, slot: u32, first: u32, last: u32) -> Result<usize> {
        let object = self.object(slot)?;
        let mut dropped = 0;
        let mut at = object.head;
        while at != NIL {
            let frame = at;
            at = self.next_of_object[frame as usize];
            let inside = self
                .cache
                .page_of(frame)
                .is_some_and(|page| (first..=last).contains(&page.page()));
            if inside && !self.store.is_dirty(frame) {
                self.doom(frame);
                dropped += 1;
            }
        }
        Ok(dropped)
    }

    /// Whole resident sectors of the range become dirty (or clean); a dirty page is pinned.
    pub fn mark(&mut self, slot: u32, offset: u64, size: usize, dirty: bool) -> Result<()> {
        self.object(slot)?;
        if size == 0 {
            return Ok(());
        }
        let (first, last) = self.page_range(offset, size);
        for number in first..=last {
            let Some(page) = Self::page_id(slot, number) else {
                break;
            };
            let Some(frame) = self.cache.lookup(page) else {
                continue;
            };
            let (from, to) = self.sectors(number, offset, size);
            let before = self.store.is_dirty(frame);
            if dirty {
                for sector in from..to {
                    if self.store.is_valid(frame, sector, sector + 1) {
                        self.store.set_dirty(frame, sector, sector + 1);
                    }
                }
            } else {
                self.store.clear_dirty(frame, from, to);
            }
            match (before, self.store.is_dirty(frame)) {
                (false, true) => self.cache.pin(frame),
                (true, false) => self.unpin_one(frame),
                _ => {}
            }
        }
        Ok(())
    }

    // control

    pub fn access(&mut self, slot: u32, page: u32, cost_ns: u64) -> Result<bool> {
        let object = self.object(slot)?;
        let partition = usize::from(object.partition);
        let id = PageId::new(slot, page);
        if let Some(frame) = self.cache.lookup(id) {
            self.cache.hit(frame);
            return Ok(true);
        }
        self.cache.miss(partition);
        if self.cache.name().keeps {
            if let Some(frame) = self.insert(id, partition) {
                self.cache.set_cost(frame, cost_ns);
            }
        }
        Ok(false)
    }

    pub fn set_policy(&mut self, policy: &str) -> Result<()> {
        let gone = self.cache.set_policy(policy)?;
        self.gone(gone);
        Ok(())
    }

    pub fn set_targets(&mut self, targets: Vec<usize>) -> Result<()> {
        let gone = self.cache.set_targets(targets)?;
        self.gone(gone);
        Ok(())
    }

    pub fn set_balance(&mut self, config: crate::repartition::WaitBalanceConfig) {
        self.cache.set_balance(config);
    }

    pub fn end_epoch(&mut self) -> bool {
        match self.cache.end_epoch() {
            Some(gone) => {
                self.gone(gone);
                true
            }
            None => false,
        }
    }

    pub fn resize(&mut self, memory_bytes: usize) -> Result<()> {
        let frames = memory_bytes.saturating_sub(self.store.scratch()) / self.store.page_bytes();
        if frames > self.store.frames_max() {
            return bad(
                "memory_bytes",
                format!(
                    "more than the {} bytes reserved at mount",
                    self.store.reserved()
                ),
            );
        }
        let before = self.cache.capacity();
        let gone = self.cache.resize(frames)?;
        self.gone(gone);
        self.memory_bytes = memory_bytes;
        self.grow();
        for frame in frames..before {
            if !self.cache.in_use(frame as Frame) {
                self.store.discard(frame as Frame);
            }
        }
        Ok(())
    }

    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        self.cache.check_invariants()?;
        self.store.check_invariants()?;
        let mut linked = 0;
        for (slot, object) in self.objects.iter().enumerate() {
            let mut at = object.head;
            while at != NIL {
                if self
                    .cache
                    .page_of(at)
                    .is_none_or(|page| page.slot() as usize != slot)
                {
                    return Err(format!("objects: frame {at} is not of object {slot}"));
                }
                linked += 1;
                at = self.next_of_object[at as usize];
            }
        }
        if linked != self.cache.resident() {
            return Err(format!(
                "objects: {linked} pages linked, {} resident",
                self.cache.resident()
            ));
        }
        for (frame, page) in self.cache.resident_pages() {
            if self.filling[frame as usize] && self.cache.pins(frame) == 0 {
                return Err(format!("filling: frame {frame} of {page:?} is not pinned"));
            }
            if self.store.is_dirty(frame) && self.cache.pins(frame) == 0 {
                return Err(format!("dirty: frame {frame} of {page:?} is not pinned"));
            }
        }
        if self.used_bytes() > self.memory_bytes && self.cache.beyond() == 0 {
            return Err(format!(
                "budget: {} of {} used",
                self.used_bytes(),
                self.memory_bytes
            ));
        }
        Ok(())
    }
}
