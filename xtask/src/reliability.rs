//! `cargo xtask reliability`: runs every proof that counts something, and writes what they counted into
//! `docs/reliability.md`, between two marks. A figure that is not of this run is not in the table.
//!
//! A proof tells a figure in a line of its own: `figure  what: value`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// What it takes.
pub(crate) const TAKES: &str =
    "[--share]   all of it, half an hour; or in a few minutes, without writing the table";

const PAGE: &str = "docs/reliability.md";
const BEGINS: &str = "<!-- figures: written by cargo xtask reliability -->";
const ENDS: &str = "<!-- end of figures -->";

/// What is run, and the words for the share of it.
const PROOFS: [(&str, &str); 6] = [
    ("crash --all", "crash --stride 600"),
    ("sim --seeds 1000", "sim --seeds 100"),
    ("fuzz --seconds 30", "fuzz --seconds 5"),
    ("soak --minutes 3", "soak --seconds 30"),
    ("overload", "overload --share"),
    ("recovery", "recovery --share"),
];

/// One figure, and the command that told it.
struct Figure {
    what: String,
    value: String,
    command: String,
}

/// Runs them all; the verdict is good if all are.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let is_share = match words {
        [] => false,
        [word] if word == "--share" => true,
        _ => return Err(format!("it takes {TAKES}")),
    };
    let (begun, mut figures, mut good) = (Instant::now(), Vec::new(), true);
    for (whole, share) in PROOFS {
        let command = format!("cargo xtask {}", if is_share { share } else { whole });
        println!("==== {command}");
        good &= prove(root, &command, &mut figures)?;
    }
    let table = table(&figures);
    println!("\n{table}\n{:.0} s", begun.elapsed().as_secs_f64());
    if is_share || !good {
        return Ok(crate::verdict(good));
    }
    write(&root.join(PAGE), &table)?;
    Ok(crate::verdict(true))
}

/// Runs one, shows what it says, and keeps its figures.
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
        figures.extend(figure(&line, command));
    }
    let status = proof.wait().map_err(|why| format!("{command}: {why}"))?;
    Ok(status.success())
}

fn figure(line: &str, command: &str) -> Option<Figure> {
    let (what, value) = line.strip_prefix("figure  ")?.split_once(": ")?;
    let own = |text: &str| text.to_owned();
    Some(Figure { what: own(what), value: own(value), command: own(command) })
}

fn table(figures: &[Figure]) -> String {
    let mut table = "| what | | by |\n|---|---:|---|\n".to_owned();
    let mut last = "";
    for Figure { what, value, command } in figures {
        let by = if command == last { String::new() } else { format!("`{command}`") };
        table += &format!("| {what} | {value} | {by} |\n");
        last = command;
    }
    table
}

fn write(page: &Path, table: &str) -> Result<(), String> {
    let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", page.display());
    let text = fs::read_to_string(page).map_err(|why| wrong(&why))?;
    let (before, rest) = text.split_once(BEGINS).ok_or_else(|| wrong(&"there is no mark"))?;
    let (_, after) = rest.split_once(ENDS).ok_or_else(|| wrong(&"there is no second mark"))?;
    let text = format!("{before}{BEGINS}\n\n{table}\n{ENDS}{after}");
    fs::write(page, text).map_err(|why| wrong(&why))
}

#[cfg(test)]
mod tests {
    use super::{figure, table};

    #[test]
    fn figures_become_a_table() {
        let lines = ["noise", "figure  seeds: 12", "figure  lost, of 3: 0", "figure nothing"];
        let figures: Vec<_> =
            lines.iter().filter_map(|line| figure(line, "cargo xtask sim")).collect();
        let expected = "| what | | by |\n|---|---:|---|\n\
            | seeds | 12 | `cargo xtask sim` |\n| lost, of 3 | 0 |  |\n";
        assert_eq!(table(&figures), expected);
    }
}
