//! Connects to a server by its address, or opens a file in this process.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use abide_client::{Abide, Config, Error};
use abide_engine::{Engine, Holder, LockState, OpenError};
use abide_schema::wire::SUBPROTOCOL;
use abide_schema::{Code, Listing, Refusal};

use crate::agent::{FOLDER, quote};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::lock_holder::{find_holder, is_server};
use crate::open::engine_listener;
use crate::own_program::own_program;

/// Timeout of a command.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long a command waits for others that have its file open. Each takes a fraction of a second.
const PATIENCE_COMMAND: Duration = Duration::from_secs(5);

/// How a command uses the file that `--db` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Writes, and creates the file if it does not exist.
    Create,
    /// Writes to an existing file. A missing file is probably a typing error.
    Write,
    /// Reads an existing file. Deadlines that are due stay due.
    Read,
}

/// Connects to the server or opens the file that the options name.
///
/// # Errors
/// No server answers, or the file cannot be opened.
pub(crate) async fn connect(options: &Options, access: Access) -> Result<Abide, Failure> {
    if let Some(file) = &options.db {
        if let Some(holder) = find_holder(file).filter(Holder::is_shared) {
            // Access to the file is access to everything in it.
            return connect_to_shared_engine(file, &holder, None).await;
        }
        return open_file(options, file, access).await;
    }
    if let Some(server) = &options.local_server {
        let token = options.token.as_deref();
        return connect_to_shared_engine(&server.file, &server.holder, token).await;
    }
    let mut builder = Abide::builder(&options.url).deadline(PATIENCE);
    if let Some(token) = &options.token {
        builder = builder.token(token);
    }
    if let Some(ca) = &options.ca {
        builder = builder.ca(ca);
    }
    if let Some((certificate, key)) = options.client_certificate()? {
        builder = builder.client_certificate(certificate, key);
    }
    Ok(builder.connect().await?)
}

/// Connects to the file or the server that a command names, to read; `None` if it names none.
///
/// # Errors
/// The errors of [`connect`].
pub(crate) async fn connect_named(options: &Options) -> Result<Option<Abide>, Failure> {
    if options.db.is_some() || options.is_url_named {
        connect(options, Access::Read).await.map(Some)
    } else {
        Ok(None)
    }
}

/// Connects as the identity of a token, or without one as the local admin.
async fn connect_to_shared_engine(
    file: &Path,
    holder: &Holder,
    token: Option<&str>,
) -> Result<Abide, Failure> {
    let own = own_program().map_err(|why| {
        Refusal::new(Code::Internal, format!("the path of this program is unknown: {why}"))
    })?;
    let mut shared = Abide::open_shared(file).binary(own).deadline(PATIENCE);
    if is_server(holder) {
        // A command that goes on, such as `watch`, must not take the file while the server is restarted.
        shared = shared.only_running();
    }
    if let Some(token) = token {
        shared = shared.token(token);
    }
    Ok(shared.await?)
}

/// Opens a file in this process. Waits for another command that has it open, and joins an engine that other processes share.
async fn open_file(options: &Options, file: &Path, access: Access) -> Result<Abide, Failure> {
    if access != Access::Create {
        check_file(file, access)?;
    }
    check_folder(file)?;
    let begun = Instant::now();
    let former = LockState::read(file);
    loop {
        // It waits a quarter of a second for a process that has the file.
        let why = match Engine::open(file, engine_config(options, access)) {
            Ok(engine) => {
                engine_listener::remove_after_kill(&former);
                return Ok(Abide::embed(engine));
            }
            Err(why) => why,
        };
        match &why {
            OpenError::InUse { holder: Some(holder), .. } if holder.is_shared() => {
                return connect_to_shared_engine(file, holder, None).await;
            }
            OpenError::InUse { holder: Some(holder), .. }
                if holder.is_brief && begun.elapsed() < PATIENCE_COMMAND => {}
            _ => {
                let failure = Failure::from(Error::Refused(why.to_refusal()));
                return Err(add_agents_to_hint(file, failure));
            }
        }
    }
}

/// The configuration of an engine in the process of a command, whose lock file names the process.
fn engine_config(options: &Options, access: Access) -> abide_engine::Config {
    let config = match access {
        Access::Read => Config { timers: false, ..options.config() },
        Access::Create | Access::Write => options.config(),
    };
    let mut config = abide_engine::Config::from(config);
    config.tuning.holder = Some(Holder {
        protocol: SUBPROTOCOL.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        // Runs and conversations create their file, and last as long as a person wants.
        is_brief: access != Access::Create,
        ..Holder::default()
    });
    config
}

/// The hint that starts a server for a file that another command has open has the agents of the file: without them the
/// server would drive no run.
fn add_agents_to_hint(file: &Path, failure: Failure) -> Failure {
    match (failure, find_agents_folder(file)) {
        (Failure::Refused(refusal), Some(folder)) if refusal.code == Code::FileLocked => {
            let serve = format!("`abide serve --db {}", file.display());
            let hint = refusal.hint.as_deref().unwrap_or_default();
            let hint = hint.replace(
                &format!("{serve}`"),
                &format!("{serve} --agents {}`", quote(&folder.display().to_string())),
            );
            Failure::Refused(refusal.hint(hint))
        }
        (failure, _) => failure,
    }
}

/// The folder of agents that contains a database, or the default folder.
fn find_agents_folder(file: &Path) -> Option<&Path> {
    let folders = [file.parent(), Some(Path::new(FOLDER))];
    folders.into_iter().flatten().find(|folder| folder.join("abide.yaml").is_file())
}

/// Refuses a file that does not exist or has no content: its path is probably mistyped.
///
/// # Errors
/// The file does not exist, is empty, or its folder cannot be read. It is named as lost if files next to it are left.
pub(crate) fn check_file(file: &Path, access: Access) -> Result<(), Refusal> {
    let path = file.display();
    let missing = match fs::metadata(file) {
        Ok(meta) if meta.is_file() && meta.len() == 0 => "is empty, not a database file",
        Ok(_) => return Ok(()),
        // Opening it reports a symlink without a target.
        Err(why) if why.kind() == io::ErrorKind::NotFound && file.is_symlink() => return Ok(()),
        Err(why) if why.kind() == io::ErrorKind::NotFound => "does not exist",
        Err(why) => {
            let detail = format!("{path} cannot be read: {why}");
            let hint = "check the path, and the permissions of its folders";
            let refusal = Refusal::new(Code::BadRequest, detail).hint(hint);
            return Err(refusal.explain_exhaustion(&why));
        }
    };
    // Its WAL and its journal can be all that is left of it.
    abide_store::check_not_lost(file).map_err(|error| error.to_refusal())?;
    let hint = match access {
        Access::Read => "check the path; without --db the command uses a server".to_owned(),
        Access::Create | Access::Write => format!(
            "check the path; `abide db create {}` creates a file; without --db the command uses a server",
            quote(&path.to_string())
        ),
    };
    Err(Refusal::new(Code::NotFound, format!("{path} {missing}")).hint(hint))
}

/// Refuses to follow a file that would be open in this process: no other one could change it. Another engine of the file is
/// joined if it is shared.
///
/// # Errors
/// The file is not shared.
pub(crate) fn check_followed(options: &Options, what: &str) -> Result<(), Failure> {
    let Some(file) = options.db.as_deref() else { return Ok(()) };
    let holder = find_holder(file);
    if holder.as_ref().is_some_and(Holder::is_shared) {
        return Ok(());
    }
    if let Some(url) = holder.and_then(|holder| holder.url) {
        let detail = format!("{} is open in a server, and --db does not use it", file.display());
        return Err(Failure::usage(detail, format!("use --url {url} in place of --db")));
    }
    let detail =
        format!("--db cannot be {what}: no other process can write to a file that is open here");
    let hint = "start `abide serve` or a program that shares the file; the command then joins it";
    Err(Failure::usage(detail, hint))
}

/// Refuses a missing folder by name, before the command does anything else.
///
/// # Errors
/// The folder does not exist.
pub(crate) fn check_folder(file: &Path) -> Result<(), Refusal> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => return Ok(()),
    };
    if folder.is_dir() {
        return Ok(());
    }
    Err(OpenError::NoFolder(folder.to_owned()).to_refusal())
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let detail = format!("{error:#}");
        let hint = error.hint().map(str::to_owned);
        let refusal = |code| Refusal { hint, ..Refusal::new(code, detail) };
        match error {
            Error::Refused(refusal) if refusal.code == Code::Unauthenticated => {
                // The server's hint names the header; on the command line the token is an option.
                let given = refusal.hint.as_deref().unwrap_or_default();
                let names_header = given.contains("Authorization: Bearer");
                if !names_header && !given.starts_with(EXPIRED) {
                    return Failure::Refused(refusal);
                }
                let hint = if given.contains("client certificate") {
                    "give a valid token with --token or in ABIDE_TOKEN, or a client certificate with --cert FILE --key FILE"
                } else {
                    "give a valid token with --token or in ABIDE_TOKEN"
                };
                Failure::Refused(refusal.hint(hint))
            }
            Error::Refused(refusal) => Failure::Refused(reword_refusal(refusal)),
            Error::Address { .. } => Failure::Usage(refusal(Code::BadArguments)),
            Error::Unreachable { .. }
            | Error::NotAbide { .. }
            | Error::TimedOut { .. }
            | Error::Tls { .. } => Failure::Unreachable(refusal(Code::Unavailable)),
            _ => Failure::Refused(refusal(Code::Internal)),
        }
    }
}

/// The command that shows a listing, as a hint.
const fn listing_command(listing: Listing) -> &'static str {
    match listing {
        Listing::Tables => {
            "`abide sql \"SELECT name FROM sqlite_schema WHERE type = 'table'\"` lists the tables"
        }
        Listing::Columns => {
            "`abide sql \"SELECT * FROM sessions LIMIT 1\"` shows the columns of a table"
        }
        Listing::Reducers => LIST_REDUCERS,
    }
}

/// The command that lists the reducers, as a hint.
const LIST_REDUCERS: &str = "`abide call` lists the reducers";

/// The hint about a credential that has expired.
const EXPIRED: &str = "ask the issuer for a new one";

/// A refusal as a user of the command line reads it: the command made the batch, and the user sends no requests.
fn reword_refusal(refusal: Refusal) -> Refusal {
    let refusal = refusal.outside_batch();
    if let Some(sql) = refusal.hinted_query() {
        let hint = format!("`abide sql \"{sql}\"` lists them");
        return refusal.hint(hint);
    }
    refusal.show_listings(listing_command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_does_not_name_the_batch_of_a_command() {
        let refused = Refusal::new(Code::NotFound, "there is no role x");
        let refused = Refusal { batch_position: Some(1), ..refused };
        assert_eq!(refused.to_string(), "call 1 of the batch: there is no role x");
        assert_eq!(reword_refusal(refused).to_string(), "there is no role x");
        let refusal = Refusal::new(Code::BadSql, "no such table: s");
        let hint =
            reword_refusal(refusal.hint(format!("at byte 7; {}", Listing::Tables.hint()))).hint;
        assert!(hint.is_some_and(|hint| hint.starts_with("at byte 7; `abide sql ")));
        let refusal =
            Refusal::new(Code::NotFound, "there is no run r1").hint_query("SELECT id FROM runs");
        let hint = reword_refusal(refusal).hint;
        assert_eq!(hint.as_deref(), Some("`abide sql \"SELECT id FROM runs\"` lists them"));
    }
}
