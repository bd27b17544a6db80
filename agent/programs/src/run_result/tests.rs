//! The truth table: every combination of facts about a run, and its result.

use expect_test::{Expect, expect};

use super::*;

fn exited(code: i32) -> Option<Exit> {
    Some(Exit { code: Some(code), signal: None })
}

fn answer() -> Option<ProgramResult> {
    Some(ProgramResult { text: "42".to_owned(), ..ProgramResult::default() })
}

/// The result in one line: the event, its kind, the answer and the exit status.
fn output(facts: RunFacts) -> String {
    let code = |exit: Option<Exit>| exit.map_or("no exit".to_owned(), |exit| exit.to_string());
    match verdict(facts) {
        ProgramEvent::Final(answer) => format!("final, {}", code(answer.exit)),
        ProgramEvent::Error(failure) => {
            let answer = if failure.answer.is_some() { "with" } else { "without" };
            format!("{}, {answer} its answer, {}", failure.kind, code(failure.exit))
        }
        other => panic!("{other:?} is not terminal"),
    }
}

#[test]
fn final_and_exit_0_is_success() {
    assert_eq!(
        output(RunFacts { answer: answer(), exit: exited(0), ..RunFacts::default() }),
        "final, exited with code 0"
    );
}

#[test]
fn final_and_another_exit_is_runtime_crash_with_both_facts() {
    assert_eq!(
        output(RunFacts { answer: answer(), exit: exited(3), ..RunFacts::default() }),
        "runtime_crash, with its answer, exited with code 3"
    );
}

#[test]
fn no_final_and_exit_0_is_bad_model_output() {
    assert_eq!(
        output(RunFacts { exit: exited(0), ..RunFacts::default() }),
        "bad_model_output, without its answer, exited with code 0"
    );
}

#[test]
fn no_final_and_another_exit_is_runtime_crash() {
    assert_eq!(
        output(RunFacts { exit: exited(3), ..RunFacts::default() }),
        "runtime_crash, without its answer, exited with code 3"
    );
}

#[test]
fn cancel_is_cancelled_even_if_final_was_seen() {
    let stop = Some(StopReason::Cancelled);
    assert_eq!(
        output(RunFacts { stop, answer: answer(), exit: exited(0), ..RunFacts::default() }),
        "cancelled, with its answer, exited with code 0"
    );
}

/// Stop reason × reported failure × answer × exit status × interrupt.
#[test]
fn the_whole_table() {
    let stops = [
        ("", None),
        ("cancelled", Some(StopReason::Cancelled)),
        ("timed out", Some(StopReason::TimedOut(Duration::from_secs(300)))),
        ("too much", Some(StopReason::Overflow(Overflow::Output(9)))),
    ];
    let failures = [
        ("", None),
        (
            "reports a failure",
            Some(Failure::new(ErrorKind::LoopLimit, "the program reported error_max_turns")),
        ),
    ];
    let answers = [("", None), ("answers", answer())];
    let signal = Some(Exit { code: None, signal: Some(15) });
    let exits = [("exits 0", exited(0)), ("exits 1", exited(1)), ("dies", signal)];
    let mut table = String::new();
    for (stopped, stop) in &stops {
        for (fails, failure) in &failures {
            for (answers, answer) in &answers {
                for (exits, exit) in &exits {
                    for interrupted in [false, true] {
                        let facts = RunFacts {
                            stop: stop.clone(),
                            failure: failure.clone(),
                            answer: answer.clone(),
                            exit: *exit,
                            interrupted,
                            ..RunFacts::default()
                        };
                        let asked = if interrupted { "interrupted" } else { "" };
                        let given = [*stopped, asked, *fails, *answers, *exits];
                        let given = given.into_iter().filter(|name| !name.is_empty());
                        let given: Vec<&str> = given.collect();
                        table += &format!("{} => {}\n", given.join(", "), output(facts));
                    }
                }
            }
        }
    }
    expect_test::expect_file!["../../tests/golden/truth-table.txt"].assert_eq(&table);
}

/// Checks the message of the terminal event.
fn message(facts: RunFacts, expected: Expect) {
    match verdict(facts) {
        ProgramEvent::Error(failure) => expected.assert_eq(&failure.message),
        other => panic!("{other:?} is not a failure"),
    }
}

#[test]
fn a_failure_has_a_message() {
    let facts = |stop| RunFacts { stop, ..RunFacts::default() };
    message(facts(Some(StopReason::Cancelled)), expect!["the run was cancelled"]);
    let timed_out = Some(StopReason::TimedOut(Duration::from_millis(1500)));
    message(facts(timed_out), expect!["the program timed out after 1.5 s"]);
    let overflow = Some(StopReason::Overflow(Overflow::Output(4_000_000)));
    message(
        facts(overflow),
        expect!["the program wrote more than 4000000 bytes within a minute (max_output_bytes)"],
    );
    message(
        RunFacts {
            exit: exited(2),
            stderr: "usage: x\nno such flag\n\n".into(),
            ..RunFacts::default()
        },
        expect!["the program exited with code 2: no such flag"],
    );
    message(
        RunFacts { exit: exited(3), answer: answer(), ..RunFacts::default() },
        expect!["the program exited with code 3 after it had given an answer"],
    );
    message(
        RunFacts { exit: exited(1), reported: Some("no quota".to_owned()), ..RunFacts::default() },
        expect!["the program exited with code 1: no quota"],
    );
    message(
        RunFacts { exit: Some(Exit { code: None, signal: Some(9) }), ..RunFacts::default() },
        expect!["the program was killed by signal 9"],
    );
    message(
        RunFacts { exit: exited(0), ..RunFacts::default() },
        expect!["the program exited with code 0 and gave no answer"],
    );
}

#[test]
fn the_first_answer_is_kept_with_a_later_failure() {
    let last_word = ProgramResult { text: "error".to_owned(), ..ProgramResult::default() };
    let mut failure = Failure::new(ErrorKind::RuntimeCrash, "a second turn failed");
    failure.answer = Some(Box::new(last_word));
    let kept = |answer| {
        let failure = Some(failure.clone());
        match verdict(RunFacts { failure, answer, exit: exited(0), ..RunFacts::default() }) {
            ProgramEvent::Error(failure) => failure.answer.map(|answer| answer.text),
            other => panic!("{other:?} is not a failure"),
        }
    };
    assert_eq!(kept(answer()).as_deref(), Some("42"));
    assert_eq!(kept(None).as_deref(), Some("error"));
}
