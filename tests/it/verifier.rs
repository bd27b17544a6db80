//! `examples/verifier/verify_log.py`, which shares no code with Abide, agrees with `verify_file` about generated logs,
//! valid and damaged ones.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use abide_engine::{Verified, VerifyError, verify_file};
use abide_schema::Table as _;
use abide_store::EventRow;
use abide_tests::random::Random;
use abide_tests::world::{World, run};
use rusqlite::Connection;
use serde_json::{Value as JsonValue, json};

use crate::traffic::{Traffic, for_seeds};

/// Reads paths from stdin, and answers with a line of JSON for each.
const DRIVER: &str = "
import json, sqlite3, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import verify_log
for line in sys.stdin:
    try:
        file = verify_log.open_file(Path(line.rstrip('\\n')))
        events, head = verify_log.verify_chain(file)
        tables = {name: [rows, digest.hex()] for name, (rows, digest) in verify_log.table_digests(file).items()}
        answer = {'events': events, 'head': head.hex(), 'tables': tables}
        file.close()
    except (verify_log.Invalid, sqlite3.Error) as why:
        answer = {'error': str(why)}
    print(json.dumps(answer), flush=True)
";

/// A running verifier.
struct PythonVerifier {
    child: Child,
    paths: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl PythonVerifier {
    fn start() -> PythonVerifier {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/verifier");
        let mut command = Command::new("python3");
        command.args(["-B", "-c", DRIVER]).arg(folder);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 is there");
        let paths = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        PythonVerifier { child, paths, answers }
    }

    fn verify(&mut self, file: &Path) -> JsonValue {
        writeln!(self.paths, "{}", file.display()).unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for PythonVerifier {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same in the form of the verifier in Python.
fn to_json(verified: &Verified) -> JsonValue {
    let tables = verified
        .tables
        .iter()
        .map(|table| (table.name.to_owned(), json!([table.rows, hex::encode(table.hash)])));
    json!({
        "events": verified.events.0,
        "head": hex::encode(verified.hash),
        "tables": tables.collect::<serde_json::Map<_, _>>(),
    })
}

/// The event that an error names.
fn named_event(error: &str) -> Option<i64> {
    let (_, rest) = error.split_once("event ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Checks that both verifiers say the same of a file. Returns whether it is valid.
fn check(python: &mut PythonVerifier, file: &Path, what: &str) -> bool {
    let answer = python.verify(file);
    match verify_file(file, abide_reducers::modules(), &mut |_| {}) {
        Ok(verified) => {
            assert_eq!(answer, to_json(&verified), "{what}");
            true
        }
        // The rows show it, and only the program knows which of their columns are seqs.
        Err(VerifyError::LostTail { seq, .. }) => {
            assert!(
                answer["events"].as_i64().is_some_and(|events| events < seq.0),
                "{what}: {answer}"
            );
            false
        }
        Err(error) => {
            let error = error.to_string();
            let other = answer["error"].as_str().unwrap_or_default();
            assert!(!other.is_empty(), "{what}: {error}, and not {answer}");
            if let (Some(seq), Some(other_seq)) = (named_event(&error), named_event(other)) {
                assert_eq!(seq, other_seq, "{what}: {error}, and {other}");
            }
            false
        }
    }
}

/// Changes a file in one way. Returns what was changed.
fn damage(file: &Path, random: &mut Random) -> String {
    let raw = Connection::open(file).unwrap();
    let select = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN ('events', 'sessions')";
    let mut statement = raw.prepare(select).unwrap();
    let triggers: Vec<(String, String)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    drop(statement);
    for (name, _) in &triggers {
        raw.execute_batch(&format!("DROP TRIGGER {name}")).unwrap();
    }
    let count: i64 = raw.query_row("SELECT count(*) FROM events", [], |row| row.get(0)).unwrap();
    let seq = 1 + i64::try_from(random.below(usize::try_from(count).unwrap())).unwrap();
    let columns = EventRow::SPEC.columns;
    let column = columns[1 + random.below(columns.len() - 1)].name;
    let sql = match random.below(6) {
        0 => format!("DELETE FROM events WHERE seq = {seq}"),
        1 => format!("DELETE FROM events WHERE seq >= {seq}"),
        2 => format!(
            "UPDATE events SET arguments = (SELECT arguments FROM events WHERE seq = 1) WHERE seq = {seq}"
        ),
        3 => format!("UPDATE sessions SET agent = agent || '{seq}'"),
        _ => {
            let changed = format!(
                "CASE typeof({column}) WHEN 'blob' THEN zeroblob(length({column}))
                 WHEN 'integer' THEN {column} + 1 ELSE coalesce({column}, '') || 'x' END"
            );
            format!("UPDATE events SET {column} = {changed} WHERE seq = {seq}")
        }
    };
    raw.execute_batch(&sql).unwrap();
    for (_, sql) in &triggers {
        raw.execute_batch(sql).unwrap();
    }
    drop(raw);
    sql
}

/// Logs of each seed: one is valid, the others are damaged.
const VARIANTS: usize = 5;

#[test]
fn a_verifier_in_python_agrees_about_generated_logs() {
    let logs: u64 = std::env::var("VERIFIER_LOGS").map_or(60, |logs| logs.parse().unwrap());
    let python = RefCell::new(PythonVerifier::start());
    let counts = RefCell::new([0; 2]);
    for_seeds("a_verifier_in_python", 0..logs.div_ceil(VARIANTS as u64), |seed| {
        let mut world = World::new(abide_reducers::modules);
        let mut traffic = Traffic::new(seed);
        run(async {
            world.session("s1").await;
            for _ in 0..6 + seed % 20 {
                // Refused calls have no event.
                let _ = traffic.step(&world).await;
            }
        });
        world.close();
        let mut random = Random::new(seed);
        for variant in 0..VARIANTS {
            let file = world.folder.path().join("variant.db");
            std::fs::copy(world.path(), &file).unwrap();
            let what = match variant {
                0 => "the log".to_owned(),
                _ => damage(&file, &mut random),
            };
            let is_valid = check(&mut python.borrow_mut(), &file, &what);
            assert!(is_valid || variant > 0, "seed {seed}: the log is invalid");
            counts.borrow_mut()[usize::from(is_valid)] += 1;
        }
    });
    let [damaged, valid] = counts.into_inner();
    println!(
        "figure  generated logs on which a verifier in Python agrees: {valid} valid, {damaged} damaged"
    );
    assert!(std::env::var_os("ABIDE_SEED").is_some() || damaged > valid, "{damaged} of {valid}");
}
