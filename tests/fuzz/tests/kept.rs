//! Runs every stored input through its target: the fuzzers' corpus (`corpus/`), and inputs of fixed
//! bugs (`found/`).

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use abide_fuzz::TARGETS;

fn inputs(of: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(of).join(target);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_stored_input_passes() {
    let mut counted = 0;
    for target in &TARGETS {
        let corpus = inputs("corpus", target.name);
        assert!(!corpus.is_empty(), "{} has no corpus", target.name);
        for path in corpus.into_iter().chain(inputs("found", target.name)) {
            let input = fs::read(&path).expect("an input can be read");
            let passed = std::panic::catch_unwind(|| (target.run)(&input));
            assert!(passed.is_ok(), "{}", path.display());
            counted += 1;
        }
    }
    let mut stdout = std::io::stdout();
    let output =
        writeln!(stdout, "counted: {counted} inputs of fuzzers: cargo xtask fuzz makes more");
    output.expect("stdout can be written");
}
