//! Abide with one more table and one more reducer.

mod notes;

/// The allocator of the program `abide`.
#[global_allocator]
static ALLOCATOR: abide::Allocator = abide::Allocator;

fn main() -> std::process::ExitCode {
    abide::main(vec![notes::module()])
}
