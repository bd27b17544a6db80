//! Processor time of this process's threads, if the system reports it (Linux).

/// Processor time in seconds of the threads with this name; 0 if the system does not report it.
pub(crate) fn of_threads(name: &str) -> f64 {
    of(|comm| comm == name)
}

/// Processor time in seconds of all running threads.
pub(crate) fn of_process() -> f64 {
    of(|_| true)
}

fn of(wanted: impl Fn(&str) -> bool) -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
            if !wanted(read("comm")?.trim()) {
                return None;
            }
            let nanoseconds: f64 = read("schedstat")?.split(' ').next()?.parse().ok()?;
            Some(nanoseconds / 1e9)
        })
        .sum()
}
