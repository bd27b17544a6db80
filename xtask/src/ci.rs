//! `cargo xtask ci`: the checks that must pass before a change lands, from a fresh clone.
//!
//! The steps are the commands that a developer would type, including the demo and the tests of the README. All steps run even if
//! one fails, so that one run shows all problems. The tests of the frameworks run while other steps compile. Together
//! they take less than 30 minutes on two cores. The simulator with many seeds, seeded bugs and the fuzzer, which need
//! builds of their own, are in `cargo xtask proofs`; `cargo xtask test` runs the first seeds, and inputs that the
//! fuzzer has found.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::command::{self, StepResult};

/// A command, with a name for the summary.
struct Step {
    name: &'static str,
    command: &'static str,
    env: Option<(&'static str, &'static str)>,
    concurrency: Concurrency,
}

/// What runs at the same time as a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Concurrency {
    /// Nothing, except a step in the background.
    Foreground,
    /// The steps after it, up to the next one that is alone. Its output is printed when it ends.
    Background,
    /// Nothing: it measures times.
    Alone,
}

use Concurrency::{Alone, Background, Foreground};

const STEPS: &[Step] = &[
    Step { name: "format", command: "cargo fmt --all --check", env: None, concurrency: Foreground },
    Step {
        name: "lint",
        command: "cargo clippy --workspace --all-targets -- -D warnings",
        env: None,
        concurrency: Foreground,
    },
    Step {
        name: "docs",
        command: "cargo doc --workspace --no-deps",
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
        concurrency: Foreground,
    },
    Step {
        name: "test",
        command: "cargo xtask test",
        // Tests that need Node must not be skipped.
        env: Some((crate::node::NEEDED, "1")),
        concurrency: Foreground,
    },
    // It mostly waits, for installations and for servers; the steps after it mostly compile.
    Step {
        name: "frameworks",
        command: "cargo xtask sdk --frameworks",
        env: Some((crate::node::NEEDED, "1")),
        concurrency: Background,
    },
    Step {
        name: "release",
        // What the steps after it run.
        command: "cargo build --release --package abide --package abide-stress",
        env: None,
        concurrency: Foreground,
    },
    Step { name: "book", command: "cargo xtask book", env: None, concurrency: Foreground },
    Step { name: "locks", command: "cargo xtask interleave", env: None, concurrency: Foreground },
    Step { name: "demo", command: "cargo run --release -- demo", env: None, concurrency: Alone },
    Step { name: "soak", command: "cargo xtask soak --seconds 20", env: None, concurrency: Alone },
    Step {
        name: "overload",
        command: "cargo xtask overload --share",
        env: None,
        concurrency: Alone,
    },
    Step {
        name: "recovery",
        command: "cargo xtask recovery --share",
        env: None,
        concurrency: Alone,
    },
];

/// The longest time of a step: a step that waits for ever must not take the summary of the others with it.
const STEP_TIME: Duration = Duration::from_mins(40);

/// Where the output of the step in the background goes.
const OUTPUT: &str = "target/ci-background.log";

/// Runs every step. Succeeds if all steps do. A step that takes too long is the last one.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let start = Instant::now();
    let mut results = Vec::new();
    let mut background = None;
    for step in STEPS {
        if step.concurrency == Alone
            && let Some(running) = background.take()
        {
            results.push(finish(root, running)?);
        }
        headline(step);
        let running = step.start(root)?;
        if step.concurrency == Background {
            background = Some((step, thread::spawn(|| running.wait())));
            continue;
        }
        let (result, is_over) = running.wait()?;
        println!("==== {result}");
        results.push(result);
        if !is_over {
            println!("==== {} was ended, and the steps after it did not run", step.name);
            break;
        }
    }
    if let Some(running) = background {
        results.push(finish(root, running)?);
    }
    let good = command::print_concurrent_results(&results, start.elapsed());
    Ok(command::verdict(good))
}

/// Waits for the step in the background, and prints its output.
fn finish(root: &Path, (step, running): (&Step, BackgroundStep)) -> Result<StepResult, String> {
    let (result, _) =
        running.join().map_err(|_| format!("waiting for {} panicked", step.name))??;
    headline(step);
    let output = fs::read(root.join(OUTPUT)).map_err(|why| format!("{OUTPUT}: {why}"))?;
    print!("{}", String::from_utf8_lossy(&output));
    println!("==== {result}");
    Ok(result)
}

/// Waits for a step in the background.
type BackgroundStep = JoinHandle<Result<(StepResult, bool), String>>;

/// A step that was started.
struct RunningStep {
    step: &'static Step,
    child: Child,
    start: Instant,
}

impl Step {
    fn start(&'static self, root: &Path) -> Result<RunningStep, String> {
        let failed = |why: io::Error| format!("cannot run {}: {why}", self.command);
        let mut cargo = command::cargo(root);
        cargo.args(self.command.split(' ').skip(1)).envs(self.env).stdin(Stdio::null());
        if self.concurrency == Background {
            let path = root.join(OUTPUT);
            fs::create_dir_all(path.parent().unwrap_or(root)).map_err(failed)?;
            let output = File::create(&path).map_err(failed)?;
            cargo.stderr(output.try_clone().map_err(failed)?).stdout(output);
        }
        let child = cargo.spawn().map_err(failed)?;
        Ok(RunningStep { step: self, child, start: Instant::now() })
    }
}

impl RunningStep {
    /// Waits until the step ends. The second result is false if it took too long.
    fn wait(mut self) -> Result<(StepResult, bool), String> {
        let failed = |why: io::Error| format!("cannot run {}: {why}", self.step.command);
        let mut status = None;
        while status.is_none() && self.start.elapsed() < STEP_TIME {
            status = self.child.try_wait().map_err(failed)?;
            thread::sleep(Duration::from_millis(100));
        }
        if status.is_none() {
            self.child.kill().map_err(failed)?;
        }
        let good = status.is_some_and(|status| status.success());
        let result =
            StepResult { name: self.step.name.to_owned(), good, took: self.start.elapsed() };
        Ok((result, status.is_some()))
    }
}

fn headline(step: &Step) {
    let env = step.env.map(|(name, value)| format!("{name}=\"{value}\" ")).unwrap_or_default();
    println!("\n==== {}: {env}{}", step.name, step.command);
}
