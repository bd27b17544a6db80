//! `cargo xtask test`: all tests of the workspace and of the SDKs of other languages, and a summary.
//!
//! It runs `cargo test`, then the suites of the SDKs, and adds the totals over all test binaries. A test that must leave something out (for
//! example, recordings that are not on this machine) prints a line past the harness' capture, which is repeated at
//! the end: `writeln!(std::io::stdout(), "skipped: 12 of 13 files (ABIDE_EXTERNAL_FIXTURES)")`. A test with a time
//! budget prints its progress in the same way, after `counted: `.

mod tally;

#[cfg(test)]
mod tests;

use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::thread;
use std::time::Instant;

use tally::Tally;

const COMMAND: [&str; 3] = ["test", "--workspace", "--no-fail-fast"];

/// Runs the suite; the last line is `N passed, N failed`.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    crate::node::install(root)?;
    let command = format!("cargo {}", COMMAND.join(" "));
    println!("running   {command}: unit, integration and doc tests of every crate, including tidy");

    let start = Instant::now();
    let mut tally = run_cargo(root, &command)?;
    let sdks = crate::sdk::run_sdks(root)?;
    println!("\nran       all tests in {:.0} s", start.elapsed().as_secs_f64());
    sdks.results.iter().for_each(|suite| tally.add(suite));
    tally.skipped.extend(sdks.skipped);
    print!("{tally}");
    Ok(crate::command::exit_code(tally.failed == 0))
}

/// Returns how many tests run at the same time: twice the processors, because many wait for processes and the disk.
fn threads() -> usize {
    2 * thread::available_parallelism().map_or(1, NonZero::get)
}

fn run_cargo(root: &Path, command: &str) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let mut cargo = crate::command::cargo(root)
        .args(COMMAND)
        .env("RUST_TEST_THREADS", threads().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|why| format!("cannot start `{command}`: {why}"))?;
    let stdout = cargo.stdout.take().expect("stdout is piped");
    pass_through(BufReader::new(stdout), &mut tally)
        .and_then(|()| cargo.wait())
        .map(|status| tally.end(status.success()))
        .map_err(|why| format!("lost `{command}`: {why}"))?;
    Ok(tally)
}

/// Prints each line as it arrives, and counts.
fn pass_through(mut from: impl BufRead, tally: &mut Tally) -> io::Result<()> {
    let mut to = io::stdout();
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        tally.read(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok(())
}
