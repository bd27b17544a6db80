//! The first start of a server that other machines reach, such as the server of a container: the first token of its
//! file, and the volume that must be there.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};

use abide_client::arguments::CreateIdentity;
use abide_client::{Abide, Call, Secret};
use abide_engine::Engine;
use abide_schema::{Caller, Code, Refusal};
use abide_server::{AccessConfig, check_listens};

use crate::failure::Failure;
use crate::text_file::TextFile;

/// The identity that the first token belongs to.
const IDENTITY: &str = "root";

/// Maximum bytes of the file. A token has 83.
const MAX_BYTES: u64 = 1 << 10;

/// Creates an unrestricted admin with a token, if no credential is required yet. The token is only in this file.
///
/// The file is written before the token is stored. If the process ends between these steps, the next start stores the
/// token that it finds in the file.
///
/// # Errors
/// The file exists without a token, or it cannot be written; or there is an identity `root` without a token.
pub(super) async fn create_token(
    engine: &Engine,
    access: &AccessConfig,
    file: &Path,
) -> Result<(), Failure> {
    // A loopback address is never refused; the answer says whether credentials are required.
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    if check_listens(engine, access, loopback).await? {
        return Ok(());
    }
    let secret = match find_token(file)? {
        Some(secret) => secret,
        None => write_token(file)?,
    };
    let identity = CreateIdentity {
        capabilities: Some([Caller::EVERY_CAPABILITY.to_owned()].into()),
        ..CreateIdentity::new(IDENTITY, "admin")
    };
    let calls: Vec<Call> = vec![identity.into(), secret.create_token(IDENTITY).into()];
    Abide::embed(engine.clone()).batch(calls).await?;
    // At a level that is always written: the operator looks for the file.
    tracing::warn!(
        name: "first_token_created",
        file = %file.display(),
        "created an administrator; its token is in the file, for this user only"
    );
    Ok(())
}

/// Returns the token that an earlier start has left in the file; `None` if there is no file.
///
/// # Errors
/// The file has another content, which is not overwritten; it cannot be read; another user may have written it; or it
/// has no folder.
pub(super) fn find_token(file: &Path) -> Result<Option<Secret>, Refusal> {
    // A symlink without a target exists, and is not followed.
    if let Err(why) = fs::symlink_metadata(file) {
        let is_missing = why.kind() == ErrorKind::NotFound && folder_of(file).is_dir();
        return if is_missing { Ok(None) } else { Err(unusable_file(file, &why)) };
    }
    let content = TextFile::read(file, MAX_BYTES).ok();
    // Whoever has written the token knows it, and would be an administrator.
    if content.as_ref().is_some_and(|content| !content.is_trusted()) {
        let detail = format!("{} belongs to another user, or others can write it", file.display());
        return Err(Refusal::new(Code::Conflict, detail)
            .hint("name a new file in --first-token, in a folder that only this user can write"));
    }
    let secret = content.and_then(|it| Secret::parse(it.text.trim_end_matches(['\r', '\n'])));
    secret.map(Some).ok_or_else(|| {
        let detail = format!(
            "{} exists and is not a token of Abide that this user can read",
            file.display()
        );
        Refusal::new(Code::Conflict, detail)
            .hint("name a file that does not exist in --first-token")
    })
}

/// Writes a new token to a new file, which is complete as soon as it exists, and which only this user can read.
fn write_token(file: &Path) -> Result<Secret, Failure> {
    let secret = Secret::new()
        .map_err(|why| Refusal::new(Code::Internal, format!("no token can be created: {why}")))?;
    let folder = folder_of(file);
    // The permissions of temporary files are 0600.
    let written =
        tempfile::Builder::new().prefix(".abide-token-").tempfile_in(folder).and_then(|mut new| {
            writeln!(new, "{}", secret.text())?;
            new.as_file().sync_all()?;
            new.persist_noclobber(file)?;
            fs::File::open(folder)?.sync_all()
        });
    written.map_err(|why| unusable_file(file, &why))?;
    Ok(secret)
}

fn folder_of(file: &Path) -> &Path {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn unusable_file(file: &Path, why: &io::Error) -> Refusal {
    let detail = format!("cannot write the first token to {}: {why}", file.display());
    let hint = "name a file in a folder that this user can write, such as that of the database";
    Refusal::new(Code::BadRequest, detail).hint(hint).explain_exhaustion(why)
}

/// Refuses a folder that is on the file system of the root: a container would lose it.
///
/// # Errors
/// `bad_arguments`: the folder is not below a mount point other than `/`.
pub(super) fn check_volume(folder: &Path) -> Result<(), Refusal> {
    // Systems without this file have no containers of their own.
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return Ok(()) };
    let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    if is_mounted(&real, &mounts) {
        return Ok(());
    }
    let detail = format!("no volume is mounted at {}: its data would be lost", folder.display());
    let hint = format!(
        "mount a volume, for example `docker run -v abide-data:{}`, or leave out --require-volume",
        folder.display()
    );
    Err(Refusal::new(Code::BadArguments, detail).hint(hint))
}

/// Whether a mount point of these lines, other than the root, is the folder or contains it. Each line is of
/// `/proc/self/mountinfo`, see `proc(5)`: the fifth field is the mount point.
fn is_mounted(folder: &Path, mounts: &str) -> bool {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|point| PathBuf::from(point.replace("\\040", " "))).any(|point| {
        point.components().any(|part| part != Component::RootDir) && folder.starts_with(point)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_volume_is_a_mount_other_than_the_root() {
        let mounts = "\
            22 1 0:20 / / rw,relatime - overlay overlay rw\n\
            23 22 0:21 / /proc rw - proc proc rw\n\
            24 22 8:1 /v/_data /data rw - ext4 /dev/sda1 rw\n\
            25 22 8:1 / /my\\040disk rw - ext4 /dev/sda1 rw";
        for (folder, is_volume) in [
            ("/data", true),
            ("/data/deeper", true),
            ("/database", false),
            ("/", false),
            ("/home", false),
            ("/my disk/x", true),
        ] {
            assert_eq!(is_mounted(Path::new(folder), mounts), is_volume, "{folder}");
        }
    }

    #[test]
    fn a_token_is_written_once_and_only_for_this_user() {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("token");
        assert!(find_token(&file).expect("no file is no error").is_none());
        let secret = write_token(&file).expect("it is written");
        assert_eq!(find_token(&file).expect("it is a token"), Some(secret));
        let mode = fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(write_token(&file).is_err(), "a file is never overwritten");
        fs::write(&file, "my notes").expect("it can be written");
        let refusal = find_token(&file).expect_err("it is no token");
        assert!(refusal.detail.contains("is not a token"), "{refusal}");
        // These were no errors, so the database was created, and then the token could not be written.
        for file in [file.join("token"), folder.path().join("missing/token")] {
            let refusal = find_token(&file).expect_err("it cannot be written");
            assert!(refusal.detail.contains("cannot write the first token"), "{refusal}");
        }
    }

    /// Another user could put a token that it knows into a folder such as `/tmp`, and was an administrator after the start.
    #[test]
    fn a_token_that_others_may_have_written_is_refused() {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("token");
        write_token(&file).expect("it is written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("it is ours");
        let refusal = find_token(&file).expect_err("others can write it");
        assert!(refusal.detail.contains("others can write it"), "{refusal}");
    }
}
