//! Getting hold of a store of sessions: a server's by its address, or a file in this process.

use std::path::Path;
use std::time::Duration;

use abide_client::{Abide, Error};
use abide_engine::{Config, Engine};
use abide_schema::{Code, Refusal};

use crate::failure::Failure;
use crate::options::Options;

/// How long a person waits for an answer before being told that there is none.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is to happen where `--db` names a file that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It is made.
    Make,
    /// There is nothing to read, and the name was probably mistyped.
    Refuse,
}

/// Connects to what the options name.
///
/// # Errors
/// Nobody answers there, or the file cannot be opened.
pub(crate) async fn connect(options: &Options, absent: Absent) -> Result<Abide, Failure> {
    if let Some(file) = &options.db {
        if absent == Absent::Refuse && !file.exists() {
            let detail = format!("{} does not exist", file.display());
            let hint = "check the path, or leave out --db to ask a server";
            return Err(Refusal::new(Code::NotFound, detail).hint(hint).into());
        }
        check_folder(file)?;
        return match absent {
            Absent::Make => Ok(Abide::open(file)?),
            Absent::Refuse => look_at(file),
        };
    }
    let mut builder = Abide::builder(&options.url).deadline(PATIENCE);
    if let Some(token) = &options.token {
        builder = builder.token(token);
    }
    Ok(builder.connect().await?)
}

/// A file that is only looked at: what is due in it stays due.
fn look_at(file: &Path) -> Result<Abide, Failure> {
    let config = Config { timers: false, ..Config::new(abide_reducers::modules()) };
    let engine = Engine::open(file, config).map_err(|why| why.to_refusal())?;
    Ok(Abide::embed(engine))
}

/// Refuses a missing folder by name; the system's error would name the lock file.
///
/// # Errors
/// The folder that the file is to stand in is not there.
pub(crate) fn check_folder(file: &Path) -> Result<(), Refusal> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => return Ok(()),
    };
    if folder.is_dir() {
        return Ok(());
    }
    let detail = format!("there is no folder {}", folder.display());
    let hint = format!("make it with  mkdir -p {}", folder.display());
    Err(Refusal::new(Code::NotFound, detail).hint(hint))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (detail, hint) = (error.to_string(), error.hint().map(str::to_owned));
        let refusal = |code| Refusal { hint, ..Refusal::new(code, detail) };
        match error {
            Error::Refused(refusal) if refusal.code == Code::Unauthenticated => {
                // The server's hint is about the header; here a token is given in another way.
                let hint = "give a valid token with --token or in ABIDE_TOKEN";
                let header = |hint: &String| hint.contains("Authorization: Bearer");
                Failure::Refused(match refusal.hint.as_ref().is_some_and(header) {
                    true => refusal.hint(hint),
                    false => refusal,
                })
            }
            Error::Refused(refusal) => Failure::Refused(refusal),
            Error::Address { .. } => Failure::Usage(refusal(Code::BadArguments)),
            Error::Unreachable { .. } | Error::TimedOut { .. } => {
                Failure::Unreachable(refusal(Code::Overloaded))
            }
            _ => Failure::Refused(refusal(Code::Internal)),
        }
    }
}
