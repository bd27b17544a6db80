//! `cargo xtask generate`: writes the files that follow from the reducers and their tables.
//!
//! Each of them is the golden file of a test, which runs here with `UPDATE_EXPECT`; so `cargo xtask test` finds a file that
//! is out of date. The types of the TypeScript SDK are written by its own program, which needs Node.

use std::path::Path;
use std::process::{ExitCode, Stdio};

use crate::{command, sdk};

/// The tests whose golden files are written, in the binaries of [`BINARIES`].
const TESTS: [&str; 4] = [
    // reducers/src/arguments.rs
    "arguments::the_types_of_all_arguments_are_exported",
    // reducers/tests/rules/arguments.txt
    "arguments::the_arguments_of_each_reducer",
    // The list in the test itself.
    "identities::the_reducers_of_each_role",
    // tests/golden/
    "database::the_schema_of_format_5",
];

const BINARIES: [&str; 2] = ["rules", "it"];

/// Writes the files. Fails if one of them cannot be written.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let mut cargo = command::cargo(root);
    // The features of `cargo xtask test`, so that nothing is compiled twice.
    cargo.args(["test", "--quiet", "--workspace"]);
    cargo.args(BINARIES.iter().flat_map(|binary| ["--test", binary]));
    cargo.args(["--", "--exact"]).args(TESTS);
    command::succeed(cargo.env("UPDATE_EXPECT", "1").stdin(Stdio::null()), "cargo test")?;
    sdk::write_types(root)
}
