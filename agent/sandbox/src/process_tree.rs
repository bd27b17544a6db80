//! The descendants of this process, and their end. The process adopts orphans (it is a subreaper), so a descendant that
//! has left its process group or session is found, too.

use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, wait};

/// Maximum number of attempts to stop all descendants before they are killed.
const PASSES: usize = 100;

/// Returns the living and dead descendants of this process.
pub(super) fn descendants() -> Vec<Pid> {
    let mut found = Vec::new();
    let mut open = vec![getpid()];
    while let Some(parent) = open.pop() {
        let children = children(parent);
        open.extend(&children);
        found.extend(children);
    }
    found
}

fn children(parent: Pid) -> Vec<Pid> {
    let id = parent.as_raw_nonzero();
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let texts =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let mut all = Vec::new();
    for text in texts {
        all.extend(text.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)));
    }
    all
}

/// Sends a signal to all descendants.
pub(super) fn signal(signal: Signal) {
    for process in descendants() {
        // It may have ended.
        let _ = kill_process(process, signal);
    }
}

/// Kills all descendants, and waits until none is left. `group` is the process group of the program: the kernel kills
/// a group at once, so its members cannot fork faster than they are killed.
pub(super) fn end(group: Option<Pid>) {
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let mut pause = Duration::from_millis(1);
    loop {
        freeze();
        signal(Signal::KILL);
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(Errno::CHILD) => return,
                Err(_) => break,
            }
        }
        // A process that waits for a device ends late. The supervisor stays as long as there is one.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// Stops all descendants: a stopped process does not fork.
fn freeze() {
    let mut before = 0;
    for _ in 0..PASSES {
        let found = descendants();
        for process in &found {
            let _ = kill_process(*process, Signal::STOP);
        }
        if found.len() <= before {
            return;
        }
        before = found.len();
    }
}
