//! The program `abide`: the command line with the built-in modules.

use std::process::ExitCode;

/// Values are allocated on one thread and freed on another, and large ones come and go.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    abide::main(Vec::new())
}
