//! What can go wrong in the core: bad parameters and broken invariants.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoreError {
    /// A parameter is bad: its name and what is wrong with it.
    Parameter(&'static str, String),
    /// The operating system refused memory.
    Memory(String),
}

impl fmt::Display for CoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(name, problem) => write!(f, "{name}: {problem}"),
            Self::Memory(problem) => write!(f, "memory_bytes: {problem}"),
        }
    }
}

impl std::error::Error for CoreError {}

pub type Result<T> = std::result::Result<T, CoreError>;

/// A bad parameter as an error.
pub fn bad<T>(name: &'static str, problem: impl Into<String>) -> Result<T> {
    Err(CoreError::Parameter(name, problem.into()))
}
