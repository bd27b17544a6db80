//! The number of open files of this process, and its limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to the maximum. Returns the new limit.
pub(super) fn raise_open_files() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let now = if raised.is_ok() { maximum } else { current };
    now.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX))
}

/// Number of open files of this process.
pub(super) fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
