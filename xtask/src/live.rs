//! `cargo xtask live`: the proofs of live SQL, in release, on all cores.
//!
//! These are the tests of `tests/live/`, with any number of seeds or minutes; `cargo xtask test` runs a smaller
//! share (`tests/live/seed_budget.rs`). They run sequentially, because each one uses all cores.

use std::path::Path;
use std::process::{ExitCode, Stdio};

/// The arguments.
pub(crate) const TAKES: &str = "[--seeds N | --minutes N | --seed N]   N seeds of each proof (10000; a tenth where a seed \
    opens an engine), N minutes, or that seed";

/// The default number of seeds.
const SEEDS: u64 = 10_000;

const COMMAND: [&str; 9] = [
    "test",
    "--release",
    "--package",
    "abide-tests",
    "--test",
    "live",
    "--",
    "--nocapture",
    "--test-threads=1",
];

/// Runs the tests. Succeeds if they do.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let (variable, number) = parse(words)?;
    let mut cargo = crate::command::cargo(root);
    cargo.args(COMMAND).stdin(Stdio::null());
    for other in ["LIVE_SEED", "LIVE_SEEDS", "LIVE_MINUTES"] {
        cargo.env_remove(other);
    }
    cargo.env(variable, number.to_string());
    let status = cargo.status().map_err(|why| format!("cannot start cargo: {why}"))?;
    Ok(crate::command::exit_code(status.success()))
}

/// Returns the environment variable that sets the number of seeds or minutes, and its value.
fn parse(words: &[String]) -> Result<(&'static str, u64), String> {
    let (option, number) = match words {
        [] => return Ok(("LIVE_SEEDS", SEEDS)),
        [option, number] => (option.as_str(), number),
        _ => return Err(format!("the arguments are {TAKES}")),
    };
    let variable = match option {
        "--seeds" => "LIVE_SEEDS",
        "--minutes" => "LIVE_MINUTES",
        "--seed" => "LIVE_SEED",
        _ => return Err(format!("unknown option {option}; the arguments are {TAKES}")),
    };
    let number = number.parse().map_err(|_| format!("{option} takes a number, not {number}"))?;
    Ok((variable, number))
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn parse_line(line: &str) -> Result<(&'static str, u64), String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words)
    }

    #[test]
    fn parses_the_extent() {
        assert_eq!(parse_line(""), Ok(("LIVE_SEEDS", 10_000)));
        assert_eq!(parse_line("--seeds 12"), Ok(("LIVE_SEEDS", 12)));
        assert_eq!(parse_line("--minutes 3"), Ok(("LIVE_MINUTES", 3)));
        assert_eq!(parse_line("--seed 4711"), Ok(("LIVE_SEED", 4711)));
        for line in ["--seed", "--seed x", "--seed -1", "--days 3", "1 2 3"] {
            parse_line(line).expect_err(line);
        }
    }
}
