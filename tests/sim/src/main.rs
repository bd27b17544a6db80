//! `abide-sim crash …`: what `cargo xtask crash` runs.

mod command_line;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    command_line::run(&words).unwrap_or_else(|why| {
        eprintln!("error: {why}");
        ExitCode::from(2)
    })
}
