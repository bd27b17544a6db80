//! Processor time of this process's threads, by name, where the system tells (Linux).

/// Seconds that the threads of a name have run so far; 0 where the system does not tell.
pub(crate) fn of_threads(name: &str) -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
            if read("comm")?.trim() != name {
                return None;
            }
            let nanoseconds: f64 = read("schedstat")?.split(' ').next()?.parse().ok()?;
            Some(nanoseconds / 1e9)
        })
        .sum()
}
