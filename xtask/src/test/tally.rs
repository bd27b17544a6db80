//! Totals of the output of `cargo test`.

use std::fmt;

use crate::command::StepResult;

/// The totals over all suites: test binaries, and the doc tests of each crate.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    suites: usize,
    ignored: usize,
    pub(crate) skipped: Vec<String>,
    counted: Vec<String>,
    failures: Vec<String>,
}

impl Tally {
    /// Reads one line of output of any kind.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.suites += 1;
            self.passed += count(result, "passed");
            self.failed += count(result, "failed");
            self.ignored += count(result, "ignored");
        } else if let Some((_, what)) = line.split_once("skipped: ") {
            self.skipped.push(what.to_owned());
        } else if let Some((_, what)) = line.split_once("counted: ") {
            self.counted.push(what.to_owned());
        } else if let Some(name) = failed_test(line) {
            self.failures.push(name.to_owned());
        }
    }

    /// Counts a command of another language's suite as one test.
    pub(crate) fn add(&mut self, suite: &StepResult) {
        self.suites += 1;
        if suite.good {
            self.passed += 1;
        } else {
            self.failed += 1;
            self.failures.push(suite.name.clone());
        }
    }

    /// Reads cargo's exit status. A suite that does not build and a test binary that was killed print no result
    /// line, and must not count as success.
    pub(crate) fn end(&mut self, success: bool) {
        if !success && self.failed == 0 {
            self.failed = 1;
            self.failures
                .push("cargo test itself: the build failed, or a test binary crashed".to_owned());
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "suites    {}", self.suites)?;
        if self.ignored > 0 {
            writeln!(f, "skipped   {} tests with #[ignore]", self.ignored)?;
        }
        for what in &self.skipped {
            writeln!(f, "skipped   {what}")?;
        }
        for what in &self.counted {
            writeln!(f, "counted   {what}")?;
        }
        for name in &self.failures {
            writeln!(f, "failed    {name}")?;
        }
        writeln!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// The `3` of `ok. 3 passed; 0 failed; …`.
fn count(result: &str, word: &str) -> usize {
    let before = result.split([';', '.']).find_map(|part| part.trim().strip_suffix(word));
    before.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// The `a::b` of `test a::b ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}
