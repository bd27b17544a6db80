//! Listeners: a TCP port, or a Unix socket for the processes of one user.

use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use abide_schema::{Code, Refusal};
use rustix::process::geteuid;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

use crate::auth::access_config::AccessConfig;
use crate::tls::Tls;

/// An accepted connection.
pub(crate) type Socket = Either<TcpStream, UnixStream>;

/// Where a server listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Accepts a connection, with the address for which it counts.
    pub(crate) async fn accept(&self) -> io::Result<(Socket, IpAddr)> {
        match self {
            Listener::Tcp(listener) => {
                let (socket, peer) = listener.accept().await?;
                // Frames are whole messages: waiting to fill a packet only delays them.
                let _ = socket.set_nodelay(true);
                Ok((Either::Left(socket), peer.ip()))
            }
            Listener::Unix(listener) => {
                let (socket, _) = listener.accept().await?;
                check_user(&socket)?;
                Ok((Either::Right(socket), IpAddr::V4(Ipv4Addr::LOCALHOST)))
            }
        }
    }
}

/// Refuses a process of another user. The permissions of the folder do so first; this does not depend on them.
fn check_user(socket: &UnixStream) -> io::Result<()> {
    let user = socket.peer_cred()?.uid();
    let own = geteuid().as_raw();
    if user == own {
        return Ok(());
    }
    tracing::warn!(name: "other_user_refused", user, "a process of another user was refused");
    Err(io::ErrorKind::ConnectionAborted.into())
}

/// Where a server listens: a TCP port, with or without TLS, and optionally a Unix socket for the programs of its user.
#[derive(Debug)]
pub struct ServerListener {
    pub(crate) tcp: TcpListener,
    pub(crate) tls: Option<Tls>,
    pub(crate) local: Option<SharedListener>,
}

impl From<TcpListener> for ServerListener {
    fn from(tcp: TcpListener) -> ServerListener {
        ServerListener { tcp, tls: None, local: None }
    }
}

impl ServerListener {
    /// Clients of the port need TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> ServerListener {
        self.tls = Some(tls);
        self
    }

    /// Also listens at a Unix socket, without TLS. The bearer of its secret is the local admin.
    #[must_use]
    pub fn with_local(mut self, local: SharedListener) -> ServerListener {
        self.local = Some(local);
        self
    }
}

/// Where programs of one user share an engine.
#[derive(Debug)]
pub struct SharedListener(Listener, AccessConfig);

impl SharedListener {
    /// Listens on a Unix socket with this path, with mode 0600. The caller removes it. It must be in a folder that
    /// only the user of this process can write. Requests need this secret as their token.
    ///
    /// # Errors
    /// The system's error: the path exists, or is too long; or the secret cannot be sent in a header.
    pub fn at_socket(path: &Path, secret: &str) -> io::Result<SharedListener> {
        let access = AccessConfig::for_socket(secret);
        let access =
            access.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why.detail))?;
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(SharedListener(Listener::Unix(listener), access))
    }

    /// Listens on a free loopback port. Requests need this token.
    ///
    /// # Errors
    /// `bad_arguments` if the token cannot be sent in a header; `internal` if there is no free port.
    pub async fn at_loopback(token: &str) -> Result<SharedListener, Refusal> {
        let access = AccessConfig::bearer(token)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(|why| {
            Refusal::new(Code::Internal, format!("cannot listen on a loopback port: {why}"))
        })?;
        Ok(SharedListener(Listener::Tcp(listener), access))
    }

    /// Returns the URL of a loopback port; `None` for a Unix socket.
    #[must_use]
    pub fn url(&self) -> Option<String> {
        match &self.0 {
            Listener::Tcp(listener) => {
                listener.local_addr().ok().map(|address| format!("http://{address}"))
            }
            Listener::Unix(_) => None,
        }
    }

    /// Returns the URL of a loopback port, or the path of a Unix socket, for the log.
    pub(crate) fn address(&self) -> String {
        if let Listener::Unix(listener) = &self.0
            && let Ok(address) = listener.local_addr()
            && let Some(path) = address.as_pathname()
        {
            return path.display().to_string();
        }
        self.url().unwrap_or_default()
    }

    pub(crate) fn parts(self) -> (Listener, AccessConfig) {
        (self.0, self.1)
    }
}
