//! Opening a file together with other programs.

use std::env;
use std::fmt;
use std::future::IntoFuture;
use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_schema::lowercase_first;

use crate::abide::DEADLINE;
use crate::remote::{Remote, SharedFile};
use crate::request::RequestFuture;
use crate::{Abide, Error};

/// The variable with the path of the program that runs the engine.
const BINARY: &str = "ABIDE_BINARY";

impl Abide {
    /// Opens a database file together with other programs of this user, in any language, and creates it if it does not
    /// exist. The first program starts the engine (`abide open`) as a process of its own; the others connect to it over a
    /// Unix socket that only this user can use. The engine stops two seconds after the last connection has ended. If it is
    /// killed, the client starts it again, and calls and subscriptions continue.
    ///
    /// It starts the program that the variable `ABIDE_BINARY` names, or else `abide` on the `PATH`.
    ///
    /// ```no_run
    /// use abide_client::Abide;
    /// use abide_client::arguments::CreateSession;
    ///
    /// # async fn example() -> Result<(), abide_client::Error> {
    /// let abide = Abide::open_shared("agents.db").await?;
    /// let session = abide.call(CreateSession::new("support")).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_shared(path: impl AsRef<Path>) -> OpenShared {
        OpenShared {
            path: path.as_ref().to_owned(),
            binary: None,
            token: None,
            starts_engine: true,
            deadline: DEADLINE,
        }
    }
}

/// Opens a shared file when it is awaited.
#[must_use = "a file is opened when it is awaited"]
#[derive(Clone)]
pub struct OpenShared {
    path: PathBuf,
    binary: Option<PathBuf>,
    token: Option<String>,
    starts_engine: bool,
    deadline: Duration,
}

impl OpenShared {
    /// Sets the program that runs the engine: `abide`, or a program with modules of its own.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> OpenShared {
        self.binary = Some(path.into());
        self
    }

    /// Sets a token of the file: the caller is its identity, in place of the local admin.
    pub fn token(mut self, token: impl Into<String>) -> OpenShared {
        self.token = Some(token.into());
        self
    }

    /// Connects only to a process that has the file open, such as a server that is restarted now and then. Without this an
    /// engine is started in its place, and the server finds the file in use.
    pub fn only_running(mut self) -> OpenShared {
        self.starts_engine = false;
        self
    }

    /// Sets how long a call is retried before it fails with [`Error::TimedOut`]. Default: 60 s.
    pub fn deadline(mut self, deadline: Duration) -> OpenShared {
        self.deadline = deadline;
        self
    }

    /// Opens it. Awaiting does the same.
    ///
    /// # Errors
    /// [`Error::EngineNotFound`] if the program cannot be started; [`Error::IncompatibleVersion`] if the engine that runs
    /// speaks another protocol; [`Error::Refused`] if the file cannot be opened, with the code `file_locked` if a
    /// process has it open that does not share it.
    pub async fn open(self) -> Result<Abide, Error> {
        let OpenShared { path, binary, token, starts_engine, deadline } = self;
        let binary = binary
            .or_else(|| env::var_os(BINARY).map(PathBuf::from))
            .unwrap_or_else(|| PathBuf::from("abide"));
        let path = std::path::absolute(&path).map_err(|why| Error::Address {
            url: path.display().to_string(),
            why: lowercase_first(&why.to_string()),
        })?;
        let file = SharedFile { path, binary, starts_engine };
        Ok(Abide::remote(Remote::open(file, token.as_deref()).await?, deadline))
    }
}

impl IntoFuture for OpenShared {
    type Output = Result<Abide, Error>;
    type IntoFuture = RequestFuture<Abide>;

    fn into_future(self) -> RequestFuture<Abide> {
        Box::pin(self.open())
    }
}

impl fmt::Debug for OpenShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is a secret.
        f.debug_struct("OpenShared").field("path", &self.path).finish_non_exhaustive()
    }
}
