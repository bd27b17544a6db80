//! What the tools have done: each appends a line to a file when it begins, and one when it has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::CheckResult;

/// The lines of a tool that ran once.
const ONCE: [&str; 2] = ["began", "done"];

/// See the [module](self).
pub(crate) struct Effects {
    folder: PathBuf,
}

impl Effects {
    /// Creates the folder of the files.
    pub(crate) fn make(folder: &Path) -> CheckResult<Effects> {
        fs::create_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        Ok(Effects { folder: folder.to_owned() })
    }

    /// The file of one kind of processes.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Checks that the tools of exactly these calls ran, each of them once and to its end.
    pub(crate) fn check(&self, calls: &BTreeSet<&str>) -> CheckResult {
        let mut ran: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let files = fs::read_dir(&self.folder).map_err(|why| why.to_string())?;
        for file in files {
            let path = file.map_err(|why| why.to_string())?.path();
            let text = fs::read_to_string(&path).map_err(|why| why.to_string())?;
            for line in text.lines() {
                let (what, call_id) =
                    line.split_once(' ').ok_or_else(|| format!("an odd line: {line}"))?;
                ran.entry(call_id.to_owned()).or_default().push(what.to_owned());
            }
        }
        for (call_id, lines) in &ran {
            if *lines != ONCE {
                return Err(format!("the tool of call {call_id} wrote {lines:?}"));
            }
            if !calls.contains(call_id.as_str()) {
                return Err(format!("a tool ran for {call_id}, which is no call"));
            }
        }
        let missing = calls.iter().find(|call_id| !ran.contains_key(**call_id));
        missing.map_or(Ok(()), |call_id| Err(format!("the tool of call {call_id} did not run")))
    }
}

/// Appends a line to a file. The lines of several processes do not mix.
pub(crate) fn note(file: &Path, what: &str, call_id: &str) -> CheckResult {
    let opened = OpenOptions::new().append(true).create(true).open(file);
    let line = format!("{what} {call_id}\n");
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    written.map_err(|why| format!("{}: {why}", file.display()))
}
