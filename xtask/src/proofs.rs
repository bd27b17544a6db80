//! `cargo xtask proofs`: every proof in full. `cargo xtask ci` runs a share of most of them. It writes the figures that they
//! print to `docs/reliability.md`, between two marks. A figure is that of the proof's last complete run; a failed proof
//! has no figures in the table. `--only` runs one of them.
//!
//! A proof prints a figure on a line of its own: `figure  what: value`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use crate::command::{self, StepResult};

/// The arguments.
pub(crate) const TAKES: &str = "[--share | --only PROOF]   \
    all in full; a share of each, without the table; or one of them";

const PAGE: &str = "docs/reliability.md";
const BEGINS: &str = "<!-- figures: written by cargo xtask proofs -->";
const ENDS: &str = "<!-- end of figures -->";

/// The proofs, and the arguments for a smaller share; empty if it has none.
const PROOFS: [(&str, &str); 19] = [
    ("bugs", "bugs"),
    ("interleave", "interleave"),
    ("live --seeds 10000", "live --seeds 100"),
    ("visibility --seeds 500", "visibility --seeds 20"),
    ("verifier --logs 10000", "verifier --logs 500"),
    ("crash --all", "crash --stride 600"),
    ("sim --seeds 1000", "sim --seeds 100"),
    ("fuzz --seconds 30", "fuzz --seconds 5"),
    ("soak --minutes 3", "soak --seconds 30"),
    ("deploys", "deploys --share"),
    ("overload", "overload --share"),
    ("recovery", "recovery --share"),
    ("rows", "rows --share"),
    ("mcp-conformance", ""),
    ("a2a-conformance", ""),
    ("mlflow", ""),
    ("otlp-collector", ""),
    ("package --check", ""),
    // Of the packages that the step before has made.
    ("matrix", ""),
];

/// A figure, and the command that printed it.
struct Figure {
    what: String,
    value: String,
    command: String,
}

/// Runs all proofs, or one. Succeeds if all of them do.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let (is_share, only) = match words {
        [] => (false, None),
        [word] if word == "--share" => (true, None),
        [word, name] if word == "--only" => (false, Some(name.as_str())),
        _ => return Err(format!("the arguments are {TAKES}")),
    };
    let mut proofs = PROOFS.to_vec();
    if let Some(name) = only {
        proofs.retain(|(whole, _)| whole.split(' ').next() == Some(name));
        if proofs.is_empty() {
            return Err(format!("unknown proof {name}; the arguments are {TAKES}"));
        }
    }
    if is_share {
        proofs.retain(|(_, share)| !share.is_empty());
    }
    let page = root.join(PAGE);
    let mut results = Vec::new();
    let mut figures = if is_share { Vec::new() } else { read_page(&page)? };
    for (whole, share) in proofs {
        let command = format!("cargo xtask {}", if is_share { share } else { whole });
        println!("==== {command}");
        figures.retain(|figure| figure.command != command);
        let start = Instant::now();
        let mut printed = Vec::new();
        let good = prove(root, &command, &mut printed)?;
        if good {
            figures.append(&mut printed);
        }
        results.push(StepResult { name: command, good, took: start.elapsed() });
    }
    sort(&mut figures);
    let table = to_markdown(&figures);
    println!("\n{table}");
    let good = command::print_results(&results);
    if !is_share {
        write_page(&page, &table)?;
    }
    Ok(command::exit_code(good))
}

/// Sorts the figures in the order of [`PROOFS`], and removes others.
fn sort(figures: &mut Vec<Figure>) {
    figures.retain(|figure| position(figure).is_some());
    figures.sort_by_key(position);
}

fn position(figure: &Figure) -> Option<usize> {
    let proof = figure.command.strip_prefix("cargo xtask ");
    PROOFS.iter().position(|(whole, share)| proof == Some(whole) || proof == Some(share))
}

/// Runs one proof, prints its output, and collects its figures.
fn prove(root: &Path, command: &str, figures: &mut Vec<Figure>) -> Result<bool, String> {
    let words: Vec<&str> = command.split(' ').collect();
    let own = std::env::current_exe().map_err(|why| why.to_string())?;
    let mut proof = Command::new(own);
    proof.args(&words[2..]).current_dir(root).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut proof = proof.spawn().map_err(|why| format!("{command}: {why}"))?;
    let stdout = proof.stdout.take().expect("stdout is piped");
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(|why| format!("{command}: {why}"))?;
        println!("{line}");
        figures.extend(parse_figure(&line, command));
    }
    let status = proof.wait().map_err(|why| format!("{command}: {why}"))?;
    Ok(status.success())
}

fn parse_figure(line: &str, command: &str) -> Option<Figure> {
    let (what, value) = line.strip_prefix("figure  ")?.split_once(": ")?;
    let [what, value, command] = [what, value, command].map(str::to_owned);
    Some(Figure { what, value, command })
}

fn to_markdown(figures: &[Figure]) -> String {
    let mut table = "| what | | by |\n|---|---:|---|\n".to_owned();
    let mut last = "";
    for Figure { what, value, command } in figures {
        let by = if command == last { String::new() } else { format!("`{command}`") };
        table += &format!("| {what} | {value} | {by} |\n");
        last = command;
    }
    table
}

/// Returns the figures of a table.
fn from_markdown(table: &str) -> Vec<Figure> {
    let mut command = String::new();
    let rows = table.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
        let [what, value, by, ""] = cells[..] else { return None };
        match by.strip_prefix('`').and_then(|by| by.strip_suffix('`')) {
            Some(by) => command = by.to_owned(),
            None if command.is_empty() => return None,
            None => {}
        }
        Some(Figure { what: what.to_owned(), value: value.to_owned(), command: command.clone() })
    });
    rows.collect()
}

/// Returns the text before the table of a page, the table, and the text after it.
fn split_page(page: &Path) -> Result<[String; 3], String> {
    let path = page.display();
    let text = fs::read_to_string(page).map_err(|why| format!("{path}: {why}"))?;
    let parts = text.split_once(BEGINS).and_then(|(before, rest)| {
        let (table, after) = rest.split_once(ENDS)?;
        Some([before, table, after].map(str::to_owned))
    });
    parts.ok_or_else(|| format!("{path}: the line {BEGINS} or {ENDS} is missing"))
}

fn read_page(page: &Path) -> Result<Vec<Figure>, String> {
    split_page(page).map(|[_, table, _]| from_markdown(&table))
}

fn write_page(page: &Path, table: &str) -> Result<(), String> {
    let [before, _, after] = split_page(page)?;
    let text = format!("{before}{BEGINS}\n\n{table}\n{ENDS}{after}");
    // A proof that is killed must not leave half of the page.
    let new = page.with_extension("md.new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, page));
    written.map_err(|why| format!("{}: {why}", page.display()))
}

#[cfg(test)]
mod tests {
    use super::{from_markdown, parse_figure, sort, to_markdown};

    #[test]
    fn figures_become_a_table() {
        let lines = ["noise", "figure  seeds: 12", "figure  lost, of 3: 0", "figure nothing"];
        let figures: Vec<_> =
            lines.iter().filter_map(|line| parse_figure(line, "cargo xtask sim")).collect();
        let expected = "| what | | by |\n|---|---:|---|\n\
            | seeds | 12 | `cargo xtask sim` |\n| lost, of 3 | 0 |  |\n";
        assert_eq!(to_markdown(&figures), expected);
    }

    #[test]
    fn a_table_round_trips() {
        let output = [
            ("figure  kills: 9", "cargo xtask soak --minutes 3"),
            ("figure  seeds: 12", "cargo xtask sim --seeds 1000"),
            ("figure  lost, of 3: 0", "cargo xtask sim --seeds 1000"),
            ("figure  of old: 1", "cargo xtask sim --seeds 500"),
        ];
        let mut all: Vec<_> =
            output.iter().filter_map(|(line, by)| parse_figure(line, by)).collect();
        sort(&mut all);
        let written = to_markdown(&all);
        assert!(!written.contains("of old"), "{written}");
        assert!(written.find("lost, of 3") < written.find("kills"), "{written}");
        assert_eq!(to_markdown(&from_markdown(&written)), written);
    }
}
