//! The summary matches the output.

use super::tally::Tally;

fn account(success: bool, output: &str) -> String {
    let mut tally = Tally::default();
    output.lines().for_each(|line| tally.read(line));
    tally.end(success);
    tally.to_string()
}

#[test]
fn sums_all_suites() {
    let output = "\
running 3 tests
test a ... ok
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
test result: ok. 39 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 1.20s
";
    let expected = "\
suites    2
skipped   2 tests with #[ignore]
42 passed, 0 failed
";
    assert_eq!(account(true, output), expected);
}

#[test]
fn lists_failed_and_omitted_tests() {
    let output = "\
test b::c ... FAILED
test d ... skipped: 12 of 13 files (ABIDE_EXTERNAL_FIXTURES)
ok
test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";
    let expected = "\
suites    1
skipped   12 of 13 files (ABIDE_EXTERNAL_FIXTURES)
failed    b::c
3 passed, 1 failed
";
    assert_eq!(account(false, output), expected);
}

/// A build error ends cargo before any result line: the count of failures is zero, but the run has failed.
#[test]
fn a_broken_build_is_a_failure() {
    let expected = "\
suites    0
failed    cargo test itself: the build failed, or a test binary crashed
0 passed, 1 failed
";
    assert_eq!(account(false, ""), expected);
}

#[test]
fn repeats_the_counted_lines() {
    let output = "\
test proof::random ... counted: live SQL: 412 seeds in 20 s
ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 20.00s
";
    let expected = "\
suites    1
counted   live SQL: 412 seeds in 20 s
1 passed, 0 failed
";
    assert_eq!(account(true, output), expected);
}
