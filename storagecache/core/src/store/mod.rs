//! Where pages are held.

mod memory;

pub use memory::MemoryStore;
