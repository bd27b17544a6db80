//! Notifications to systemd, or another service manager with its protocol (`sd_notify`): the server is ready, reloads or stops, and
//! it is alive.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use std::{env, io};

use abide_engine::Engine;
use rustix::time::{ClockId, clock_gettime};
use tokio::signal::unix::Signal;
use tokio::time::MissedTickBehavior;

/// The service manager that has started this process. Without one, nothing is sent.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How often it expects a sign of life.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// From the environment of this process: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub(crate) fn of_process() -> ServiceManager {
        let name = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let socket = name.and_then(|name| {
            open(&name)
                .inspect_err(|why| {
                    tracing::warn!(name: "service_manager_unreachable", %why, "the service manager cannot be told the state of the server");
                })
                .ok()
        });
        let watchdog = socket.as_ref().and_then(|_| {
            watchdog_interval(env::var("WATCHDOG_USEC").ok(), env::var("WATCHDOG_PID").ok())
        });
        ServiceManager { socket, watchdog }
    }

    /// The server accepts requests.
    pub(crate) fn tell_ready(&self) {
        self.send("READY=1\nSTATUS=serving");
    }

    /// The server finishes what has begun, and stops.
    pub(crate) fn tell_stopping(&self) {
        self.send("STOPPING=1\nSTATUS=finishing what has begun");
    }

    /// Returns `true` if a service manager has started this process.
    pub(crate) fn is_present(&self) -> bool {
        self.socket.is_some()
    }

    /// Tells that the server is alive and that it has been reloaded, if anyone wants to know it. A server whose engine has failed is
    /// not alive: with `WatchdogSec=` the service manager starts it again.
    pub(crate) async fn attend(&self, engine: &Engine, reload_requests: Option<Signal>) {
        tokio::join!(self.answer_reloads(reload_requests), self.tell_alive(engine));
    }

    async fn tell_alive(&self, engine: &Engine) {
        let Some(watchdog) = self.watchdog else { return };
        let mut beat = tokio::time::interval(watchdog / 2);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            if engine.ready().is_ok() {
                self.send("WATCHDOG=1");
            }
        }
    }

    /// `systemctl reload` and people send SIGHUP. Files are read again when they change, so nothing is left to do for it.
    async fn answer_reloads(&self, requests: Option<Signal>) {
        let Some(mut requests) = requests else { return };
        while requests.recv().await.is_some() {
            tracing::info!(name: "reload_requested", "a reload was requested: files are read again when they change");
            let now = clock_gettime(ClockId::Monotonic);
            let us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
            self.send(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
            self.tell_ready();
        }
    }

    /// Sends a state. A service manager that does not read it must not stop the server.
    fn send(&self, state: &str) {
        let Some((socket, address)) = &self.socket else { return };
        match socket.send_to_addr(state.as_bytes(), address) {
            Ok(_) => {}
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                tracing::debug!(state, "the service manager does not read");
            }
            Err(why) => {
                tracing::warn!(name: "service_manager_unreachable", %why, "the service manager cannot be told the state of the server");
            }
        }
    }
}

/// Opens the socket with this name: a path, or with `@` a name of Linux without a file.
fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => abstract_address(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_name: &[u8]) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns how often a sign of life is expected of this process; `None` if it is not.
fn watchdog_interval(usec: Option<String>, pid: Option<String>) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse::<u32>() != Ok(std::process::id())) {
        return None;
    }
    let us: u64 = usec?.parse().ok()?;
    (us > 1).then(|| Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn a_sign_of_life_is_expected_of_the_named_process() {
        let own = std::process::id().to_string();
        let other = (std::process::id() + 1).to_string();
        for (usec, pid, expected) in [
            (Some("30000000"), None, Some(Duration::from_secs(30))),
            (Some("30000000"), Some(&*own), Some(Duration::from_secs(30))),
            (Some("30000000"), Some(&*other), None),
            (Some("30000000"), Some("x"), None),
            (Some("0"), None, None),
            (Some("-1"), None, None),
            (None, None, None),
        ] {
            let interval = watchdog_interval(usec.map(str::to_owned), pid.map(str::to_owned));
            assert_eq!(interval, expected, "{usec:?} {pid:?}");
        }
    }

    #[test]
    fn the_socket_is_a_path_or_an_abstract_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("the path is free");
        let mut sockets = vec![(path.into_os_string(), by_path)];
        #[cfg(target_os = "linux")]
        {
            let name = format!("abide-notify-{}", std::process::id());
            let address = abstract_address(name.as_bytes()).expect("it is a name");
            let by_name = UnixDatagram::bind_addr(&address).expect("the name is free");
            sockets.push((OsString::from(format!("@{name}")), by_name));
        }
        for (name, receiver) in sockets {
            let socket = open(&name).unwrap_or_else(|why| panic!("{name:?}: {why}"));
            ServiceManager { socket: Some(socket), watchdog: None }.tell_ready();
            let mut state = [0; 64];
            let bytes = receiver.recv(&mut state).expect("it was sent");
            assert_eq!(&state[..bytes], b"READY=1\nSTATUS=serving", "{name:?}");
        }
    }

    /// Without a service manager nothing is sent, and with one that is gone the server goes on.
    #[test]
    fn a_service_manager_that_is_gone_is_not_an_error() {
        ServiceManager { socket: None, watchdog: None }.tell_stopping();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let gone = open(folder.path().join("gone").as_os_str()).expect("it is a path");
        ServiceManager { socket: Some(gone), watchdog: None }.tell_stopping();
    }
}
