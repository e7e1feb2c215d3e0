//! Lazy: any partition may take any frame; an inverse lottery chooses who gives one up.
//! Cost: O(partitions) a miss without a free frame.
//! Invariants: only partitions that hold pages have tickets.
//! Source: Forney et al., FAST 2002, section 2.3; Waldspurger's inverse lottery for `Complement`.
//! Deviates: the paper's "in inverse proportion to its desired size" is the reciprocal; neither
//! formula looks at the present size, so sizes need not converge to the targets.

use super::{Scheme, Sizes, Take};
use crate::types::SplitMix64;

/// How tickets follow from targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tickets {
    /// 1 / target.
    Reciprocal,
    /// (1 - target / capacity) / (n - 1).
    Complement,
}

#[derive(Debug)]
pub struct Lazy {
    tickets: Tickets,
    weights: Vec<f64>,
    rng: SplitMix64,
}

impl Lazy {
    pub fn new(tickets: Tickets, seed: u64) -> Self {
        Self {
            tickets,
            weights: Vec::new(),
            rng: SplitMix64::new(seed),
        }
    }
}

impl Scheme for Lazy {
    fn take(&mut self, sizes: &Sizes, _into: usize, free: bool, tried: &[bool]) -> Take {
        if free {
            return Take::Free;
        }
        let mut total = 0.0;
        let mut last = None;
        for (index, weight) in self.weights.iter().enumerate() {
            if sizes.pages[index] > 0 && !tried[index] {
                total += weight;
                last = Some(index);
            }
        }
        let Some(last) = last else {
            return Take::Nothing;
        };
        let mut ticket = self.rng.next_f64() * total;
        for (index, weight) in self.weights.iter().enumerate() {
            if sizes.pages[index] > 0 && !tried[index] {
                ticket -= weight;
                if ticket < 0.0 {
                    return Take::From(index);
                }
            }
        }
        Take::From(last)
    }

    fn retarget(&mut self, sizes: &Sizes) {
        let capacity: usize = sizes.targets.iter().sum();
        let others = sizes.targets.len().saturating_sub(1).max(1) as f64;
        self.weights = sizes
            .targets
            .iter()
            .map(|target| match self.tickets {
                Tickets::Reciprocal => 1.0 / (*target).max(1) as f64,
                Tickets::Complement => {
                    // a partition that should have everything still can be drawn
                    ((1.0 - *target as f64 / capacity as f64) / others).max(1e-12)
                }
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(tickets: Tickets) -> Vec<f64> {
        let sizes = Sizes {
            pages: vec![10, 10, 10, 0],
            targets: vec![10, 20, 40, 30],
        };
        let mut lazy = Lazy::new(tickets, 1);
        lazy.retarget(&sizes);
        let mut drawn = vec![0.0; 4];
        for _ in 0..70_000 {
            if let Take::From(index) = lazy.take(&sizes, 0, false, &[false; 4]) {
                drawn[index] += 1.0 / 70_000.0;
            }
        }
        drawn
    }

    #[test]
    fn tickets_are_inverse_to_targets_and_empty_partitions_have_none() {
        let reciprocal = shares(Tickets::Reciprocal);
        for (found, wanted) in reciprocal
            .iter()
            .zip([4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0])
        {
            assert!((found - wanted).abs() < 0.01, "{reciprocal:?}");
        }
        let complement = shares(Tickets::Complement);
        for (found, wanted) in complement
            .iter()
            .zip([0.9 / 2.3, 0.8 / 2.3, 0.6 / 2.3, 0.0])
        {
            assert!((found - wanted).abs() < 0.01, "{complement:?}");
        }
    }
}
