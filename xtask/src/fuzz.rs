//! `cargo xtask fuzz`: the targets of `tests/fuzz/` under libFuzzer, each for a number of seconds.
//!
//! This needs neither nightly nor cargo-fuzz: libFuzzer's coverage is an LLVM pass that stable rustc can run. The
//! build has its own target folder, because all crates are built with that pass. An input that makes a target panic
//! is stored in `tests/fuzz/found/`: fix the bug, and commit the input.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The arguments.
pub(crate) const TAKES: &str =
    "[--seconds N] [--seed N] [--target NAME]   each target (or one) for N seconds (60)";

/// The kinds of untrusted input, see `tests/fuzz/src/lib.rs`.
const TARGETS: [&str; 7] = ["sql", "message", "http", "protocol", "event", "file", "arguments"];

/// The flags of cargo-fuzz: counters for each edge, and traces of comparisons.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions -Ccodegen-units=16 --cfg fuzzing";

/// Runs the fuzzer. Succeeds if no target finds anything.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let (seconds, seed, targets) = wanted(words)?;
    let program = build(root)?;
    let mut good = true;
    for target in targets {
        good &= fuzz(root, &program, target, (seconds, seed))?;
    }
    Ok(crate::command::exit_code(good))
}

fn wanted(words: &[String]) -> Result<(u64, Option<u32>, Vec<&'static str>), String> {
    let mut seconds = 60;
    let mut seed = None;
    let mut targets = TARGETS.to_vec();
    for pair in words.chunks(2) {
        match pair {
            [option, number] if option == "--seconds" => {
                let bad = |_| format!("--seconds takes a number, not {number}");
                seconds = number.parse().map_err(bad)?;
            }
            [option, number] if option == "--seed" => {
                let bad = |_| format!("--seed takes a number, not {number}");
                seed = Some(number.parse().map_err(bad)?);
            }
            [option, name] if option == "--target" => {
                targets.retain(|target| target == name);
                if targets.is_empty() {
                    return Err(format!("--target takes one of {}", TARGETS.join(", ")));
                }
            }
            _ => return Err(format!("the arguments are {TAKES}")),
        }
    }
    Ok((seconds, seed, targets))
}

/// Builds the fuzzer and returns its path.
fn build(root: &Path) -> Result<PathBuf, String> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .map_err(|why| format!("cargo metadata: {why}"))?;
    let folder = metadata.target_directory.as_std_path().join("fuzz");
    let host = host()?;
    let mut cargo = crate::command::cargo(root);
    cargo.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "abide-fuzz",
        "--features",
        "fuzzer",
    ]);
    // With an explicit target, build scripts and macros are built without these flags.
    cargo.args(["--bin", "abide-fuzz", "--target", &host, "--target-dir"]).arg(&folder);
    cargo.env("RUSTFLAGS", COVERAGE).env("CARGO_PROFILE_RELEASE_LTO", "off").stdin(Stdio::null());
    let built = cargo.status().map_err(|why| format!("cannot start cargo: {why}"))?;
    if !built.success() {
        return Err("the fuzzer does not build; libFuzzer needs a C++ compiler".to_owned());
    }
    Ok(folder.join(host).join("release/abide-fuzz"))
}

/// The host triple of rustc.
fn host() -> Result<String, String> {
    let output =
        Command::new("rustc").arg("-vV").output().map_err(|why| format!("rustc: {why}"))?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = output.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).ok_or_else(|| "rustc does not print its host".to_owned())
}

/// Fuzzes one target for a number of seconds. Returns true if nothing was found. The inputs are reproducible with a
/// seed.
fn fuzz(
    root: &Path,
    program: &Path,
    target: &str,
    (seconds, seed): (u64, Option<u32>),
) -> Result<bool, String> {
    let room = root.join("tests/fuzz");
    let corpus = room.join("corpus").join(target);
    let found = room.join("found").join(target);
    // New inputs go to the build's folder, because the repository has only a few inputs.
    let grown = program.with_file_name("corpus").join(target);
    let begins = |path: &Path| fs::create_dir_all(path).map_err(|why| format!("{why}"));
    begins(&grown)?;
    begins(&found)?;
    let mut fuzzer = Command::new(program);
    fuzzer.env("ABIDE_FUZZ_TARGET", target).stdin(Stdio::null()).stderr(Stdio::piped());
    fuzzer.arg(format!("-max_total_time={seconds}")).arg("-timeout=60").arg("-rss_limit_mb=4096");
    fuzzer.arg("-max_len=4096").arg("-print_final_stats=1");
    fuzzer.args(seed.map(|seed| format!("-seed={seed}")));
    fuzzer.arg(format!("-artifact_prefix={}/", found.display()));
    let ended = fuzzer.arg(&grown).arg(&corpus).output();
    let ended = ended.map_err(|why| format!("{}: {why}", program.display()))?;
    let stderr = String::from_utf8_lossy(&ended.stderr);
    let number = |name: &str| {
        let line = stderr.lines().find_map(|line| line.strip_prefix(name));
        line.map_or("?", str::trim).to_owned()
    };
    let inputs = number("stat::number_of_executed_units:");
    println!("fuzz      {target:<10} {inputs:>9} inputs in {seconds} s");
    println!("figure  bad inputs tried by the fuzzer of {target}: {inputs}");
    if ended.status.success() {
        // The folder is empty unless something was found.
        let _ = fs::remove_dir(&found);
        return Ok(true);
    }
    let last: Vec<&str> = stderr.lines().rev().take(60).collect();
    last.iter().rev().for_each(|line| println!("{line}"));
    println!("stored in {}; fix the bug, and commit the input", found.display());
    Ok(false)
}
