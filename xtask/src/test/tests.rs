//! The account at the end says what the lines said.

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
left out  2 that their authors marked as ignored
42 passed, 0 failed
";
    assert_eq!(account(true, output), expected);
}

#[test]
fn names_what_failed_and_what_was_left_out() {
    let output = "\
test b::c ... FAILED
test d ... left out: 12 of 13 files, ../shared is not here
ok
test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";
    let expected = "\
suites    1
left out  12 of 13 files, ../shared is not here
failed    b::c
3 passed, 1 failed
";
    assert_eq!(account(false, output), expected);
}

/// A build error ends cargo before any result line: nothing failed by count, all of it in fact.
#[test]
fn a_broken_build_is_a_failure() {
    let expected = "\
suites    0
failed    cargo test itself: no build, or a test binary that died
0 passed, 1 failed
";
    assert_eq!(account(false, ""), expected);
}

#[test]
fn repeats_what_was_counted() {
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
