//! Abide with one more table and one more reducer.

use std::process::ExitCode;

mod notes;

fn main() -> ExitCode {
    abide::main(vec![notes::module()])
}
