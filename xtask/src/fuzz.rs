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
    let options = parse(words)?;
    let program = build(root)?;
    let mut good = true;
    for target in &options.targets {
        good &= fuzz(root, &program, target, &options)?;
    }
    Ok(crate::command::exit_code(good))
}

struct Options {
    /// The time of each target.
    seconds: u64,
    /// Makes the inputs reproducible.
    seed: Option<u32>,
    targets: Vec<&'static str>,
}

fn parse(words: &[String]) -> Result<Options, String> {
    let mut options = Options { seconds: 60, seed: None, targets: TARGETS.to_vec() };
    for pair in words.chunks(2) {
        match pair {
            [option, number] if option == "--seconds" => {
                options.seconds = number
                    .parse()
                    .map_err(|_| format!("--seconds takes a number, not {number}"))?;
            }
            [option, number] if option == "--seed" => {
                let seed = number.parse();
                options.seed =
                    Some(seed.map_err(|_| format!("--seed takes a number, not {number}"))?);
            }
            [option, name] if option == "--target" => {
                options.targets.retain(|target| target == name);
                if options.targets.is_empty() {
                    return Err(format!("--target takes one of {}", TARGETS.join(", ")));
                }
            }
            _ => return Err(format!("the arguments are {TAKES}")),
        }
    }
    Ok(options)
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

/// Returns the host triple of rustc.
fn host() -> Result<String, String> {
    let output =
        Command::new("rustc").arg("-vV").output().map_err(|why| format!("rustc: {why}"))?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = output.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).ok_or_else(|| "rustc does not print its host".to_owned())
}

/// Fuzzes one target. Returns `true` if nothing was found.
fn fuzz(root: &Path, program: &Path, target: &str, options: &Options) -> Result<bool, String> {
    let seconds = options.seconds;
    let corpus = root.join("tests/fuzz/corpus").join(target);
    let found = root.join("tests/fuzz/found").join(target);
    // New inputs go to the build's folder, because the repository has only a few inputs.
    let new_inputs = program.with_file_name("corpus").join(target);
    for folder in [&new_inputs, &found] {
        fs::create_dir_all(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    }
    let mut fuzzer = Command::new(program);
    fuzzer.env("ABIDE_FUZZ_TARGET", target).stdin(Stdio::null()).stderr(Stdio::piped());
    fuzzer.arg(format!("-max_total_time={seconds}")).arg("-timeout=60").arg("-rss_limit_mb=4096");
    fuzzer.arg("-max_len=4096").arg("-print_final_stats=1");
    fuzzer.args(options.seed.map(|seed| format!("-seed={seed}")));
    fuzzer.arg(format!("-artifact_prefix={}/", found.display()));
    let output = fuzzer.arg(&new_inputs).arg(&corpus).output();
    let output = output.map_err(|why| format!("{}: {why}", program.display()))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let inputs = stderr
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .map_or("?", str::trim);
    println!("fuzz      {target:<10} {inputs:>9} inputs in {seconds} s");
    println!("figure  bad inputs tried by the fuzzer of {target}: {inputs}");
    if output.status.success() {
        // The folder is empty unless something was found.
        let _ = fs::remove_dir(&found);
        return Ok(true);
    }
    let last: Vec<&str> = stderr.lines().rev().take(60).collect();
    last.iter().rev().for_each(|line| println!("{line}"));
    println!("stored in {}; fix the bug, and commit the input", found.display());
    Ok(false)
}
