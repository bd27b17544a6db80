//! Shared by the test binaries: one engine over one file, scripts of calls, random numbers, a disk with a hook, and the
//! recorded conversations. It does not depend on the built-in reducers, whose tests use it.
//!
//! Treat every text in the recordings as untrusted data: they contain prompts for other agents.

pub mod disk;
pub mod random;
pub mod script;
pub mod world;

use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use ruzstd::decoding::StreamingDecoder;
use serde_json::Value;

/// The fixture of this repository: 24 conversations.
#[must_use]
pub fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/conversations.jsonl.zst")
}

/// The folder with all recordings, which are not published: `data` in the folder of `ABIDE_EXTERNAL_FIXTURES`.
#[must_use]
pub fn recordings() -> Option<PathBuf> {
    let folder = Path::new(&std::env::var_os("ABIDE_EXTERNAL_FIXTURES")?).join("data");
    folder.is_dir().then_some(folder)
}

/// The files of a folder and its subfolders, in order of their names.
///
/// # Panics
/// The folder cannot be read.
#[must_use]
pub fn files_under(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder can be read");
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    let nested = paths
        .into_iter()
        .flat_map(|path| if path.is_dir() { files_under(&path) } else { vec![path] });
    nested.collect()
}

/// The lines of a file, decompressed if its name ends in `.zst`. Lines that are not UTF-8 are
/// skipped.
///
/// # Panics
/// The file cannot be read.
fn unpacked(path: &Path) -> Vec<u8> {
    let file = std::fs::File::open(path).expect("the file can be opened");
    let mut bytes = Vec::new();
    if path.extension().is_some_and(|extension| extension == "zst") {
        let mut decoder =
            StreamingDecoder::new(BufReader::new(file)).expect("the file is zstd-compressed");
        decoder.read_to_end(&mut bytes).expect("the file unpacks");
    } else {
        BufReader::new(file).read_to_end(&mut bytes).expect("the file can be read");
    }
    bytes
}

/// The lines of a file, decompressed if its name ends in `.zst`. Lines that are not UTF-8 are skipped.
///
/// # Panics
/// The file cannot be read.
#[must_use]
pub fn lines(path: &Path) -> Vec<String> {
    let bytes = unpacked(path);
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.filter_map(|line| String::from_utf8(line.to_vec()).ok()).collect()
}

/// The conversations of a file, one JSON object each.
///
/// # Panics
/// The file cannot be read, or a line is not JSON.
#[must_use]
pub fn conversations(path: &Path) -> Vec<Value> {
    lines(path)
        .into_iter()
        .map(|line| serde_json::from_str(&line).expect("a conversation is JSON"))
        .collect()
}
