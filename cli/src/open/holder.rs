//! Asks the process that has a file open whether it answers.

use std::io;

use abide_engine::Holder;
use rustix::process::geteuid;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};

/// The answer of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenReply {
    /// It accepts connections.
    Ready,
    /// It is a process of another user.
    OtherUser,
    /// None: it does not share its engine, is about to end, or was killed.
    None,
}

/// Asks until a moment, or until the process answers or ends. A process that is opening the file answers when it has opened
/// it, which can take minutes: it may copy and migrate the file.
pub(super) async fn ask(holder: &Holder, until: Option<Instant>) -> OpenReply {
    if !holder.is_shared() {
        return OpenReply::None;
    }
    let asked = request_readiness(holder);
    let reply = match until {
        Some(until) => timeout_at(until, asked).await.unwrap_or(Ok(false)),
        None => asked.await,
    };
    match reply {
        Ok(true) => OpenReply::Ready,
        Err(why) if why.kind() == io::ErrorKind::PermissionDenied => OpenReply::OtherUser,
        Ok(false) | Err(_) => OpenReply::None,
    }
}

async fn request_readiness(holder: &Holder) -> io::Result<bool> {
    if let Some(path) = &holder.socket {
        let socket = UnixStream::connect(path).await?;
        // Another user could have replaced the socket, if its folder is in a place that others can write.
        if socket.peer_cred()?.uid() != geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        return is_ready(socket, holder.token.as_deref()).await;
    }
    let address = holder.url.as_deref().and_then(|url| url.strip_prefix("http://"));
    let socket = TcpStream::connect(address.unwrap_or_default()).await?;
    // With the token the request counts as a use, so that the engine does not end before the program connects.
    is_ready(socket, holder.token.as_deref()).await
}

async fn is_ready(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    token: Option<&str>,
) -> io::Result<bool> {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request =
        format!("GET /ready HTTP/1.1\r\nhost: localhost\r\n{token}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut status = [0; SUCCESS.len()];
    stream.read_exact(&mut status).await?;
    Ok(&status == SUCCESS)
}

const SUCCESS: &[u8; 12] = b"HTTP/1.1 200";
