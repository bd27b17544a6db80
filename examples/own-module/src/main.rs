//! Abide with one more table and one more reducer.

mod notes;

fn main() -> std::process::ExitCode {
    abide::main(vec![notes::module()])
}
