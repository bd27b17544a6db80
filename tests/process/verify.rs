//! `abide verify` and `abide backup`: files that Abide wrote pass, and a changed byte of any event
//! is found and named.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use abide_schema::Table as _;
use abide_store::EventRow;
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use crate::load::Load;
use crate::program::{ExitedProcess, Process, abide, run};
use crate::server::Server;

/// The fields of an event's record after its seq, in the order of the file.
fn fields() -> Vec<&'static str> {
    EventRow::SPEC.columns.iter().map(|column| column.name).filter(|name| *name != "seq").collect()
}

/// A file that the demo created.
struct DemoFile {
    folder: TempDir,
    events: i64,
}

impl DemoFile {
    fn new() -> DemoFile {
        let folder = tempfile::tempdir().unwrap();
        let db = folder.path().join("demo.db");
        let keep = db.to_str().unwrap();
        let report = run(["demo", "--json", "--conversations", "3", "--keep", keep]).json();
        DemoFile { folder, events: report["events"].as_i64().unwrap() }
    }

    fn db(&self) -> PathBuf {
        self.folder.path().join("demo.db")
    }

    /// The first of these and the following events that is stored contiguously.
    fn event_from(&self, seq: i64) -> EventLocation {
        let bytes = fs::read(self.db()).unwrap();
        let file =
            Connection::open_with_flags(self.db(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        let mut tried = seq..=self.events;
        tried.find_map(|seq| EventLocation::find(&file, &bytes, seq)).unwrap()
    }
}

/// The position of an event in a file.
#[derive(Debug)]
struct EventLocation {
    seq: i64,
    start: usize,
    /// Bytes of each field.
    lengths: Vec<usize>,
}

impl EventLocation {
    fn find(file: &Connection, bytes: &[u8], seq: i64) -> Option<EventLocation> {
        let names = fields();
        let columns = names[1..].join(", ");
        let sql = format!("SELECT at, {columns} FROM events WHERE seq = ?1");
        let fields: Vec<Vec<u8>> = file
            .query_row(&sql, [seq], |row| {
                let mut fields = vec![row.get::<_, i64>(0)?.to_be_bytes().to_vec()];
                for at in 1..names.len() {
                    fields.push(row.get_ref(at)?.as_bytes_or_null()?.unwrap_or_default().to_vec());
                }
                Ok(fields)
            })
            .unwrap();
        let record = fields.concat();
        let mut found = bytes.windows(record.len()).enumerate().filter(|(_, at)| *at == record);
        let (start, _) = found.next()?;
        assert!(found.next().is_none(), "event {seq} is stored twice");
        Some(EventLocation { seq, start, lengths: fields.iter().map(Vec::len).collect() })
    }

    /// The middle byte of a field, if it has one.
    fn byte_of(&self, field: usize) -> Option<u64> {
        let before: usize = self.lengths[..field].iter().sum();
        let byte = (self.start + before + self.lengths[field] / 2) as u64;
        (self.lengths[field] > 0).then_some(byte)
    }
}

fn flip(path: &Path, byte: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut held = [0];
    file.read_exact_at(&mut held, byte).unwrap();
    file.write_all_at(&[held[0] ^ 1], byte).unwrap();
}

fn verify(path: &Path, more: &[&str]) -> ExitedProcess {
    Process::spawn(abide().arg("verify").arg(path).args(more)).ended()
}

#[track_caller]
fn assert_names(ended: &ExitedProcess, seq: i64, what: &str) {
    assert_eq!(ended.code, Some(4), "{what} of event {seq}: {ended:?}");
    assert_eq!(ended.stdout, "", "{what} of event {seq}");
    let named = ended.stderr.starts_with(&format!("error: event {seq}: "));
    assert!(named && ended.stderr.contains("\n  hint: "), "{what} of event {seq}: {ended:?}");
}

#[test]
fn a_changed_byte_of_any_event_is_found_and_named() {
    let made = DemoFile::new();
    let good = verify(&made.db(), &[]).good();
    assert!(good.starts_with(&format!("{} events  ·  chain ok  ·  head ", made.events)), "{good}");
    for from in [1, made.events / 2, made.events - 1, made.events] {
        let place = made.event_from(from);
        for (at, field) in fields().into_iter().enumerate() {
            let Some(byte) = place.byte_of(at) else { continue };
            flip(&made.db(), byte);
            assert_names(&verify(&made.db(), &[]), place.seq, field);
            flip(&made.db(), byte);
        }
    }
    verify(&made.db(), &[]).good();
}

#[test]
fn a_changed_byte_is_found_while_a_server_serves_the_file() {
    let mut server = Server::start();
    let made = DemoFile::new();
    server.stop();
    fs::copy(made.db(), server.db()).unwrap();
    server.start_again();
    assert_eq!(server.verify(), made.events);
    let place = made.event_from(made.events / 2);
    let byte = place.byte_of(5).unwrap();
    flip(&server.db(), byte);
    assert_names(&verify(&server.db(), &[]), place.seq, "arguments");
    let ended = verify(&server.db(), &["--json"]);
    let problem: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
    assert_eq!((ended.code, &problem["code"]), (Some(4), &"conflict".into()));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("event {}: ", place.seq)), "{detail}");
    flip(&server.db(), byte);
    server.run(&["call", "create_session", "agent=support"]).good();
    assert_eq!(server.verify(), made.events + 1);
}

/// Each left a WAL and its index next to the backup that it read.
#[test]
fn commands_that_read_a_file_leave_its_folder_as_it_was() {
    let file = DemoFile::new();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.db");
    backup(&file.db(), &copy).good();
    let content = || {
        let entries = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries.map(|path| (fs::read(&path).unwrap(), path)).collect();
        files.sort();
        files
    };
    let before = content();
    verify(&copy, &[]).good();
    verify(&copy, &["--replay"]).good();
    let other = file.folder.path().join("other.db");
    backup(&copy, &other).good();
    let then = file.folder.path().join("then.db");
    run(["replay", path(&copy), "--into", path(&then), "--to", "2"]).good();
    let after = content();
    assert_eq!(after.len(), 1, "{:?}", after.iter().map(|file| &file.1).collect::<Vec<_>>());
    assert!(after == before, "the file was changed");
}

#[test]
fn a_log_whose_end_is_cut_off_is_found() {
    let made = DemoFile::new();
    let file = Connection::open(made.db()).unwrap();
    let trigger = "SELECT sql FROM sqlite_schema WHERE name = 'events_no_delete'";
    let trigger: String = file.query_row(trigger, [], |row| row.get(0)).unwrap();
    file.execute_batch("DROP TRIGGER events_no_delete").unwrap();
    let messages = "SELECT max(seq) FROM agent_state";
    let last: i64 = file.query_row(messages, [], |row| row.get(0)).unwrap();
    file.execute("DELETE FROM events WHERE seq >= ?1", [last]).unwrap();
    // A file without the trigger would be refused for its schema.
    file.execute_batch(&trigger).unwrap();
    drop(file);
    let ended = verify(&made.db(), &[]);
    assert_eq!(ended.code, Some(4));
    assert!(ended.stderr.contains(": missing, but a row of "), "{ended:?}");
}

/// It was "the storage failed", as if the disk had refused something.
#[test]
fn a_damaged_file_is_called_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let sound = folder.path().join("sound.db");
    run(["demo", "--json", "--conversations", "3", "--keep", path(&sound)]).json();
    let bytes = fs::read(&sound).unwrap();
    let cut = bytes[..bytes.len() / 40].to_vec();
    let (header, garbage) = bytes.split_at(4096);
    let garbage: Vec<u8> = garbage.iter().map(|byte| byte ^ 0xA5).collect();
    for (name, bytes) in [("cut.db", cut), ("garbage.db", [header, &garbage].concat())] {
        let file = folder.path().join(name);
        fs::write(&file, bytes).unwrap();
        let copy = folder.path().join("copy.db");
        let commands: [(&[&str], i32); 5] = [
            (&["verify", path(&file)], 4),
            (&["replay", path(&file), "--into", path(&copy)], 4),
            (&["sql", "SELECT id FROM sessions", "--db", path(&file)], 1),
            (&["call", "create_session", "agent=a", "--db", path(&file)], 1),
            (&["backup", path(&copy), "--db", path(&file)], 4),
        ];
        for (command, code) in commands {
            let ended = run(command);
            assert_eq!((ended.code, &*ended.stdout), (Some(code), ""), "{command:?}: {ended:?}");
            let is_named = ended.stderr.contains(" is damaged");
            let has_hint = ended.stderr.contains("restore a backup that verifies");
            assert!(is_named && has_hint, "{command:?}: {}", ended.stderr);
        }
        assert!(!copy.exists(), "{name}");
    }
}

/// A page of a table that only the comparison at the end of a replay reads. The message was "the file is damaged"
/// without the table, as an internal error.
#[test]
fn a_replay_of_a_damaged_file_names_the_table() {
    let made = DemoFile::new();
    let file = Connection::open(made.db()).unwrap();
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'sessions'";
    let page: i64 = file.query_row(sql, [], |row| row.get(0)).unwrap();
    drop(file);
    let opened = fs::OpenOptions::new().write(true).open(made.db()).unwrap();
    opened.write_all_at(&[0xA5; 64], (page.unsigned_abs() - 1) * 4096).unwrap();
    drop(opened);
    let copy = made.folder.path().join("copy.db");
    let ended = run(["replay", path(&made.db()), "--into", path(&copy)]);
    assert_eq!((ended.code, &*ended.stdout), (Some(4), ""), "{ended:?}");
    let start = "error: the file is damaged: table sessions: ";
    let has_hint = ended.stderr.contains("restore a backup that verifies");
    assert!(ended.stderr.starts_with(start) && has_hint, "{}", ended.stderr);
    assert!(!copy.exists());
    assert_eq!(verify(&made.db(), &[]).code, Some(4));
}

/// The hint was to start a server with it.
#[test]
fn what_an_interrupted_backup_has_left_can_be_removed() {
    let made = DemoFile::new();
    let partial = made.folder.path().join("copy.db-partial-77");
    let bytes = fs::read(made.db()).unwrap();
    for content in [&bytes[..bytes.len() / 40], &[0; 4096], &[7; 100]] {
        fs::write(&partial, content).unwrap();
        for journal in [false, true] {
            if journal {
                fs::write(made.folder.path().join("copy.db-partial-77-journal"), "x").unwrap();
            }
            for args in
                [&["verify", path(&partial)][..], &["sql", "SELECT 1", "--db", path(&partial)]]
            {
                let ended = run(args);
                let hint = "remove it, and the files next to it";
                assert!(
                    ended.code == Some(1) && ended.stderr.contains(hint),
                    "{args:?}: {ended:?}"
                );
            }
        }
        // SQLite may have removed it.
        let _ = fs::remove_file(made.folder.path().join("copy.db-partial-77-journal"));
    }
}

#[test]
fn files_of_other_programs_are_not_verified() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("nowhere.db");
    let ended = verify(&missing, &[]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("[not_found]"), "{ended:?}");
    let letter = folder.path().join("letter");
    fs::write(&letter, "Dear grandmother, ".repeat(500)).unwrap();
    let ended = verify(&letter, &[]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no file is created next to it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_complete() {
    let mut server = Server::start();
    let mut load = Load::start(&server).await;
    let ledger = Arc::clone(&load.ledger);
    let db = server.db();
    let mut before = 0;
    for number in 1..=3 {
        ledger.wait_for_count(ledger.count() + 20).await;
        let output = ledger.output().len();
        let copy = server.sibling(&format!("copy-{number}.db"));
        let made = backup(&db, &copy).json();
        let events = usize::try_from(made["events"].as_i64().unwrap()).unwrap();
        assert!(events >= output && output > before, "{output} acknowledged, {events} in the copy");
        verify(&copy, &[]).good();
        let count = run(["sql", "--json", "SELECT max(seq) FROM events", "--db", path(&copy)]);
        assert_eq!(count.json()["rows"][0][0], made["events"]);
        before = output;
    }
    load.finish().await;
    crate::load::assert_log_is(&server.raw(), &ledger.output());
    server.stop();

    let copy = server.sibling("copy-1.db");
    let bytes = fs::read(&copy).unwrap();
    let again = backup(&db, &copy);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("exists already"), "{again:?}");
    assert!(fs::read(&copy).unwrap() == bytes, "the copy was overwritten");
    let nothing = backup(&server.sibling("nowhere.db"), &server.sibling("copy-4.db"));
    assert_eq!(nothing.code, Some(1), "{nothing:?}");
    assert!(!server.sibling("nowhere.db").exists() && !server.sibling("copy-4.db").exists());
}

/// The copy of a damaged file stayed where a good one would be, although the command had failed.
#[test]
fn a_copy_that_does_not_verify_is_removed() {
    let made = DemoFile::new();
    let event = made.event_from(made.events / 2);
    let byte = (1..fields().len()).find_map(|field| event.byte_of(field)).unwrap();
    flip(&made.db(), byte);
    let copy = made.folder.path().join("copy.db");
    let before = fs::read(made.db()).unwrap();
    for _ in 0..2 {
        let failed = run(["backup", path(&copy), "--db", path(&made.db())]);
        assert_eq!(failed.code, Some(4), "{failed:?}");
        let hint = format!(
            "\n  hint: the copy is removed; `abide verify {}` checks the original\n",
            made.db().display()
        );
        assert!(failed.stderr.ends_with(&hint), "{failed:?}");
        let left: Vec<_> = fs::read_dir(made.folder.path()).unwrap().flatten().collect();
        let left = left.iter().filter(|entry| entry.file_name().to_string_lossy().contains("copy"));
        assert_eq!(left.count(), 0, "neither the copy nor a file beside it");
    }
    assert!(fs::read(made.db()).unwrap() == before, "the original is as it was");
}

fn backup(from: &Path, to: &Path) -> ExitedProcess {
    run(["backup", "--json", "--db", path(from), path(to)])
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs `examples/verifier/verify_log.py`, which shares no code with Abide.
fn verify_in_python(file: &Path) -> ExitedProcess {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/verifier/verify_log.py");
    Process::spawn(Command::new("python3").arg(script).arg(file)).ended()
}

/// They passed without a word. A column `seq` of one was taken for the events that wrote its rows.
#[test]
fn what_no_module_declares_is_named() {
    let made = DemoFile::new();
    let file = Connection::open(made.db()).unwrap();
    let tables = "CREATE TABLE notes (seq INTEGER); INSERT INTO notes VALUES (1000000);
        CREATE INDEX notes_seq ON notes (seq); CREATE VIRTUAL TABLE words USING fts5(word)";
    file.execute_batch(tables).unwrap();
    drop(file);
    let ended = verify(&made.db(), &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for object in ["table notes", "index notes_seq", "virtual table words"] {
        let warning = format!("warning: no module of this program declares {object}: it is not");
        assert!(ended.stderr.contains(&warning), "{object}: {ended:?}");
    }
    let undeclared = &verify(&made.db(), &["--json"]).json()["undeclared"];
    assert_eq!(undeclared[0], "table notes");
}

#[test]
fn a_verifier_in_python_agrees() {
    let made = DemoFile::new();
    let report = verify(&made.db(), &["--rows", "--json"]).json();
    let tables = report["tables"].as_array().unwrap();
    let mut expected: Vec<String> = tables
        .iter()
        .map(|table| {
            let [name, hash] = ["table", "hash"].map(|member| table[member].as_str().unwrap());
            format!("{hash}  {:>10}  {name}", table["rows"].as_u64().unwrap())
        })
        .collect();
    expected.sort();
    let output = verify_in_python(&made.db()).good();
    let mut found: Vec<String> = output.lines().map(str::to_owned).collect();
    let last = found.pop().unwrap();
    assert!(last.ends_with(report["head"].as_str().unwrap()), "{last}");
    found.sort();
    assert_eq!(found, expected);
    // A changed byte in each field of an event.
    let place = made.event_from(made.events / 2);
    for field in 0..fields().len() {
        let Some(byte) = place.byte_of(field) else { continue };
        flip(&made.db(), byte);
        let ended = verify_in_python(&made.db());
        let name = fields()[field];
        assert_eq!(ended.code, Some(1), "{name}");
        assert!(
            ended.stderr.contains(&format!("event {}: ", place.seq)),
            "{name}: {}",
            ended.stderr
        );
        flip(&made.db(), byte);
    }
}

#[test]
fn a_changed_cell_is_named() {
    let made = DemoFile::new();
    let raw = Connection::open(made.db()).unwrap();
    let of_row = "SELECT id, seq FROM agent_state WHERE role = 'user' LIMIT 1";
    let (id, seq): (i64, i64) =
        raw.query_row(of_row, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let change = "UPDATE agent_state SET content = content || '.' WHERE id = ?1";
    raw.execute(change, [id]).unwrap();
    drop(raw);
    verify(&made.db(), &[]).good();
    let ended = verify(&made.db(), &["--rows"]);
    let named = format!("row {id} has another value of content than event {seq} wrote last");
    assert!(ended.code == Some(4) && ended.stderr.contains(&named), "{}", ended.stderr);
}
