//! The locks of what threads share: the system's, or those of a model checker, which then decides who
//! goes on at each of them (`interleavings`).

#[cfg(feature = "interleavings")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "interleavings"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
