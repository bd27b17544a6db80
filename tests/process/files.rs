//! Permissions of the files that `abide` writes: the database and its companions, backups, replays
//! and the demo's files had mode 0644, so every user of the machine could read every tenant's rows.
//! Symlinks as file names: `backup` wrote through a dangling symlink, and a database named by a
//! symlink failed with `internal`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::program::{ExitedProcess, Process, abide, program, run};
use crate::server::Server;

/// A command under a umask.
fn under(umask: &str, args: &[&str]) -> ExitedProcess {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")]).arg(program()).args(args);
    command.env_remove("ABIDE_TOKEN").env_remove("ABIDE_URL").env_remove("ABIDE_LOG");
    Process::spawn(&mut command).ended()
}

/// The mode of each file of a folder, by name.
fn modes(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut modes: Vec<String> = entries
        .map(|entry| {
            let mode = entry.metadata().unwrap().mode() & 0o7777;
            format!("{} {mode:o}", entry.file_name().to_str().unwrap())
        })
        .collect();
    modes.sort();
    modes
}

fn made() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db").display().to_string();
    (folder, db)
}

#[test]
fn created_files_are_for_their_owner_only() {
    for umask in ["000", "777"] {
        let (folder, db) = made();
        let path = |name: &str| folder.path().join(name).display().to_string();
        under(umask, &["db", "create", &db]).good();
        under(umask, &["call", "create_session", "agent=a", "id=s1", "--db", &db]).good();
        under(umask, &["backup", &path("copy.db"), "--db", &db]).good();
        under(umask, &["replay", &db, "--into", &path("then.db")]).good();
        let all = modes(folder.path());
        assert!(all.iter().all(|mode| mode.ends_with(" 600")), "{all:?}");
        for name in ["abide.db 600", "abide.db-lock 600", "copy.db 600", "then.db 600"] {
            assert!(all.iter().any(|mode| mode == name), "{name} of {all:?}");
        }
    }
    let (folder, db) = made();
    let server = Server::start_on(Path::new(&db));
    server.run(&["call", "create_session", "agent=a"]).good();
    let all = modes(folder.path());
    let served = ["", "-lock", "-redo-1", "-shm", "-wal"].map(|of| format!("abide.db{of} 600"));
    assert_eq!(all, served, "while it is served");
}

#[test]
fn the_demo_keeps_its_file_for_its_owner() {
    let (folder, db) = made();
    under("000", &["demo", "--json", "--conversations", "1", "--keep", &db]).good();
    let all = modes(folder.path());
    assert!(all.iter().all(|mode| mode.ends_with(" 600")), "{all:?}");
}

#[test]
fn an_open_mode_is_warned_about_but_not_changed() {
    let (folder, db) = made();
    run(["db", "create", &db]).good();
    for (mode, warns) in [(0o644, true), (0o640, true), (0o600, false), (0o400, false)] {
        fs::set_permissions(&db, Permissions::from_mode(mode)).unwrap();
        for args in [
            &["sql", "SELECT 1", "--db", &db][..],
            &["verify", &db],
            &["backup", &format!("{db}.{mode}"), "--db", &db],
        ] {
            let ended = run(args);
            let output = ended.stderr.contains("chmod 600");
            assert_eq!(output, warns, "{mode:o} {args:?}: {ended:?}");
        }
        assert_eq!(fs::metadata(&db).unwrap().mode() & 0o777, mode);
    }
    drop(folder);
}

#[test]
fn nothing_is_created_through_a_symlink() {
    let (folder, db) = made();
    run(["db", "create", &db]).good();
    let path = |name: &str| folder.path().join(name).display().to_string();
    symlink(path("victim"), path("link.db")).unwrap();
    symlink(path("victim"), path("beside.db-journal")).unwrap();
    for to in ["link.db", "beside.db"] {
        for args in [&["backup", &path(to), "--db", &db][..], &["replay", &db, "--into", &path(to)]]
        {
            let ended = run(args);
            assert_eq!(ended.code, Some(1), "{args:?}: {ended:?}");
            assert!(ended.stderr.contains("   [conflict]"), "{ended:?}");
        }
    }
    symlink(path("victim"), path("locked.db-lock")).unwrap();
    let ended = run(["db", "create", &path("locked.db")]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(!Path::new(&path("victim")).exists());
}

/// Every command waited for the other end of the pipe, and the server ignored signals.
#[test]
fn a_pipe_in_the_place_of_a_rollback_journal_is_refused() {
    let (folder, db) = made();
    run(["db", "create", &db]).good();
    let pipe = format!("{db}-journal");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let copy = folder.path().join("copy.db").display().to_string();
    for args in [
        &["verify", &db][..],
        &["sql", "SELECT 1", "--db", &db],
        &["call", "create_session", "agent=a", "--db", &db],
        &["backup", &copy, "--db", &db],
        &["replay", &db, "--into", &copy],
        &["serve", "--db", &db, "--listen", "127.0.0.1:0"],
    ] {
        let refused = run(args);
        assert_eq!(refused.code, Some(1), "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("-journal is not a regular file"), "{refused:?}");
    }
}

/// A file has one lock and one WAL, by whichever name it is opened.
#[test]
fn a_symlink_is_the_file_that_it_names() {
    let (folder, db) = made();
    let other = tempfile::tempdir().unwrap();
    let link = other.path().join("link.db").display().to_string();
    symlink(&db, &link).unwrap();
    let dangling = run(["call", "create_session", "agent=a", "--db", &link]);
    assert!(
        dangling.stderr.contains("is a symlink to a file that does not exist   [not_found]"),
        "{dangling:?}"
    );
    assert!(!Path::new(&db).exists());

    run(["db", "create", &db]).good();
    run(["call", "create_session", "agent=a", "id=s1", "--db", &db]).good();
    run(["call", "create_session", "agent=a", "id=s2", "--db", &link]).good();
    let server = Server::start_on(Path::new(&link));
    for name in [&db, &link] {
        let ended =
            Process::spawn(abide().args(["call", "create_session", "agent=a", "--db", name]))
                .ended();
        assert!(ended.stderr.contains("is in use by another process   [file_locked]"), "{ended:?}");
        assert_eq!(run(["verify", "--json", name]).json()["events"], 2, "also while it is served");
    }
    drop(server);
    let copy = other.path().join("copy.db").display().to_string();
    run(["backup", &copy, "--db", &link]).good();
    let beside = modes(other.path());
    assert!(!beside.iter().any(|file| file.starts_with("link.db-")), "{beside:?}");
    drop(folder);
}

/// SQLite takes such a name for a URI: `init` wrote its tables into the database of another program.
#[test]
fn a_name_in_the_form_of_a_uri_is_the_name_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("app.db");
    rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let before = fs::read(&other).unwrap();
    let in_folder =
        |args: &[&str]| Process::spawn(abide().args(args).current_dir(folder.path())).ended();
    in_folder(&["db", "create", "file:app.db"]).good();
    in_folder(&["verify", "file:app.db"]).good();
    in_folder(&["backup", "file:copy.db", "--db", "file:app.db"]).good();
    in_folder(&["verify", "./file:copy.db"]).good();
    assert!(fs::read(&other).unwrap() == before, "the file of another program was changed");
}
