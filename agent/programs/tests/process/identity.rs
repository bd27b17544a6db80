//! The identity of a program: with it, another process can end the program and no other one.

use abide_programs::{ProcessIdentity, ProgramEvent, Prompt, spawn_paused};
use futures_util::StreamExt as _;

use crate::{NEVER, SOON, end, fake, start};

/// Reads the lines of a run until the fake agent has written one.
async fn started(steps: &[&str]) -> (abide_programs::Running, ProcessIdentity) {
    let steps = [steps, &["line", "{}", "hang"]].concat();
    let mut running = start(fake(&steps));
    running.next().await.expect("the program has started");
    let identity = running.process().expect("the system shows it").clone();
    (running, identity)
}

/// The signal that ended the program of a run.
async fn signal(running: abide_programs::Running) -> Option<i32> {
    match end(running).await {
        ProgramEvent::Error(failure) => failure.exit.and_then(|exit| exit.signal),
        other => panic!("{other:?} is not a failure"),
    }
}

#[tokio::test]
async fn the_group_of_an_identity_is_ended() {
    let (running, identity) = started(&["child"]).await;
    assert!(identity.end(NEVER).await.expect("it can be ended"), "there was a process");
    assert_eq!(signal(running).await, Some(15));
    assert!(!identity.end(NEVER).await.expect("nothing is left"), "it has ended before");
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_is_killed() {
    let (running, identity) = started(&["ignore-term"]).await;
    assert!(identity.end(SOON).await.expect("it can be ended"), "there was a process");
    assert_eq!(signal(running).await, Some(9));
}

/// Process ids are reused: a process with another start time, in another session or of another boot is a stranger.
#[tokio::test]
async fn another_process_with_the_same_id_is_not_touched() {
    let (running, identity) = started(&[]).await;
    for other in [
        ProcessIdentity { started: identity.started - 1, ..identity.clone() },
        ProcessIdentity { started: identity.started + 1, ..identity.clone() },
        ProcessIdentity { session: identity.session + 1, ..identity.clone() },
        ProcessIdentity { boot: "another".to_owned(), ..identity.clone() },
    ] {
        assert!(!other.end(SOON).await.expect("nothing is signalled"), "{other:?}");
    }
    assert!(identity.end(NEVER).await.expect("it can be ended"), "the program still runs");
    drop(running);
}

/// The prompt is held back, so that the identity can be stored before the program works.
#[tokio::test]
async fn a_program_gets_its_prompt_when_the_run_begins() {
    let mut running = spawn_paused(fake(&["line", "{}", "echo"]), Prompt::user("Hello."), None);
    let first = running.next().await.expect("the program has started");
    assert_eq!(first.raw.as_deref(), Some("{}"));
    assert!(running.process().is_some(), "the identity is known before the prompt is sent");
    running.send_prompt();
    let echo = running.next().await.expect("the program has read its input");
    assert!(echo.raw.is_some_and(|raw| raw.contains("Hello.")));
}
