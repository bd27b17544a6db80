//! Socket activation: systemd opens the socket, and passes it as descriptor 3. So a service can use a port below 1024 without
//! privileges, and connections wait in the socket while the service starts again.

use std::net::TcpListener;

use abide_schema::{Code, Refusal};
use listenfd::ListenFd;

/// The hint of every refusal.
const HINT: &str =
    "the unit has one ListenStream= with a port and without Accept=, as deploy/abide.socket";

/// Takes the socket that was passed to this process; `None` if none was. Call it before a second thread starts: it changes the
/// environment.
///
/// # Errors
/// What was passed is not one listening TCP socket.
pub(crate) fn take_listener() -> Result<Option<TcpListener>, Refusal> {
    // The library also accepts sockets without the variable. They can be meant for a parent.
    let pid = std::env::var("LISTEN_PID").ok().and_then(|pid| pid.trim().parse::<u32>().ok());
    if pid != Some(std::process::id()) {
        return Ok(None);
    }
    let mut passed = ListenFd::from_env();
    match passed.len() {
        0 => return Ok(None),
        1 => {}
        count => return Err(refusal(format!("{count} sockets were passed to the server"))),
    }
    let taken = passed.take_tcp_listener(0);
    let Some(listener) = taken.map_err(|why| refusal(format!("the passed socket: {why}")))? else {
        return Ok(None);
    };
    let listens = rustix::net::sockopt::socket_acceptconn(&listener);
    if !listens.is_ok_and(|listens| listens) {
        return Err(refusal("the passed socket is a connection and does not listen".to_owned()));
    }
    listener
        .set_nonblocking(true)
        // Tools and programs do not get it.
        .and_then(|()| Ok(rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)?))
        .map_err(|why| refusal(format!("the passed socket cannot be used: {why}")))?;
    Ok(Some(listener))
}

fn refusal(detail: String) -> Refusal {
    Refusal::new(Code::BadArguments, detail).hint(HINT)
}
