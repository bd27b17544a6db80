//! The program `abide`: the command line with the built-in modules.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: abide::Allocator = abide::Allocator;

fn main() -> ExitCode {
    abide::main(Vec::new())
}
