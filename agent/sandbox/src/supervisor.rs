//! The supervisor of a program: a process between the server and the program. It starts the program with its limits,
//! forwards the request to stop, and ends every descendant when the program ends, when it is asked to, or when the
//! server disappears.
//!
//! The same executable is both the supervisor and, in a second process, the one that applies the limits to itself and
//! then becomes the program.

use std::process::ExitCode;

/// Runs the supervisor if this process was started as one; the caller then exits with the code. A program that is a
/// [`Launcher`](super::Launcher) calls it first in `main`, before it starts a thread.
///
/// It also keeps the descriptors that this process has inherited, except the standard streams, from all programs that
/// the process starts: files that a shell or a service manager has left open would otherwise be open in every tool. Sockets
/// that systemd passes to this process stay as they are, because it may execute itself again before it takes them.
#[must_use]
pub fn sandbox_exec() -> Option<ExitCode> {
    #[cfg(unix)]
    close_fds::set_fds_cloexec(FIRST_INHERITED, &passed_sockets());
    #[cfg(target_os = "linux")]
    return linux::sandbox_exec();
    #[cfg(not(target_os = "linux"))]
    None
}

/// The sockets that systemd passes at most.
#[cfg(unix)]
const MAX_PASSED: i32 = 16;

/// Returns the descriptors of sockets that systemd passes to this process, see `sd_listen_fds(3)`.
#[cfg(unix)]
fn passed_sockets() -> Vec<i32> {
    if read_number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let count = read_number("LISTEN_FDS").and_then(|count| i32::try_from(count).ok()).unwrap_or(0);
    (FIRST_INHERITED..FIRST_INHERITED + count.min(MAX_PASSED)).collect()
}

#[cfg(unix)]
fn read_number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.trim().parse().ok()
}

/// The first descriptor after the standard streams.
#[cfg(unix)]
const FIRST_INHERITED: i32 = 3;

#[cfg(target_os = "linux")]
mod linux {
    use std::env;
    use std::ffi::OsString;
    use std::fs::{self, DirBuilder};
    use std::io::{self, Write as _};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::DirBuilderExt as _;
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::{Command, ExitCode, ExitStatus, Stdio};
    use std::time::Duration;

    use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2, statvfs};
    use rustix::io::Errno;
    use rustix::process::{
        DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, Signal, fchdir, getpid, getppid,
        getrlimit, pidfd_open, set_child_subreaper, set_dumpable_behavior,
        set_parent_process_death_signal, setpriority_process, setrlimit, setsid,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;
    use tokio::signal::unix::{SignalKind, signal};
    use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

    use crate::config::SandboxLimits;
    use crate::landlocked;
    use crate::own_mounts;
    use crate::private_processes;
    use crate::privileges::{self, Situation};
    use crate::process_tree;
    use crate::supervision::{
        COMMAND, DID_NOT_START, InnerSpec, NOT_STARTED, OWN_PROGRAM, SPEC, Spec, WAS_STOPPED,
        WorkingFolder,
    };

    /// The variable with the specification of the second process.
    const INNER: &str = "ABIDE_SANDBOX_INNER";

    /// The variable that makes it the first process of a namespace, with the id of the supervisor. It starts another one,
    /// which becomes the program.
    const FIRST: &str = "ABIDE_SANDBOX_FIRST";

    /// The id of the first process in its namespace.
    const FIRST_ID: u32 = 1;

    /// How often the number of processes is checked.
    const COUNT: Duration = Duration::from_millis(20);

    /// The highest priority of a process, and the usual one.
    const HIGHEST: i32 = -20;
    const USUAL: i32 = 0;

    /// How long the command at the end may take.
    const AT_END: Duration = Duration::from_secs(10);

    pub(super) fn sandbox_exec() -> Option<ExitCode> {
        let mut arguments = env::args_os().skip(1);
        if arguments.next()? != *COMMAND {
            return None;
        }
        let argv: Vec<OsString> = arguments.collect();
        // Other processes cannot read the specification.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        if let Ok(text) = env::var(INNER) {
            let spec: InnerSpec = serde_json::from_str(&text).ok()?;
            return Some(match env::var(FIRST).ok() {
                Some(supervisor) => first_process(&spec, &argv, &supervisor),
                None => become_program(&spec, &argv),
            });
        }
        let spec: Spec = serde_json::from_str(&env::var(SPEC).ok()?).ok()?;
        Some(supervise(&spec, &argv))
    }

    fn report(nonce: &str, kind: &str, why: &str) {
        // Without a reader there is no one to inform.
        let why = why.replace('\n', " ");
        let _ = writeln!(io::stderr(), "{nonce} {kind} {why}");
    }

    /// Why supervision ended.
    enum End {
        Exited(ExitStatus),
        Stopped,
        TooManyProcesses,
        DiskFull,
    }

    fn supervise(spec: &Spec, argv: &[OsString]) -> ExitCode {
        let code = match begin(spec, argv) {
            Ok(code) => code,
            Err(why) => {
                report(&spec.nonce, DID_NOT_START, &format!("no supervisor: {why}"));
                NOT_STARTED
            }
        };
        process_tree::end(None);
        let _ = fs::remove_dir_all(&spec.temporary);
        ExitCode::from(code)
    }

    fn begin(spec: &Spec, argv: &[OsString]) -> io::Result<u8> {
        set_child_subreaper(Some(getpid()))?;
        let parent = i32::try_from(spec.parent).ok().and_then(Pid::from_raw);
        let parent = parent.ok_or(io::ErrorKind::InvalidInput)?;
        let server = pidfd_open(parent, PidfdFlags::empty())?;
        // The server may have ended before, and another process may have its id.
        if getppid() != Some(parent) {
            return Err(io::Error::other("the server has ended"));
        }
        DirBuilder::new().mode(0o700).create(&spec.temporary)?;
        // The other backends have namespaces of their own.
        let private = spec.inner.landlock.is_some() && private_processes::separate()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Its processes must not keep it from running. Only a privileged supervisor can raise its priority; the
        // kernel limits the number of processes of all others.
        let _ = setpriority_process(None, HIGHEST);
        let (end, group) = runtime.block_on(watch(spec, argv, server, private))?;
        process_tree::end(group);
        let code = match end {
            End::Exited(status) => {
                let by_signal = status.signal().map_or(1, |signal| 128 + signal);
                status.code().unwrap_or(by_signal)
            }
            End::Stopped => 137,
            End::TooManyProcesses => {
                let why = format!("it had more than {} processes", spec.processes);
                report(&spec.nonce, WAS_STOPPED, &why);
                137
            }
            End::DiskFull => {
                let why = format!("the disk has less than {} MB left", spec.free_bytes >> 20);
                report(&spec.nonce, WAS_STOPPED, &why);
                137
            }
        };
        runtime.block_on(clean_up(spec));
        Ok(u8::try_from(code & 0xFF).unwrap_or(1))
    }

    /// Runs the program until it ends or has to.
    async fn watch(
        spec: &Spec,
        argv: &[OsString],
        server: OwnedFd,
        private: bool,
    ) -> io::Result<(End, Option<Pid>)> {
        let mut stop = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let server = watch_end(server)?;
        let mut inner = spec.inner.clone();
        inner.supervisor = if private { FIRST_ID } else { std::process::id() };
        let text = serde_json::to_string(&inner)?;
        let mut command = tokio::process::Command::new(OWN_PROGRAM);
        command.arg(COMMAND).args(argv).env_remove(SPEC).env(INNER, text);
        if private {
            command.env(FIRST, std::process::id().to_string());
        }
        let mut child = command.spawn()?;
        // The second process leads a session, and so a group, of its own.
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let mut count = interval(COUNT);
        count.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut deadline = None;
        loop {
            let over = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                status = child.wait() => return Ok((End::Exited(status?), group)),
                _ = server.readable() => return Ok((End::Stopped, group)),
                () = over => return Ok((End::Stopped, group)),
                _ = stop.recv(), if deadline.is_none() => {
                    process_tree::signal(Signal::TERM);
                    deadline = Some(Instant::now() + Duration::from_millis(spec.grace_ms));
                }
                _ = interrupt.recv() => {}
                _ = count.tick() => {
                    let first = u64::from(private);
                    if process_tree::descendants().len() as u64 > spec.processes + first {
                        return Ok((End::TooManyProcesses, group));
                    }
                    if is_disk_full(spec) {
                        return Ok((End::DiskFull, group));
                    }
                }
            }
        }
    }

    /// Returns `true` if one of the disks that the program writes to has too little space left. What it leaves is for
    /// others.
    fn is_disk_full(spec: &Spec) -> bool {
        [&spec.workspace, &spec.temporary].into_iter().any(|folder| {
            let disk = statvfs(folder).ok();
            disk.is_some_and(|it| it.f_bavail.saturating_mul(it.f_frsize) < spec.free_bytes)
        })
    }

    /// Returns a process whose end makes it readable. A thread could not wait for it: none starts beside a new
    /// namespace of processes.
    #[expect(
        deprecated,
        reason = "only another owner could replace the descriptor, and there is none"
    )]
    fn watch_end(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
        AsyncFd::with_interest(process, Interest::READABLE)
    }

    /// Removes what the program left behind outside of its process tree.
    async fn clean_up(spec: &Spec) {
        let Some((program, arguments)) = spec.at_end.split_first() else { return };
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).env_remove(SPEC).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Ok(mut child) = command.spawn() {
            let _ = tokio::time::timeout(AT_END, child.wait()).await;
        }
    }

    fn first_process(spec: &InnerSpec, argv: &[OsString], supervisor: &str) -> ExitCode {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg(COMMAND).args(argv).env_remove(FIRST);
        let supervisor = supervisor.parse().unwrap_or_default();
        ExitCode::from(private_processes::run_first(supervisor, &mut command).unwrap_or_else(
            |why| {
                report(&spec.nonce, DID_NOT_START, &format!("no first process: {why}"));
                NOT_STARTED
            },
        ))
    }

    fn become_program(spec: &InnerSpec, argv: &[OsString]) -> ExitCode {
        let why = match prepare(spec, argv) {
            Ok(mut command) => command.exec().to_string(),
            Err(why) => why,
        };
        let program = argv.first().map(|it| it.to_string_lossy()).unwrap_or_default();
        report(&spec.nonce, DID_NOT_START, &format!("cannot start {program}: {why}"));
        ExitCode::from(NOT_STARTED)
    }

    /// Applies the limits to this process. Returns the program to become.
    fn prepare(spec: &InnerSpec, argv: &[OsString]) -> Result<Command, String> {
        let text = |why: Errno| io::Error::from(why).to_string();
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(text)?;
        let supervisor = i32::try_from(spec.supervisor).ok().and_then(Pid::from_raw);
        if getppid() != supervisor {
            return Err("the supervisor has ended".to_owned());
        }
        setsid().map_err(text)?;
        let _ = setpriority_process(None, USUAL);
        own_mounts::protect(&spec.protected)?;
        enter(&spec.folder)?;
        let restricted = match &spec.landlock {
            Some(paths) => Some(landlocked::restrict(paths).map_err(|why| why.to_string())?),
            None => None,
        };
        let (program, arguments) = argv.split_first().ok_or("the command is empty")?;
        let mut command = Command::new(program);
        command.args(arguments).env_remove(INNER);
        set_limits(&spec.limits).map_err(text)?;
        // The other backends need privileges to isolate, and remove them then.
        if let Some(has_landlock) = restricted {
            let has_own_objects = spec.supervisor == FIRST_ID;
            let unix_sockets = spec.unix_sockets;
            privileges::drop_all(Situation { has_landlock, has_own_objects, unix_sockets })?;
        }
        Ok(command)
    }

    /// Changes the working directory. A relative folder does not leave its root, even if it is replaced by a symlink
    /// during the call.
    fn enter(folder: &WorkingFolder) -> Result<(), String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = if folder.below.is_absolute() {
            open(&folder.below, flags, Mode::empty())
        } else {
            open(&folder.root, flags, Mode::empty()).and_then(|root| {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                openat2(root, &folder.below, flags, Mode::empty(), resolve)
            })
        };
        opened
            .and_then(fchdir)
            .map_err(|why| format!("folder {}: {}", folder.below.display(), io::Error::from(why)))
    }

    /// Sets the resource limits, as far as they are lower than the current ones.
    fn set_limits(limits: &SandboxLimits) -> Result<(), Errno> {
        // The kernel counts all threads of the user, including those of other programs, so this limit is a coarse one.
        // The supervisor counts the processes of the program.
        let tasks = tasks_of_machine().saturating_add(limits.processes.saturating_mul(8));
        for (resource, max) in [
            (Resource::Core, 0),
            (Resource::Cpu, limits.cpu_seconds),
            (Resource::Data, limits.memory_mb.saturating_mul(1 << 20)),
            (Resource::Fsize, limits.file_mb.saturating_mul(1 << 20)),
            (Resource::Nofile, limits.open_files),
            (Resource::Nproc, tasks),
        ] {
            let before = getrlimit(resource).maximum.unwrap_or(u64::MAX);
            let max = Some(max.min(before));
            setrlimit(resource, Rlimit { current: max, maximum: max })?;
        }
        Ok(())
    }

    /// Returns the number of tasks, from `0.00 0.01 0.05 1/523 12345`.
    fn tasks_of_machine() -> u64 {
        let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let tasks = text.split_whitespace().nth(3).and_then(|it| it.split_once('/'));
        tasks.and_then(|(_, all)| all.parse().ok()).unwrap_or(4_096)
    }
}
