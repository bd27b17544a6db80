//! Logins on disk: one file for each server, for its owner only, in a folder that version control ignores. Several processes can
//! use it: a lock is held while a token is renewed, because an authorization server may accept a refresh token only once.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::error::OAuthError;
use super::random::random;
use super::token::Tokens;
use crate::template::percent_encoded;

/// Maximum size of a file, in bytes.
const FILE_BYTES: u64 = 1 << 20;

/// Read or write for the group or for all.
const OTHERS: u32 = 0o066;

/// A login.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct StoredLogin {
    /// The address of the server. The tokens are not used for another one.
    pub(super) url: String,
    pub(super) resource: String,
    pub(super) issuer: String,
    pub(super) client: Client,
    pub(super) tokens: Option<Tokens>,
    /// Scopes that the server has asked for since, in addition to those of the tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) wanted_scopes: Vec<String>,
}

/// The file of a server.
#[derive(Clone)]
pub(super) struct LoginStore {
    folder: PathBuf,
    name: String,
}

/// While it exists, no other process changes the file.
pub(super) struct StoreLock {
    _file: File,
}

impl LoginStore {
    pub(super) fn new(folder: &Path, server: &str) -> LoginStore {
        LoginStore { folder: folder.to_owned(), name: percent_encoded(server) }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.json", self.name))
    }

    /// Returns the login of a server at an address.
    pub(super) async fn load(&self, url: &str) -> Result<Option<StoredLogin>, OAuthError> {
        let path = self.path();
        let login = blocking(move || read(&path)).await?;
        Ok(login.filter(|login| login.url == url))
    }

    /// Replaces the file.
    pub(super) async fn save(&self, login: StoredLogin) -> Result<(), OAuthError> {
        let folder = self.folder.clone();
        let path = self.path();
        let temporary = self.folder.join(format!(".{}-{}", self.name, random()?));
        blocking(move || {
            create_folder(&folder)?;
            let text = serde_json::to_vec(&login)?;
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            let written = file.write_all(&text).and_then(|()| file.sync_all());
            let written = written.and_then(|()| fs::rename(&temporary, &path));
            if written.is_err() {
                let _ = fs::remove_file(&temporary);
            }
            written?;
            // After a power failure, the former file would have a refresh token that is no longer valid.
            sync_folder(&folder)
        })
        .await
    }

    /// Waits until no other process changes the file.
    pub(super) async fn lock(&self) -> Result<StoreLock, OAuthError> {
        let folder = self.folder.clone();
        let path = self.folder.join(format!("{}.lock", self.name));
        blocking(move || {
            create_folder(&folder)?;
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(StoreLock { _file: file })
        })
        .await
    }
}

/// Removes the stored login of a server. Returns whether there was one.
///
/// # Errors
/// The file cannot be removed.
pub async fn forget_mcp_login(folder: &Path, server: &str) -> Result<bool, OAuthError> {
    // The lock would create it.
    if !folder.is_dir() {
        return Ok(false);
    }
    let store = LoginStore::new(folder, server);
    // A process that renews the tokens stores them when it has the new ones.
    let _lock = store.lock().await?;
    let path = store.path();
    let folder = store.folder.clone();
    blocking(move || match fs::remove_file(&path) {
        Ok(()) => sync_folder(&folder).map(|()| true),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(why) => Err(why),
    })
    .await
}

/// Makes the names of the files in a folder durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    fs::write(folder.join(".gitignore"), "*\n")
}

fn read(path: &Path) -> io::Result<Option<StoredLogin>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(why),
    };
    if file.metadata()?.mode() & OTHERS != 0 {
        let path = path.display();
        let why = format!("other users can read it; `chmod 600 {path}` and log in again");
        return Err(io::Error::other(why));
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut text)?;
    // The error of the parser can repeat a part of the text.
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|_| io::Error::other("it is damaged: log in again"))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, OAuthError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.unwrap_or_else(|_| Err(io::Error::other("its task panicked")));
    done.map_err(|why| OAuthError::Storage(why.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Regression: the lock was not taken, and the renewal of a token undid the logout.
    #[tokio::test]
    async fn a_login_is_removed_after_the_renewal_that_is_under_way() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = LoginStore::new(folder.path(), "shop");
        let login = json!({"url": "https://shop.example/mcp", "resource": "", "issuer": "",
            "client": {"id": "clerk", "auth": "none"}, "tokens": null});
        let login: StoredLogin = serde_json::from_value(login).expect("it is a login");
        let lock = store.lock().await.expect("it is free");
        let renewal = async {
            store.save(login).await.expect("it is stored");
            drop(lock);
        };
        let (removed, ()) = tokio::join!(forget_mcp_login(folder.path(), "shop"), renewal);
        assert_eq!(removed, Ok(true));
        let left = store.load("https://shop.example/mcp").await.expect("the folder can be read");
        assert!(left.is_none());
    }

    #[tokio::test]
    async fn a_folder_without_logins_stays_absent() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let logins = folder.path().join("logins");
        assert_eq!(forget_mcp_login(&logins, "shop").await, Ok(false));
        assert!(!logins.exists());
    }
}
