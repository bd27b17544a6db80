//! Processor time of this process's threads, where the system tells (Linux).

/// Seconds that the threads of a name have run so far; 0 where the system does not tell.
pub(crate) fn of_threads(name: &str) -> f64 {
    of(|comm| comm == name)
}

/// Seconds that all threads which live have run so far.
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
