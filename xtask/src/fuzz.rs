//! `cargo xtask fuzz`: the targets of `tests/fuzz/` under libFuzzer, each for some seconds.
//!
//! No nightly and no cargo-fuzz: the coverage that guides libFuzzer is a pass of LLVM, which stable rustc can be told to
//! run. Built into a folder of its own, since all crates are built with it. An input that makes a target panic is kept under
//! `tests/fuzz/found/`: mend the bug, and commit the input with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// What it takes.
pub(crate) const TAKES: &str =
    "[--seconds N] [--seed N] [--target NAME]   each target (or one) for N seconds (60)";

/// What may be sent or handed to us, see `tests/fuzz/src/lib.rs`.
const TARGETS: [&str; 6] = ["sql", "message", "http", "event", "file", "arguments"];

/// As cargo-fuzz sets them: counters for each edge, and what is compared with what.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions -Ccodegen-units=16 --cfg fuzzing";

/// Runs it; the verdict is that no target found anything.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let (seconds, seed, targets) = wanted(words)?;
    let program = build(root)?;
    let mut good = true;
    for target in targets {
        good &= fuzz(root, &program, target, (seconds, seed))?;
    }
    Ok(crate::verdict(good))
}

fn wanted(words: &[String]) -> Result<(u64, Option<u32>, Vec<&'static str>), String> {
    let (mut seconds, mut seed, mut targets) = (60, None, TARGETS.to_vec());
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
            _ => return Err(format!("it takes {TAKES}")),
        }
    }
    Ok((seconds, seed, targets))
}

/// Builds the fuzzer, and tells where it is.
fn build(root: &Path) -> Result<PathBuf, String> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .map_err(|why| format!("cargo metadata: {why}"))?;
    let folder = metadata.target_directory.as_std_path().join("fuzz");
    let host = host()?;
    let mut cargo = crate::cargo(root);
    cargo.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "abide-fuzz",
        "--features",
        "fuzzer",
    ]);
    // With a target named, build scripts and macros are built without these flags.
    cargo.args(["--bin", "abide-fuzz", "--target", &host, "--target-dir"]).arg(&folder);
    cargo.env("RUSTFLAGS", COVERAGE).env("CARGO_PROFILE_RELEASE_LTO", "off").stdin(Stdio::null());
    let built = cargo.status().map_err(|why| format!("cannot start cargo: {why}"))?;
    if !built.success() {
        return Err("the fuzzer does not build; libFuzzer takes a C++ compiler".to_owned());
    }
    Ok(folder.join(host).join("release/abide-fuzz"))
}

/// What this machine is called by rustc.
fn host() -> Result<String, String> {
    let told = Command::new("rustc").arg("-vV").output().map_err(|why| format!("rustc: {why}"))?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let line = told.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).ok_or_else(|| "rustc does not tell its host".to_owned())
}

/// Fuzzes one target for so many seconds; true if nothing was found. With a seed it makes up the same inputs in the same
/// order, as far as it comes.
fn fuzz(
    root: &Path,
    program: &Path,
    target: &str,
    (seconds, seed): (u64, Option<u32>),
) -> Result<bool, String> {
    let room = root.join("tests/fuzz");
    let (corpus, found) = (room.join("corpus").join(target), room.join("found").join(target));
    // What it comes upon goes to the build's folder: the repository keeps a few inputs, not thousands.
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
    let said = String::from_utf8_lossy(&ended.stderr);
    let number = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.map_or("?", str::trim).to_owned()
    };
    let inputs = number("stat::number_of_executed_units:");
    println!("fuzz      {target:<10} {inputs:>9} inputs in {seconds} s");
    println!("figure  bad inputs tried by the fuzzer of {target}: {inputs}");
    if ended.status.success() {
        // Empty unless something was found: git keeps no empty folders either.
        let _ = fs::remove_dir(&found);
        return Ok(true);
    }
    let last: Vec<&str> = said.lines().rev().take(60).collect();
    last.iter().rev().for_each(|line| println!("{line}"));
    println!("kept under {}; mend the bug, and commit the input with it", found.display());
    Ok(false)
}
