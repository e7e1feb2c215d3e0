//! Wait balance: memory moves until no backend is waited for more than another.
//! Units: waits in nanoseconds, sizes in pages; an epoch is `window` demand misses.
//! Cost: O(1) a completion, O(n log n) an epoch.
//! Invariants: the targets' sum is the capacity; none falls below `target_min` by supplying.
//! Source: Forney et al., "Storage-Aware Caching", FAST 2002, section 3.1.   Deviates: the text's
//! gaps (what wait and threshold mean, ties, floors) are resolved in docs/decisions.md; the default
//! preset balances busy time with a threshold of 1.10, `paper` balances response time with 5.

/// Which time of a demand miss counts as wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Service only.
    Busy,
    /// Arrival to completion.
    Response,
}

/// What "increasing" compares: the wait over the mean, or the wait itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trend {
    Relative,
    Absolute,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    Default,
    Paper,
    Scaled,
}

impl Preset {
    pub fn wait(self) -> Wait {
        match self {
            Self::Default => Wait::Busy,
            Self::Paper | Self::Scaled => Wait::Response,
        }
    }

    /// Multiple of the mean wait above which a partition asks for pages.
    pub fn threshold(self, partitions: usize) -> f64 {
        match self {
            Self::Default => 1.10,
            Self::Paper => 5.0,
            Self::Scaled => 1.0 + 0.267 * (partitions as f64 - 1.0),
        }
    }
}

/// The four states of the paper's figure 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Cool,
    Warming,
    Cooling,
    Warm,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Cool => "cool",
            Self::Warming => "warming",
            Self::Cooling => "cooling",
            Self::Warm => "warm",
        }
    }
}

#[derive(Clone, Debug)]
pub struct WaitBalanceConfig {
    pub wait: Wait,
    pub threshold: f64,
    pub window: u64,
    /// Base correction as a fraction of the capacity.
    pub increment: f64,
    pub trend: Trend,
    /// An epoch also ends after so long if it has `min_sample` completions; 0: never.
    pub max_epoch_ns: u64,
    pub min_sample: u64,
    /// Whether targets move at all; epochs, waits and states are kept either way.
    pub active: bool,
}

#[derive(Clone, Debug)]
struct Observed {
    wait_ns: u64,
    previous: f64,
    state: State,
    streak: u32,
    relative: f64,
}

#[derive(Clone, Debug)]
pub struct WaitBalance {
    pub config: WaitBalanceConfig,
    parts: Vec<Observed>,
    completions: u64,
    epoch_started_ns: Option<u64>,
    epochs: u64,
}

impl WaitBalance {
    pub fn new(config: WaitBalanceConfig, partitions: usize) -> Self {
        let empty = Observed {
            wait_ns: 0,
            previous: 0.0,
            state: State::Cool,
            streak: 0,
            relative: 0.0,
        };
        Self {
            config,
            parts: vec![empty; partitions],
            completions: 0,
            epoch_started_ns: None,
            epochs: 0,
        }
    }

    pub fn epochs(&self) -> u64 {
        self.epochs
    }

    pub fn state(&self, partition: usize) -> State {
        self.parts[partition].state
    }

    /// Wait of the last epoch over the mean of all partitions.
    pub fn relative_wait(&self, partition: usize) -> f64 {
        self.parts[partition].relative
    }

    /// A demand miss completed. True when the epoch is full: call `end_epoch`.
    pub fn complete(
        &mut self,
        partition: usize,
        response_ns: u64,
        busy_ns: u64,
        now_ns: u64,
    ) -> bool {
        self.parts[partition].wait_ns += match self.config.wait {
            Wait::Busy => busy_ns,
            Wait::Response => response_ns,
        };
        self.completions += 1;
        let started = *self.epoch_started_ns.get_or_insert(now_ns);
        let overdue = self.config.max_epoch_ns > 0
            && self.completions >= self.config.min_sample
            && now_ns.saturating_sub(started) >= self.config.max_epoch_ns;
        self.completions >= self.config.window || overdue
    }

    /// End the epoch: new targets, or None if they stay. False epochs (nothing observed) return None.
    pub fn end_epoch(&mut self, targets: &[usize]) -> Option<Vec<usize>> {
        if self.completions == 0 {
            return None;
        }
        let waits: Vec<f64> = self.parts.iter().map(|part| part.wait_ns as f64).collect();
        for part in &mut self.parts {
            part.wait_ns = 0;
        }
        self.completions = 0;
        self.epoch_started_ns = None;
        self.epochs += 1;
        let mean = waits.iter().sum::<f64>() / waits.len() as f64;
        if mean == 0.0 {
            return None;
        }
        let capacity: usize = targets.iter().sum();
        let base = (self.config.increment * capacity as f64).max(1.0);
        let mut wants = vec![0.0; waits.len()];
        for (index, part) in self.parts.iter_mut().enumerate() {
            let relative = waits[index] / mean;
            let seen = match self.config.trend {
                Trend::Relative => relative,
                Trend::Absolute => waits[index],
            };
            let change = seen - part.previous;
            let before = part.state;
            part.state = if relative <= self.config.threshold {
                State::Cool
            } else if change > 0.0 {
                State::Warming
            } else if change < 0.0 {
                State::Cooling
            } else {
                State::Warm
            };
            part.streak = if part.state == State::Warming && before == State::Warming {
                part.streak + 1
            } else {
                0
            };
            wants[index] = match part.state {
                State::Warming => base * 2f64.powi(part.streak.min(60) as i32),
                State::Warm => base,
                State::Cool | State::Cooling => 0.0,
            };
            wants[index] = wants[index].min(capacity as f64);
            part.previous = seen;
            part.relative = relative;
        }
        if self.config.active {
            self.reallocate(targets, &wants, capacity)
        } else {
            None
        }
    }

    fn reallocate(&self, targets: &[usize], wants: &[f64], capacity: usize) -> Option<Vec<usize>> {
        let need = wants.iter().sum::<f64>().round() as usize;
        let spare: Vec<f64> = self
            .parts
            .iter()
            .map(|part| (1.0 - part.relative).max(0.0))
            .collect();
        if need == 0 || spare.iter().sum::<f64>() == 0.0 {
            return None;
        }
        let target_min = (capacity / 1000).max(1);
        let asked = crate::partition::apportion(need, &spare, 0);
        let mut fresh = targets.to_vec();
        let mut got = 0;
        for index in 0..targets.len() {
            let give = asked[index].min(targets[index].saturating_sub(target_min));
            fresh[index] -= give;
            got += give;
        }
        if got == 0 {
            return None;
        }
        let gains = crate::partition::apportion(got, wants, 0);
        for (target, gain) in fresh.iter_mut().zip(gains) {
            *target += gain;
        }
        Some(fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balance(threshold: f64) -> WaitBalance {
        let config = WaitBalanceConfig {
            wait: Wait::Busy,
            threshold,
            window: 10,
            increment: 0.01,
            trend: Trend::Relative,
            max_epoch_ns: 100,
            min_sample: 3,
            active: true,
        };
        WaitBalance::new(config, 2)
    }

    fn epoch(balance: &mut WaitBalance, targets: &mut Vec<usize>, waits: [u64; 2]) {
        balance.complete(0, 0, waits[0], 0);
        balance.complete(1, 0, waits[1], 0);
        if let Some(fresh) = balance.end_epoch(targets) {
            *targets = fresh;
        }
        assert_eq!(targets.iter().sum::<usize>(), 1000);
    }

    #[test]
    fn states_and_exponential_correction() {
        let mut b = balance(1.1);
        let mut targets = vec![500, 500];
        epoch(&mut b, &mut targets, [100, 300]);
        assert_eq!((b.state(0), b.state(1)), (State::Cool, State::Warming));
        assert_eq!(targets, vec![490, 510]);
        epoch(&mut b, &mut targets, [100, 400]);
        assert_eq!(targets, vec![470, 530]); // still warming: twice as much
        epoch(&mut b, &mut targets, [100, 200]);
        assert_eq!(b.state(1), State::Cooling);
        assert_eq!(targets, vec![470, 530]);
        epoch(&mut b, &mut targets, [100, 200]);
        assert_eq!(b.state(1), State::Warm);
        assert_eq!(targets, vec![460, 540]);
        epoch(&mut b, &mut targets, [100, 500]);
        assert_eq!(targets, vec![450, 550]); // warming anew: from the base
        epoch(&mut b, &mut targets, [100, 100]);
        assert_eq!(b.state(1), State::Cool);
        assert_eq!(b.epochs(), 6);
    }

    #[test]
    fn a_supplier_keeps_the_floor() {
        let mut b = balance(1.1);
        let mut targets = vec![3, 997];
        for k in 1..20u64 {
            epoch(&mut b, &mut targets, [1, 100 * k]);
        }
        assert_eq!(targets, vec![1, 999]);
    }

    #[test]
    fn an_epoch_ends_by_window_or_by_time_with_enough_samples() {
        let mut b = balance(1.1);
        assert!(!b.complete(0, 0, 1, 0));
        assert!(!b.complete(0, 0, 1, 500));
        assert!(b.complete(0, 0, 1, 500));
        let mut b = balance(1.1);
        for _ in 0..9 {
            assert!(!b.complete(0, 0, 1, 0));
        }
        assert!(b.complete(0, 0, 1, 0));
    }
}
