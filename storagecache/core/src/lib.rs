//! The core of storagecache: the cache that decides, the store that holds pages, the disk model.
//!
//! Left may not use right: `types error | policy | partition repartition | cache`; `store` and
//! `device` need only types; `pages` joins cache and store for a live mount; `python` is last.
#![deny(unsafe_code)]

pub mod cache;
pub mod device;
pub mod error;
pub mod pages;
pub mod partition;
pub mod policy;
#[cfg(feature = "python")]
mod python;
pub mod repartition;
pub mod store;
pub mod table;
pub mod types;
