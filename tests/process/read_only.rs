//! Files that a user can read and not write. `abide verify` called them damaged, or left files next to them that other users
//! could not remove.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;
use tempfile::TempDir;

use crate::program::{ExitedProcess, Process, program, run};
use crate::server::Server;

/// A user who is not root: root can write every file.
const USER: u32 = 65_534;

/// A folder with a copy of a database, and the program.
struct Copy {
    folder: TempDir,
}

impl Copy {
    fn new() -> Copy {
        let folder = tempfile::tempdir().unwrap();
        let copy = Copy { folder };
        fs::create_dir(copy.inner()).unwrap();
        let own = copy.folder.path().join("abide");
        fs::copy(program(), &own).unwrap();
        let db = copy.folder.path().join("a.db");
        let db = db.to_str().unwrap();
        run(["db", "create", db]).good();
        run(["call", "create_session", "agent=a", "--db", db]).good();
        run(["backup", copy.db().to_str().unwrap(), "--db", db]).good();
        if geteuid().is_root() {
            for path in [copy.folder.path().to_owned(), copy.inner(), copy.db(), own] {
                chown(path, Some(USER), Some(USER)).unwrap();
            }
        }
        copy
    }

    /// The folder of the copy.
    fn inner(&self) -> PathBuf {
        self.folder.path().join("copies")
    }

    fn db(&self) -> PathBuf {
        self.inner().join("copy.db")
    }

    fn set_modes(&self, folder: u32, file: u32) {
        fs::set_permissions(self.db(), Permissions::from_mode(file)).unwrap();
        fs::set_permissions(self.inner(), Permissions::from_mode(folder)).unwrap();
    }

    /// A command of the user.
    fn run(&self, args: &[&str]) -> ExitedProcess {
        let mut command = Command::new(self.folder.path().join("abide"));
        if geteuid().is_root() {
            command.uid(USER).gid(USER);
        }
        command.env_clear().stdin(Stdio::null()).args(args).current_dir(self.folder.path());
        Process::spawn(&mut command).ended()
    }
}

impl Drop for Copy {
    /// A folder that is not writable cannot be removed.
    fn drop(&mut self) {
        // It may not exist yet.
        let _ = fs::set_permissions(self.inner(), Permissions::from_mode(0o700));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_copy_that_cannot_be_written_verifies_and_nothing_is_left_next_to_it() {
    for (folder, file) in [(0o555, 0o600), (0o555, 0o444), (0o755, 0o444), (0o755, 0o400)] {
        let copy = Copy::new();
        copy.set_modes(folder, file);
        let before = fs::read(copy.db()).unwrap();
        let verified = copy.run(&["verify", "copies/copy.db"]).good();
        assert!(verified.starts_with("1 event  ·  chain ok"), "{folder:o} {file:o}: {verified}");
        copy.run(&["verify", "copies/copy.db", "--replay"]).good();
        copy.run(&["backup", "again.db", "--db", "copies/copy.db"]).good();
        copy.run(&["replay", "copies/copy.db", "--into", "then.db"]).good();
        assert_eq!(names(&copy.inner()), ["copy.db"], "{folder:o} {file:o}");
        assert!(fs::read(copy.db()).unwrap() == before, "the file was changed");
    }
}

/// The rows of the WAL are not in the file, and the index of the WAL cannot be made.
#[test]
fn a_file_with_a_wal_in_a_folder_that_is_read_only_is_not_called_damaged() {
    let mut server = Server::start();
    server.run(&["call", "create_session", "agent=a"]).good();
    // Its rows are in the WAL after a query.
    server.run(&["sql", "SELECT * FROM sessions"]).good();
    server.kill();
    let copy = Copy::new();
    for suffix in ["", "-wal", "-redo-1"] {
        let to = copy.inner().join(format!("copy.db{suffix}"));
        let _ = fs::remove_file(&to);
        fs::copy(format!("{}{suffix}", server.db().display()), &to).unwrap();
        if geteuid().is_root() {
            chown(&to, Some(USER), Some(USER)).unwrap();
        }
    }
    copy.set_modes(0o555, 0o600);
    let verified = copy.run(&["verify", "copies/copy.db"]);
    assert_eq!(verified.code, Some(1), "{verified:?}");
    assert!(verified.stderr.contains("is not writable   [bad_request]"), "{verified:?}");
    assert!(verified.stderr.contains("copy it, with the files next to it"), "{verified:?}");
    copy.set_modes(0o755, 0o600);
    assert!(copy.run(&["verify", "copies/copy.db"]).good().starts_with("1 event"));
}

/// A file that is not readable.
#[test]
fn a_file_that_cannot_be_read_is_not_called_damaged() {
    let copy = Copy::new();
    copy.set_modes(0o755, 0o000);
    let refused = copy.run(&["verify", "copies/copy.db"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("ermission denied"), "{refused:?}");
    assert!(refused.stderr.contains("\n  hint: check the permissions of the file"), "{refused:?}");
    assert!(!refused.stderr.contains("damaged"), "{refused:?}");
    // In a folder that cannot be searched, it was reported as missing.
    copy.set_modes(0o600, 0o600);
    let hidden = copy.run(&["verify", "copies/copy.db"]);
    assert!(hidden.stderr.contains("cannot be opened: Permission denied"), "{hidden:?}");
    assert!(hidden.stderr.contains("\n  hint: check the permissions of the file"), "{hidden:?}");
}
