//! The archived file of each released format, with the responses that it acknowledged: `abide-sim
//! keep` writes them, and a later version reads them.
//!
//! It is the file of a killed process: the script runs every reducer, and the last calls are only
//! in the WAL and the journal. The script is fixed and the clock virtual, so the same commit writes the same rows.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use abide_schema::Seq;
use abide_schema::wire::BatchCall;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value as JsonValue, json};

use crate::disk::{Fault, Machine};
use crate::history::History;
use crate::rig::{Rig, SimReply, SimRequest, VirtualClock, folder};
use crate::script::ScriptRun;

/// The start of the names of the database and the files next to it.
const DATABASE: &str = "abide.db";

/// Files of a killed process that another process cannot use.
const OF_A_PROCESS: [&str; 2] = ["abide.db-lock", "abide.db-shm"];

/// The acknowledged requests, one line each.
const TOLD: &str = "told.jsonl";

/// Runs the script, and archives the file as it is when its process is killed.
///
/// # Errors
/// An I/O error of the system, or the script stopped.
///
/// # Panics
/// The engine does not open a new file.
pub fn keep(into: &Path) -> io::Result<()> {
    let work = folder();
    let clock = VirtualClock::new();
    let machine = Arc::new(Machine::new(Fault::None, 1));
    let rig = Rig::open(work.path(), &machine, &clock).expect("a new file opens");
    let mut player = ScriptRun::new(&rig);
    player.play().map_err(|stopped| io::Error::other(format!("{stopped:?}")))?;
    fs::create_dir_all(into)?;
    for file in names(work.path())? {
        if !OF_A_PROCESS.contains(&file.as_str()) {
            pack(into, &file, &fs::read(work.path().join(&file))?)?;
        }
    }
    let lines: String = player.history.acknowledged.iter().map(|both| line(both) + "\n").collect();
    pack(into, TOLD, lines.as_bytes())
}

/// Extracts an archived file into a folder, as its process left it; returns what it had
/// acknowledged.
///
/// # Errors
/// An I/O error of the system.
///
/// # Panics
/// The archive was not written by [`keep`].
pub fn unpack(from: &Path, into: &Path) -> io::Result<History> {
    for file in names(from)? {
        let file = file.strip_suffix(".zst").unwrap_or(&file);
        fs::write(into.join(file), packed(from, file)?)?;
    }
    let text = String::from_utf8(packed(from, TOLD)?).map_err(io::Error::other)?;
    Ok(History { acknowledged: text.lines().map(read).collect(), ..History::default() })
}

/// The names of a database's files in a folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(DATABASE) {
            names.push(name);
        }
    }
    Ok(names)
}

fn pack(into: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let packed = compress_to_vec(bytes, CompressionLevel::Fastest);
    fs::write(into.join(format!("{name}.zst")), packed)
}

fn packed(from: &Path, name: &str) -> io::Result<Vec<u8>> {
    let packed = fs::read(from.join(format!("{name}.zst")))?;
    let mut bytes = Vec::new();
    let mut decoder = StreamingDecoder::new(packed.as_slice()).map_err(io::Error::other)?;
    decoder.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn line((ask, output): &(SimRequest, SimReply)) -> String {
    let results = output.results.iter().map(|(seq, result)| json!([seq.0, result]));
    json!({
        "caller": ask.caller,
        "calls": ask.calls.iter().map(|call| json!([call.reducer, call.args])).collect::<Vec<_>>(),
        "request_id": ask.request_id,
        "results": results.collect::<Vec<_>>(),
        "duplicate": output.duplicate,
    })
    .to_string()
}

fn read(line: &str) -> (SimRequest, SimReply) {
    let kept: JsonValue = serde_json::from_str(line).expect("a line is JSON");
    let text = |value: &JsonValue| value.as_str().expect("it is a text").to_owned();
    let list = |name: &str| kept[name].as_array().expect("it is a list").clone();
    let ask = SimRequest {
        // Few names, read once: leaking them is acceptable in a test.
        caller: Box::leak(text(&kept["caller"]).into_boxed_str()),
        calls: list("calls")
            .into_iter()
            .map(|pair| BatchCall { reducer: text(&pair[0]), args: pair[1].clone() })
            .collect(),
        request_id: text(&kept["request_id"]),
    };
    let results = list("results")
        .into_iter()
        .map(|pair| (Seq(pair[0].as_i64().expect("a seq")), text(&pair[1])))
        .collect();
    (ask, SimReply { results, duplicate: kept["duplicate"] == true })
}
