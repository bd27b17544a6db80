//! The program `abide`: the command line with the built-in modules.

use std::process::ExitCode;

fn main() -> ExitCode {
    abide::main(Vec::new())
}
