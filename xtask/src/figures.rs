//! `cargo xtask figures`: figures of the source and of a program, as a table to compare two states of the repository.
//!
//! The source is read, not built. A program is measured if its path is given, so that both states can be measured with
//! programs that were built before, on the same machine at the same time.

mod program;
mod source;
mod table;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::tidy::{self, File};

/// The arguments.
pub(crate) const TAKES: &str = "[--against REV] [--binary PATH]... [--bench PATH]...\n        \
    lines, idioms and pages, here and at REV; the size and speed of an abide; a step of a run, by an\n        \
    abide-bench (the second PATH is the one of REV)";

/// Where a column comes from.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    against: Option<String>,
    /// Programs to measure: of the working tree, and of the revision.
    binaries: Vec<PathBuf>,
    benches: Vec<PathBuf>,
}

/// Prints the table.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let options = parse(words)?;
    let mut trees = vec![("now", tidy::read_files(root, &tidy::list_files(root)?)?)];
    if let Some(revision) = &options.against {
        trees.push((revision, read_revision(root, revision)?));
    }
    let mut columns = Vec::new();
    for (at, (name, files)) in trees.iter().enumerate() {
        let mut figures = source::figures(files)?;
        if let Some(binary) = options.binaries.get(at) {
            figures.extend(program::figures(root, binary)?);
        }
        if let Some(bench) = options.benches.get(at) {
            figures.push(program::step_of_a_run(root, bench)?);
        }
        columns.push((*name, figures));
    }
    print!("{}", table::to_markdown(&columns));
    Ok(ExitCode::SUCCESS)
}

fn parse(words: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} needs a value", pair[0])) };
        match name.as_str() {
            "--against" => options.against = Some(value.clone()),
            "--binary" => options.binaries.push(value.into()),
            "--bench" => options.benches.push(value.into()),
            _ => return Err(format!("unknown option {name}; the arguments are {TAKES}")),
        }
    }
    let columns = 1 + usize::from(options.against.is_some());
    if options.binaries.len().max(options.benches.len()) > columns {
        return Err("a second program needs --against".to_owned());
    }
    Ok(options)
}

/// Reads the text files of a revision from git.
fn read_revision(root: &Path, revision: &str) -> Result<Vec<File>, String> {
    let mut list = Command::new("git");
    list.args(["ls-tree", "-r", "-z", "--full-tree", "--name-only", revision]).current_dir(root);
    let list = list.output().map_err(|why| format!("cannot run git: {why}"))?;
    if !list.status.success() {
        return Err(format!("git has no revision {revision}"));
    }
    let paths = String::from_utf8(list.stdout).map_err(|_| "a file name is not UTF-8")?;
    let mut git = Command::new("git");
    git.args(["cat-file", "--batch"]).current_dir(root);
    let mut git = git
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|why| format!("cannot run git: {why}"))?;
    let mut requests = git.stdin.take().expect("stdin is piped");
    let mut answers = BufReader::new(git.stdout.take().expect("stdout is piped"));
    let mut files = Vec::new();
    for path in paths.split('\0').filter(|path| !path.is_empty()) {
        let failed = |why: &dyn std::fmt::Display| format!("git cat-file {revision}:{path}: {why}");
        writeln!(requests, "{revision}:{path}").map_err(|why| failed(&why))?;
        let mut header = String::new();
        answers.read_line(&mut header).map_err(|why| failed(&why))?;
        // `<hash> blob <bytes>`, then the content and a newline.
        let bytes = header.trim().rsplit(' ').next().and_then(|bytes| bytes.parse().ok());
        let bytes: usize = bytes.ok_or_else(|| failed(&header.trim()))?;
        let mut content = vec![0; bytes + 1];
        answers.read_exact(&mut content).map_err(|why| failed(&why))?;
        content.pop();
        if let Ok(text) = String::from_utf8(content) {
            files.push(File { path: path.to_owned(), text });
        }
    }
    drop(requests);
    git.wait().map_err(|why| format!("git cat-file: {why}"))?;
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::{Options, parse};

    fn parse_line(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn each_program_belongs_to_a_column() {
        let options = parse_line("--against v1 --binary a --binary b").expect("two columns");
        assert_eq!(options.against.as_deref(), Some("v1"));
        assert_eq!(options.binaries, ["a", "b"].map(std::path::PathBuf::from));
        for line in ["--binary a --binary b", "--against", "--bin a"] {
            parse_line(line).expect_err(line);
        }
    }
}
