//! `cargo xtask visibility`: the proof that a restricted caller sees exactly what it may see, for longer than in `cargo
//! xtask test`.
//!
//! There are two tests: `tests/live/proof/bounded.rs` with random schemas, queries and commits, and
//! `tests/it/visibility.rs` with random identities, scopes, policies and changing sessions.

use std::path::Path;
use std::process::{ExitCode, Stdio};

/// The arguments.
pub(crate) const TAKES: &str =
    "[--seeds N | --seed N]   the first N of each proof (500), or that one";

const SEEDS: u64 = 500;

const TESTS: [(&str, &str); 2] = [
    ("live", "proof::bounded::a_restricted_caller_sees_the_result_over_a_filtered_copy"),
    ("it", "visibility::every_identity_sees_exactly_what_it_may_see"),
];

/// Runs both tests. Succeeds if they do.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let (option, number) = match words {
        [] => ("--seeds", SEEDS),
        [option, number] => (
            option.as_str(),
            number.parse().map_err(|_| format!("{option} takes a number, not {number}"))?,
        ),
        _ => return Err(format!("the arguments are {TAKES}")),
    };
    let variables: &[&str] = match option {
        "--seeds" => &["VISIBILITY_SEEDS", "LIVE_SEEDS"],
        "--seed" => &["LIVE_SEED", "ABIDE_SEED"],
        other => return Err(format!("unknown option {other}; the arguments are {TAKES}")),
    };
    let mut good = true;
    for (binary, test) in TESTS {
        let mut cargo = crate::command::cargo(root);
        cargo.args(["test", "--release", "--package", "abide-tests", "--test", binary]);
        cargo.args(["--", "--nocapture", "--exact", test]).stdin(Stdio::null());
        for other in ["VISIBILITY_SEEDS", "ABIDE_SEED", "LIVE_SEED", "LIVE_SEEDS", "LIVE_MINUTES"] {
            cargo.env_remove(other);
        }
        for variable in variables {
            cargo.env(variable, number.to_string());
        }
        let status = cargo.status().map_err(|why| format!("cannot start cargo: {why}"))?;
        good &= status.success();
    }
    Ok(crate::command::exit_code(good))
}
