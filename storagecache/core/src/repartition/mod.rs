//! Repartitioners: how large each partition should be.

mod wait_balance;

pub use wait_balance::{Preset, State, Trend, Wait, WaitBalance, WaitBalanceConfig};
