//! Processor time of this process's threads, if the system reports it (Linux).

/// Processor time in seconds of the threads with this name; 0 if the system does not report it.
pub(crate) fn thread_seconds(name: &str) -> f64 {
    sum_seconds(|comm| comm == name)
}

/// Processor time in seconds of all running threads.
pub(crate) fn process_seconds() -> f64 {
    sum_seconds(|_| true)
}

fn sum_seconds(is_included: impl Fn(&str) -> bool) -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
            if !is_included(read("comm")?.trim()) {
                return None;
            }
            let nanoseconds: f64 = read("schedstat")?.split(' ').next()?.parse().ok()?;
            Some(nanoseconds / 1e9)
        })
        .sum()
}
