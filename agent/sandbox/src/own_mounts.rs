//! Mounts that only the process of a program sees. They exclude paths from the folders that Landlock permits: a rule of
//! Landlock covers all that is below a folder.

use std::fs;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount_bind, mount_bind_recursive, mount_change,
    mount_remount,
};
use rustix::process::{DumpableBehavior, getgid, getuid, set_dumpable_behavior};
use rustix::thread::UnshareFlags;

use crate::supervision::ProtectedPaths;

/// Protects paths from the calling process and those that it starts. Where the kernel permits neither mounts nor user
/// namespaces, it protects nothing.
///
/// # Errors
/// One sentence: the process has no user of its own any more.
pub(super) fn protect(paths: &ProtectedPaths) -> Result<(), String> {
    if paths.is_empty() || !separate()? {
        return Ok(());
    }
    // From here on a failure leaves the other paths protected.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    if mount_change("/", private).is_ok() {
        // Mounts of their own stay writable below a folder that is not.
        for path in &paths.writable {
            let _ = mount_bind_recursive(path, path);
        }
        for path in &paths.read_only {
            let _ = mount_bind_recursive(path, path).and_then(|()| restrict(path));
        }
        for path in &paths.masked {
            let _ = mount_bind("/dev/null", path).and_then(|()| restrict(path));
        }
    }
    Ok(())
}

/// Gives this process a namespace of mounts: directly if it may, and otherwise as a user of a new namespace with the same
/// ids. Returns whether it has one.
fn separate() -> Result<bool, String> {
    if unshare(UnshareFlags::NEWNS).is_ok() {
        return Ok(true);
    }
    let user = getuid().as_raw();
    let group = getgid().as_raw();
    if unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).is_err() {
        return Ok(false);
    }
    // The files below belong to root while the process is not dumpable.
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    let mapped = fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| fs::write("/proc/self/uid_map", format!("{user} {user} 1")))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("{group} {group} 1")));
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    mapped.map_err(|why| format!("the user namespace cannot be set up: {why}"))?;
    Ok(true)
}

#[expect(deprecated, reason = "only the sharing of descriptors is unsafe, which is not requested")]
fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    rustix::thread::unshare(flags)
}

/// Makes a mount read-only, without devices. The other flags stay: a namespace may not remove those of its parent.
fn restrict(path: &Path) -> Result<(), Errno> {
    let now = statvfs(path)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NODEV;
    for (is_set, flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if now.contains(is_set) {
            flags |= flag;
        }
    }
    mount_remount(path, flags, "")
}
