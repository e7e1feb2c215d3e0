//! The cache: the one thing that decides. Access comes in, hit or victim goes out.
//!
//! It knows pages, partitions, costs and which pages may go; no bytes, no clock, no I/O.

use crate::error::{bad, Result};
use crate::partition::{
    apportion, equal_targets, static_targets, Eager, Global, Lazy, LazyQuota, Scheme, Sizes,
    Static, Take, Tickets,
};
use crate::policy::{Kind, Policy};
use crate::repartition::{WaitBalance, WaitBalanceConfig};
use crate::table::Table;
use crate::types::{Frame, Links, PageId, NIL};

const NO_PAGE: PageId = PageId(u64::MAX);

/// A policy by its name: `none`, `lru`, `lazy-clock`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyName {
    pub scheme: SchemeKind,
    pub kind: Kind,
    /// False for `none`: nothing stays.
    pub keeps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemeKind {
    Global,
    Static,
    Eager,
    Lazy,
    LazyQuota,
}

const SCHEMES: [(&str, SchemeKind); 4] = [
    ("static", SchemeKind::Static),
    ("eager", SchemeKind::Eager),
    ("lazy-quota", SchemeKind::LazyQuota),
    ("lazy", SchemeKind::Lazy),
];

impl PolicyName {
    pub fn parse(name: &str) -> Result<Self> {
        if name == "none" {
            return Ok(Self {
                scheme: SchemeKind::Global,
                kind: Kind::Lru,
                keeps: false,
            });
        }
        if let Some(kind) = Kind::from_name(name) {
            return Ok(Self {
                scheme: SchemeKind::Global,
                kind,
                keeps: true,
            });
        }
        for (prefix, scheme) in SCHEMES {
            let rest = name
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_prefix('-'));
            if let Some(kind) = rest.and_then(Kind::from_name) {
                return Ok(Self {
                    scheme,
                    kind,
                    keeps: true,
                });
            }
        }
        bad(
            "policy",
            format!("unknown policy '{name}' (known: {})", Self::all().join(" ")),
        )
    }

    /// Every name there is.
    pub fn all() -> Vec<String> {
        let mut names = vec!["none".to_string()];
        names.extend(Kind::ALL.iter().map(|(name, _)| (*name).to_string()));
        for (scheme, _) in SCHEMES {
            names.extend(Kind::ALL.iter().map(|(name, _)| format!("{scheme}-{name}")));
        }
        names
    }
}

#[derive(Clone, Debug)]
pub struct CacheConfig {
    pub policy: String,
    pub capacity: usize,
    pub partitions: usize,
    pub seed: u64,
    pub tickets: Tickets,
    pub clock_insert_bit: bool,
    /// Shares of the static scheme, or a priori service times; None: equal.
    pub weights: Option<Vec<f64>>,
    pub balance: WaitBalanceConfig,
}

#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
}

/// What `insert` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inserted {
    pub frame: Frame,
    /// The page that went to make room.
    pub victim: Option<PageId>,
}

pub struct Cache {
    config: CacheConfig,
    name: PolicyName,
    capacity: usize,
    table: Table,
    pages: Vec<PageId>,
    parts: Vec<u16>,
    pins: Vec<u32>,
    links: Links,
    policies: Vec<Box<dyn Policy>>,
    scheme: Box<dyn Scheme>,
    sizes: Sizes,
    free: Vec<Frame>,
    tried: Vec<bool>,
    counters: Vec<Counters>,
    balance: WaitBalance,
}

impl Cache {
    pub fn new(config: CacheConfig) -> Result<Self> {
        if config.partitions == 0 || config.partitions > usize::from(u16::MAX) {
            return bad("backends", "must be from 1 to 65535");
        }
        if config.capacity < config.partitions {
            return bad(
                "memory_bytes",
                format!(
                    "{} pages are less than {} backends",
                    config.capacity, config.partitions
                ),
            );
        }
        if let Some(weights) = &config.weights {
            let good = weights
                .iter()
                .all(|weight| weight.is_finite() && *weight >= 0.0);
            if weights.len() != config.partitions || !good || weights.iter().sum::<f64>() <= 0.0 {
                return bad(
                    "shares",
                    "one finite number >= 0 for each backend, not all 0",
                );
            }
        }
        let name = PolicyName::parse(&config.policy)?;
        let partitions = config.partitions;
        let mut cache = Self {
            name,
            capacity: 0,
            table: Table::new(config.capacity),
            pages: Vec::new(),
            parts: Vec::new(),
            pins: Vec::new(),
            links: Links::default(),
            policies: Vec::new(),
            scheme: Box::new(Global),
            sizes: Sizes {
                pages: vec![0; partitions],
                targets: vec![0; partitions],
            },
            free: Vec::new(),
            tried: vec![false; partitions],
            counters: vec![Counters::default(); partitions],
            balance: WaitBalance::new(config.balance.clone(), partitions),
            config,
        };
        cache.add_frames(cache.config.capacity);
        cache.install(name);
        Ok(cache)
    }

    fn add_frames(&mut self, capacity: usize) {
        let known = self.pages.len();
        if capacity > known {
            self.pages.resize(capacity, NO_PAGE);
            self.parts.resize(capacity, 0);
            self.pins.resize(capacity, 0);
            self.links.grow(capacity);
        }
        // The free list is a stack: the lowest number is taken first.
        let from = self.capacity;
        let mut fresh: Vec<Frame> = (from as Frame..capacity as Frame)
            .rev()
            .filter(|frame| {
                self.pages[*frame as usize] == NO_PAGE && self.pins[*frame as usize] == 0
            })
            .collect();
        std::mem::swap(&mut self.free, &mut fresh);
        self.free.extend(fresh);
        self.capacity = capacity;
    }

    fn install(&mut self, name: PolicyName) {
        self.name = name;
        let count = if name.scheme == SchemeKind::Global {
            1
        } else {
            self.config.partitions
        };
        let bit = self.config.clock_insert_bit;
        self.policies = (0..count).map(|_| name.kind.build(bit)).collect();
        self.scheme = match name.scheme {
            SchemeKind::Global => Box::new(Global),
            SchemeKind::Static => Box::new(Static),
            SchemeKind::Eager => Box::new(Eager),
            SchemeKind::Lazy => Box::new(Lazy::new(self.config.tickets, self.config.seed)),
            SchemeKind::LazyQuota => Box::new(LazyQuota),
        };
        let targets = if name.scheme == SchemeKind::Static {
            static_targets(
                self.capacity,
                self.config.partitions,
                self.config.weights.as_deref(),
            )
        } else {
            equal_targets(self.capacity, self.config.partitions)
        };
        self.retarget(targets);
    }

    fn retarget(&mut self, targets: Vec<usize>) {
        self.sizes.targets = targets;
        self.scheme.retarget(&self.sizes);
    }

    // what is there

    pub fn name(&self) -> PolicyName {
        self.name
    }

    pub fn policy(&self) -> &str {
        &self.config.policy
    }

    pub fn seed(&self) -> u64 {
        self.config.seed
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Frames ever known, those beyond the capacity included.
    pub fn frames(&self) -> usize {
        self.pages.len()
    }

    pub fn partitions(&self) -> usize {
        self.config.partitions
    }

    pub fn resident(&self) -> usize {
        self.table.len()
    }

    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    pub fn counters(&self, partition: usize) -> &Counters {
        &self.counters[partition]
    }

    pub fn balance(&self) -> &WaitBalance {
        &self.balance
    }

    pub fn lookup(&self, page: PageId) -> Option<Frame> {
        self.table.get(&self.pages, page)
    }

    /// The page in a frame; None for a free or orphaned one.
    pub fn page_of(&self, frame: Frame) -> Option<PageId> {
        let page = self.pages[frame as usize];
        (page != NO_PAGE).then_some(page)
    }

    pub fn pins(&self, frame: Frame) -> u32 {
        self.pins[frame as usize]
    }

    pub fn resident_pages(&self) -> impl Iterator<Item = (Frame, PageId)> + '_ {
        self.pages
            .iter()
            .enumerate()
            .filter(|(_, page)| **page != NO_PAGE)
            .map(|(frame, page)| (frame as Frame, *page))
    }

    fn set_of(&self, partition: usize) -> usize {
        if self.name.scheme == SchemeKind::Global {
            0
        } else {
            partition
        }
    }

    // deciding

    /// A resident page was asked for.
    pub fn hit(&mut self, frame: Frame) {
        let partition = usize::from(self.parts[frame as usize]);
        self.counters[partition].hits += 1;
        let set = self.set_of(partition);
        self.policies[set].hit(&mut self.links, frame);
    }

    /// A page of `partition` was asked for that is not (wholly) there.
    pub fn miss(&mut self, partition: usize) {
        self.counters[partition].misses += 1;
    }

    /// Take a frame for a page that is absent; the victim has left already. None: nothing may go.
    pub fn insert(&mut self, page: PageId, partition: usize, cost: u64) -> Option<Inserted> {
        let mut victim = None;
        let mut marked = false;
        let frame = loop {
            let free = !self.free.is_empty();
            match self.scheme.take(&self.sizes, partition, free, &self.tried) {
                Take::Free => break self.free.pop()?,
                Take::Nothing => {
                    self.tried.fill(false);
                    return None;
                }
                Take::From(set) => {
                    if let Some(frame) = self.victim(set) {
                        victim = self.page_of(frame);
                        self.evict(frame);
                        break self.free.pop()?;
                    }
                    self.tried[set] = true;
                    marked = true;
                }
            }
        };
        if marked {
            self.tried.fill(false);
        }
        self.pages[frame as usize] = page;
        self.parts[frame as usize] = partition as u16;
        self.table.insert(&self.pages, frame);
        self.sizes.pages[partition] += 1;
        let set = self.set_of(partition);
        self.policies[set].insert(&mut self.links, frame, cost);
        Some(Inserted { frame, victim })
    }

    fn victim(&mut self, set: usize) -> Option<Frame> {
        let pins = &self.pins;
        self.policies[set].victim(&mut self.links, &|frame| pins[frame as usize] == 0)
    }

    fn evict(&mut self, frame: Frame) {
        self.counters[usize::from(self.parts[frame as usize])].evictions += 1;
        self.remove(frame);
    }

    /// The page leaves. Its frame goes free now, or when its last pin goes.
    pub fn remove(&mut self, frame: Frame) {
        let partition = usize::from(self.parts[frame as usize]);
        let set = self.set_of(partition);
        self.policies[set].remove(&mut self.links, frame);
        self.table.remove(&self.pages, frame);
        self.pages[frame as usize] = NO_PAGE;
        self.sizes.pages[partition] -= 1;
        self.release(frame);
    }

    fn release(&mut self, frame: Frame) {
        if self.pins[frame as usize] == 0 && (frame as usize) < self.capacity {
            self.free.push(frame);
        }
    }

    pub fn pin(&mut self, frame: Frame) {
        self.pins[frame as usize] += 1;
    }

    /// Drop one pin. True if the page is still there and nothing pins it any more.
    pub fn unpin(&mut self, frame: Frame) -> bool {
        let pins = &mut self.pins[frame as usize];
        if *pins == 0 {
            return false; // releasing it again would give one frame to two pages
        }
        *pins -= 1;
        if *pins > 0 {
            return false;
        }
        if self.pages[frame as usize] == NO_PAGE {
            self.release(frame);
            return false;
        }
        true
    }

    /// Whether an unpinned page must leave now: nothing is kept, or its frame was given up.
    pub fn must_go(&self, frame: Frame) -> bool {
        !self.name.keeps || frame as usize >= self.capacity
    }

    pub fn set_cost(&mut self, frame: Frame, cost: u64) {
        let set = self.set_of(usize::from(self.parts[frame as usize]));
        self.policies[set].set_cost(&mut self.links, frame, cost);
    }

    /// One access without data, as simulators make it. The victim, if any, is in the result.
    pub fn access(&mut self, page: PageId, partition: usize, cost: u64) -> (bool, Option<PageId>) {
        if let Some(frame) = self.lookup(page) {
            self.hit(frame);
            return (true, None);
        }
        self.miss(partition);
        if !self.name.keeps {
            return (false, None);
        }
        (
            false,
            self.insert(page, partition, cost)
                .and_then(|inserted| inserted.victim),
        )
    }

    // sizing

    /// A demand miss of `partition` completed; pages trimmed by a new epoch are in the result.
    pub fn complete(
        &mut self,
        partition: usize,
        response_ns: u64,
        busy_ns: u64,
        now_ns: u64,
    ) -> Option<Vec<(Frame, PageId)>> {
        if self
            .balance
            .complete(partition, response_ns, busy_ns, now_ns)
        {
            self.end_epoch()
        } else {
            None
        }
    }

    /// End the epoch now. None if nothing was observed.
    pub fn end_epoch(&mut self) -> Option<Vec<(Frame, PageId)>> {
        let before = self.balance.epochs();
        let fresh = self.balance.end_epoch(&self.sizes.targets);
        if self.balance.epochs() == before {
            return None;
        }
        if let Some(targets) = fresh.filter(|_| self.scheme.adapts()) {
            self.retarget(targets);
        }
        Some(self.trim())
    }

    /// Cut partitions to their targets if the scheme does that; pages that may not go stay.
    pub fn trim(&mut self) -> Vec<(Frame, PageId)> {
        let mut gone = Vec::new();
        if self.scheme.trims() {
            for set in 0..self.policies.len() {
                while self.sizes.pages[set] > self.sizes.targets[set] {
                    let Some(frame) = self.victim(set) else { break };
                    gone.extend(self.page_of(frame).map(|page| (frame, page)));
                    self.evict(frame);
                }
            }
        }
        gone
    }

    pub fn set_targets(&mut self, targets: Vec<usize>) -> Result<Vec<(Frame, PageId)>> {
        if targets.len() != self.config.partitions
            || targets.iter().sum::<usize>() != self.capacity
            || targets.contains(&0)
        {
            return bad(
                "targets",
                format!("at least 1 page each, {} pages in all", self.capacity),
            );
        }
        self.retarget(targets);
        Ok(self.trim())
    }

    pub fn set_balance(&mut self, config: WaitBalanceConfig) {
        self.config.balance = config.clone();
        self.balance.config = config;
    }

    /// Another policy over the same pages: they are taken over in their order of eviction.
    pub fn set_policy(&mut self, policy: &str) -> Result<Vec<(Frame, PageId)>> {
        let name = PolicyName::parse(policy)?;
        let mut order = Vec::with_capacity(self.resident());
        for set in &self.policies {
            order.extend(set.order(&self.links));
        }
        let targets = self.sizes.targets.clone();
        self.config.policy = policy.to_string();
        self.install(name);
        if self.scheme.adapts() {
            self.retarget(targets);
        }
        for frame in order {
            let set = self.set_of(usize::from(self.parts[frame as usize]));
            self.policies[set].insert(&mut self.links, frame, 0);
        }
        let mut gone = self.trim();
        if !name.keeps {
            let idle: Vec<(Frame, PageId)> = self
                .resident_pages()
                .filter(|(frame, _)| self.pins(*frame) == 0)
                .collect();
            for (frame, _) in &idle {
                self.evict(*frame);
            }
            gone.extend(idle);
        }
        Ok(gone)
    }

    /// Another capacity. Pages in frames given up leave now, or when their pins go.
    pub fn resize(&mut self, capacity: usize) -> Result<Vec<(Frame, PageId)>> {
        if capacity < self.config.partitions {
            return bad("memory_bytes", format!("{capacity} pages are too few"));
        }
        let mut gone = Vec::new();
        if capacity > self.capacity {
            self.add_frames(capacity);
        } else {
            self.free.retain(|frame| (*frame as usize) < capacity);
            self.capacity = capacity;
            let idle: Vec<(Frame, PageId)> = self
                .resident_pages()
                .filter(|(frame, _)| *frame as usize >= capacity && self.pins(*frame) == 0)
                .collect();
            for (frame, _) in &idle {
                self.evict(*frame);
            }
            gone.extend(idle);
        }
        let weights: Vec<f64> = self
            .sizes
            .targets
            .iter()
            .map(|target| *target as f64)
            .collect();
        self.retarget(apportion(capacity, &weights, 1));
        gone.extend(self.trim());
        Ok(gone)
    }

    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        let mut held = vec![0; self.config.partitions];
        let mut seen = 0;
        for (frame, page) in self.resident_pages() {
            if self.lookup(page) != Some(frame) {
                return Err(format!(
                    "table: page {page:?} is not found in frame {frame}"
                ));
            }
            held[usize::from(self.parts[frame as usize])] += 1;
            seen += 1;
        }
        if seen != self.table.len() || held != self.sizes.pages {
            return Err(format!(
                "sizes: {held:?} held, {:?} counted",
                self.sizes.pages
            ));
        }
        if self.sizes.targets.iter().sum::<usize>() != self.capacity {
            return Err(format!(
                "targets: {:?} do not sum to {}",
                self.sizes.targets, self.capacity
            ));
        }
        let listed: usize = self.policies.iter().map(|policy| policy.len()).sum();
        if listed != seen {
            return Err(format!("policies: {listed} pages listed, {seen} resident"));
        }
        for policy in &self.policies {
            policy.check_invariants(&self.links)?;
        }
        for frame in &self.free {
            if self.pages[*frame as usize] != NO_PAGE || self.pins[*frame as usize] > 0 {
                return Err(format!("free: frame {frame} is in use"));
            }
        }
        let orphans = self.orphans();
        let taken = (0..self.capacity)
            .filter(|frame| self.in_use(*frame as Frame))
            .count();
        if taken + self.free.len() != self.capacity {
            return Err(format!(
                "frames: {taken} in use ({orphans} orphaned) + {} free are not {}",
                self.free.len(),
                self.capacity
            ));
        }
        Ok(())
    }

    /// Whether a page or a pin holds the frame.
    pub fn in_use(&self, frame: Frame) -> bool {
        frame != NIL && (self.pages[frame as usize] != NO_PAGE || self.pins[frame as usize] > 0)
    }

    /// Frames whose page has left but that somebody still pins.
    pub fn orphans(&self) -> usize {
        (0..self.pages.len())
            .filter(|frame| self.pages[*frame] == NO_PAGE && self.pins[*frame] > 0)
            .count()
    }

    /// Frames beyond the capacity that are still in use after a shrink.
    pub fn beyond(&self) -> usize {
        (self.capacity..self.pages.len())
            .filter(|frame| self.in_use(*frame as Frame))
            .count()
    }

    /// Frames taken: resident and orphaned.
    pub fn used_frames(&self) -> usize {
        self.capacity - self.free.len() + self.beyond()
    }

    pub fn pinned(&self) -> usize {
        self.pins.iter().filter(|pins| **pins > 0).count()
    }
}
