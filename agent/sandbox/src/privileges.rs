//! What a program of the backend `local` cannot ask of the kernel. It has no capabilities and gets none, even if the
//! server runs as root. A filter of system calls refuses what reaches the machine or other programs.

use std::collections::BTreeMap;
use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter, sock_filter,
};

/// What decides which calls are refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// Whether Landlock restricts the calling thread: it limits what can be debugged.
    pub(super) has_landlock: bool,
    /// Whether the program has a namespace of System V objects, which ends with it.
    pub(super) has_own_objects: bool,
    /// Whether the program may use Unix sockets.
    pub(super) unix_sockets: bool,
}

/// Refused in every situation.
const REFUSED: &[libc::c_long] = &[
    // The clock and the machine.
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_settimeofday,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // The kernel itself, and its less reviewed interfaces.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Files without a path.
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    // Keys belong to the user, and outlive the program.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // The memory of other processes.
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

/// Refused if the objects would outlive the program.
const OBJECTS: &[libc::c_long] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Refused without Landlock, which permits them between the processes of one sandbox.
const DEBUGGING: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
];

/// Refused for a process that is named: its first argument. 0 is the calling one.
const OF_PROCESS: &[libc::c_long] = &[
    libc::SYS_prlimit64,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
];

/// Refused for a process, group or user that is named: the second argument. 0 is the calling process.
const OF_GROUP: &[libc::c_long] = &[libc::SYS_setpriority, libc::SYS_ioprio_set];

/// System calls of the 32-bit interface `x32` begin here. Its numbers are not in the lists.
const X32: u32 = 0x4000_0000;

/// Takes all capabilities from the calling thread and filters its system calls, for good.
///
/// # Errors
/// One sentence: the program must not start.
pub(super) fn drop_all(situation: Situation) -> Result<(), String> {
    drop_capabilities()
        .map_err(|why| format!("its capabilities cannot be dropped: {}", io::Error::from(why)))?;
    let filter = filter(situation).map_err(not_filtered)?;
    apply_filter(&filter).map_err(not_filtered)
}

fn not_filtered(why: impl std::fmt::Display) -> String {
    format!("its system calls cannot be filtered: {why}")
}

fn drop_capabilities() -> Result<(), Errno> {
    // From here on no file gives capabilities to the thread, also not to root.
    set_no_new_privs(true)?;
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        // The kernel does not know the higher ones.
        match capability_is_in_bounding_set(capability) {
            // Only a privileged process can, and only it has to.
            Ok(true) => drop(remove_capability_from_bounding_set(capability)),
            Ok(false) => {}
            Err(_) => break,
        }
    }
    // A kernel without them has none to clear.
    let _ = clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Returns the filter. A refused call fails with `EPERM`, as without the capability for it.
fn filter(situation: Situation) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    rules.extend(REFUSED.iter().map(|call| (*call, Vec::new())));
    if !situation.has_landlock {
        rules.extend(DEBUGGING.iter().map(|call| (*call, Vec::new())));
    }
    if !situation.has_own_objects {
        rules.extend(OBJECTS.iter().map(|call| (*call, Vec::new())));
    }
    let named = |argument| SeccompRule::new(vec![is_not(argument, 0)?]);
    for call in OF_PROCESS {
        rules.insert(*call, vec![named(0)?]);
    }
    for call in OF_GROUP {
        rules.insert(*call, vec![named(1)?]);
    }
    rules.insert(libc::SYS_setpriority, vec![named(0)?, named(1)?]);
    // A user namespace gives capabilities within it.
    let user = u64::from(libc::CLONE_NEWUSER.cast_unsigned());
    let in_user = SeccompCmpOp::MaskedEq(user);
    let in_user = SeccompCondition::new(0, SeccompCmpArgLen::Dword, in_user, user)?;
    for call in [libc::SYS_clone, libc::SYS_unshare] {
        rules.insert(call, vec![SeccompRule::new(vec![in_user.clone()])?]);
    }
    let mut families = vec![libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    if situation.unix_sockets {
        families.push(libc::AF_UNIX)
    } else {
        let datagram = u64::from(libc::SOCK_DGRAM.cast_unsigned());
        let kind = SeccompCmpOp::MaskedEq(0xF);
        let kind = SeccompCondition::new(1, SeccompCmpArgLen::Dword, kind, datagram)?;
        rules.insert(libc::SYS_socketpair, vec![SeccompRule::new(vec![kind])?]);
    }
    let other = families.into_iter().map(|it| is_not(0, u64::from(it.cast_unsigned())));
    let other = other.collect::<Result<Vec<_>, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(other)?]);
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let machine = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, machine)?;
    let filter: BpfProgram = filter.try_into()?;
    Ok([unknown_calls().to_vec(), filter].concat())
}

fn is_not(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
}

/// Returns the first instructions: the calls of `x32`, and `clone3`, whose flags a filter cannot read, do not exist. C
/// libraries then use `clone`.
fn unknown_calls() -> [sock_filter; 4] {
    let clone3 = u32::try_from(libc::SYS_clone3).unwrap_or_default();
    [
        // The number of the call is the first word.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, X32, 1, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, clone3, 0, 1),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(),
            0,
            0,
        ),
    ]
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}
