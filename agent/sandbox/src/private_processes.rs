//! A namespace of processes for one program: it sees no other process, and all of its processes end with the first one.
//! System V objects, which would outlive the program, have a namespace of their own, too.

use std::fs;
use std::io;
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{
    DumpableBehavior, Signal, WaitOptions, getgid, getuid, set_dumpable_behavior,
    set_parent_process_death_signal, setsid, wait,
};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, configure_capability_in_ambient_set,
    set_capabilities,
};

/// The namespaces of the processes that this one starts.
const OWN: UnshareFlags = UnshareFlags::NEWPID.union(UnshareFlags::NEWIPC);

/// Mounts below `/proc` that hide nothing of it.
const EMPTY: [&str; 2] = ["/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd"];

/// Gives the processes that this one starts a namespace of their own: directly if it may, and otherwise as a user of a
/// new namespace with the same ids. Returns whether they have one. This process must have one thread.
///
/// # Errors
/// This process has no user of its own any more.
pub(super) fn separate() -> io::Result<bool> {
    if unshare(OWN).is_ok() {
        return Ok(true);
    }
    // The kernel mounts no `/proc` for a new user that would show more than the present one.
    if !is_proc_whole() || unshare(UnshareFlags::NEWUSER).is_err() {
        return Ok(false);
    }
    let user = getuid().as_raw();
    let group = getgid().as_raw();
    // The files below belong to root while the process is not dumpable.
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    let mapped = fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| fs::write("/proc/self/uid_map", format!("{user} {user} 1")))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("{group} {group} 1")));
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    mapped?;
    // The first process mounts `/proc`. A user other than root keeps a capability over the start of a program only if it is
    // ambient.
    Ok(unshare(OWN).is_ok() && keep(CapabilitySet::SYS_ADMIN).is_ok())
}

#[expect(deprecated, reason = "only the sharing of descriptors is unsafe, which is not requested")]
fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    rustix::thread::unshare(flags)
}

fn keep(capability: CapabilitySet) -> Result<(), Errno> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= capability;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(capability, true)
}

fn is_proc_whole() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    places.filter(|place| place.starts_with("/proc/")).all(|place| EMPTY.contains(&place))
}

/// Is the first process of the namespace: runs a command, and returns its exit code. The kernel ends all other processes
/// of the namespace with this one.
///
/// # Errors
/// The command cannot be started, or the parent has ended.
pub(super) fn run_first(parent: u32, command: &mut Command) -> io::Result<u8> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Only `/proc` of the namespace of the parent has its id.
    if parent_in_proc() != Some(parent) {
        return Err(io::Error::other("the supervisor has ended"));
    }
    setsid()?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    if unshare(UnshareFlags::NEWNS).is_ok() && mount_change("/", private).is_ok() {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        // Without it the program sees the names of other processes, and does not reach them.
        let _ = mount("proc", "/proc", "proc", flags, None);
    }
    let program = command.spawn()?.id();
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((process, status)))
                if process.as_raw_nonzero().get().cast_unsigned() == program =>
            {
                let by_signal = status.terminating_signal().map_or(1, |signal| 128 + signal);
                let code = status.exit_status().unwrap_or(by_signal);
                return Ok(u8::try_from(code & 0xFF).unwrap_or(1));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
}

fn parent_in_proc() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}
