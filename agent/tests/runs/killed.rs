//! SIGKILL at every step: a process drives a run with three tools, an approval and parallel calls, and in further
//! scenarios a delegation, a handoff and an answer that is held back. It is killed when the log reaches seq 1, 2,
//! 3 … The next process must finish the run with the same result, and a tool that must not run twice has run at
//! most once.

use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use abide_agent::Runtime;
use abide_client::arguments::{
    ClaimHandoff, CreateSession, DecideApproval, Decision, ResolveHandoff, ResumeRun, StartRun,
};
use abide_client::{Abide, Call};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::compaction::derived;
use crate::fixture::{define, ledger, providers, runtime_of, temporary_folder, transcript};
use crate::victim::{self, Victim};

/// Environment variable of the process that is killed: the name of its scenario.
const SCENARIO: &str = "ABIDE_AGENT_SCENARIO";

/// The work of the victim: the files of its agents, and the scripts of its models.
struct Scenario {
    name: &'static str,
    agents: &'static [(&'static str, &'static str)],
    scripts: &'static [(&'static str, &'static str)],
    /// How often `pay` runs.
    pays: usize,
}

const SCENARIOS: [Scenario; 11] = [
    Scenario {
        name: "pays",
        agents: &[("clerk", "tools: [look, note, pay]\ninterrupt_on: { pay: true }\n")],
        scripts: &[("script", SCRIPT)],
        pays: 1,
    },
    Scenario {
        name: "delegates",
        agents: &[
            (
                "clerk",
                "config: { provider: script }\nlimits: { tokens: 100000 }\nsubagents: [helper]\n",
            ),
            (
                "helper",
                "mode: subagent\nas_tool: { name: arrange }\nconfig: { provider: helps }\n\
                 tools: [pay]\ninterrupt_on: { pay: true }\n",
            ),
        ],
        scripts: &[
            (
                "script",
                "answers: [{ calls: [{ name: arrange, arguments: { input: Pay A. } }] }, \
                 { text: It is paid. }]",
            ),
            (
                "helps",
                "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, { text: Paid. }]",
            ),
        ],
        pays: 1,
    },
    Scenario {
        name: "hands over",
        agents: &[
            ("clerk", "config: { provider: script }\nsubagents: [other]\n"),
            (
                "other",
                "mode: subagent\nas_handoff: {}\nconfig: { provider: other }\ntools: [pay]\n",
            ),
        ],
        scripts: &[
            (
                "script",
                "answers: [{ calls: [{ name: handoff_to_other }] }, {}, {}, { text: It is paid. }]",
            ),
            (
                "other",
                "answers: [{}, { calls: [{ name: pay, arguments: { order: A } }] }, \
                 { calls: [{ name: hand_back }] }]",
            ),
        ],
        pays: 1,
    },
    Scenario {
        name: "withholds",
        agents: &[(
            "clerk",
            "middleware: [{ name: guardrail, at: response, deny: swordfish, message: No. }]\n",
        )],
        scripts: &[("script", "answers: [{ text: One. Two. Three. It is swordfish. }]")],
        pays: 0,
    },
    Scenario {
        name: "remembers",
        agents: &[("clerk", "profile: fast\ntools: [look, pay]\n")],
        scripts: &[("script", REMEMBERS)],
        pays: 1,
    },
    Scenario {
        name: "compacts",
        agents: &[(
            "clerk",
            "tools: [look]\nlimits: { tokens: 100000 }\nprofile: { memory: { enabled: false }, context: { window_tokens: 900, compact_above_tokens: 350, \
             compact_to_tokens: 260, summary_token_limit: 100, chunk_tokens: 140, last_answers: 1 } }\n",
        )],
        scripts: &[("script", COMPACTED)],
        pays: 0,
    },
    Scenario {
        name: "pauses",
        agents: &[(
            "clerk",
            "tools: [pay]\npause: [{ at: before_guardrails }, { at: after_agent }, \
                   { at: after_tools }, { at: after_loop }]\n",
        )],
        scripts: &[(
            "script",
            "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, \
                    { text: It is paid. }]",
        )],
        pays: 1,
    },
    Scenario {
        name: "filters",
        agents: &[("clerk", "tools: [pay]\nmiddleware: [pii, marks, observability, streaming]\n")],
        scripts: &[(
            "script",
            "answers: [{ text: I ask swordfish@example.com. Wait., \
             calls: [{ name: pay, arguments: { order: A? } }] }, { text: It is PAID. }]",
        )],
        pays: 1,
    },
    Scenario {
        name: "withholds a summary",
        agents: &[(
            "clerk",
            "config: { provider: script }\ntools: [look]\nlimits: { tokens: 100000 }\nprofile: { context: { window_tokens: 900, compact_above_tokens: 350, \
             compact_to_tokens: 260, summary_token_limit: 100, chunk_tokens: 140, last_answers: 1 }, memory: { enabled: false }, watchdog: { enabled: false } }\n\
             middleware: [{ name: guardrail, at: response, message: No., verdict: { provider: judge, instructions: No passwords. } }]\n",
        )],
        scripts: &[
            ("script", WITHHELD),
            (
                "judge",
                "answers: [{ text: '{\"allow\": false}', usage: { input_tokens: 5, output_tokens: 2 } }]",
            ),
        ],
        pays: 0,
    },
    Scenario {
        name: "asks a supervisor",
        agents: &[("clerk", "tools: [pay]\nsupervisor: { capability: boss }\n")],
        scripts: &[(
            "script",
            "answers: [{ calls: [{ name: request_supervisor, arguments: { reason: May I? } }] }, \
             { calls: [{ name: pay, arguments: { order: A } }] }, { text: It is paid. }]",
        )],
        pays: 1,
    },
    Scenario {
        name: "runs a loop in Rust",
        agents: &[("clerk", "loop: errands\ntools: [look, pay]\ninterrupt_on: { pay: true }\n")],
        scripts: &[("script", "answers: []")],
        pays: 1,
    },
];

/// A model that saves and changes facts, and repeats itself until it is warned.
const REMEMBERS: &str = r#"
answers:
  - calls: [{ name: save_memory, arguments: { key: a, value: One. } }, { name: pay, arguments: { order: A } }]
  - calls: [{ name: look, arguments: { order: A } }]
  - calls: [{ name: look, arguments: { order: A } }]
  - calls: [{ name: look, arguments: { order: A } }]
  - calls: [{ name: save_memory, arguments: { key: b, value: Two. } }, { name: forget_memory, arguments: { key: a } }]
  - text: It is paid.
"#;

/// Results of more than 200 characters, so that they are archived.
const COMPACTED: &str = r#"
summary: '{"stable_facts": [{"key": "state", "value": "looked", "confidence": 0.9}], "raw_summary": "Looked."}'
answers:
  - calls: [{ name: look, arguments: { order: "A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A" } }]
  - calls: [{ name: look, arguments: { order: "B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B" } }]
  - calls: [{ name: look, arguments: { order: "C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C C" } }]
  - calls: [{ name: look, arguments: { order: "D" } }]
  - text: No.
"#;

/// Answers without text, which no guardrail checks, and a summary that one denies.
const WITHHELD: &str = r#"
summary: '{"stable_facts": [{"key": "word", "value": "swordfish", "confidence": 0.9}], "raw_summary": "It is swordfish."}'
answers:
  - calls: [{ name: look, arguments: { order: "A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A A" } }]
  - calls: [{ name: look, arguments: { order: "B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B B" } }]
  - calls: [{ name: look, arguments: { order: "C" } }]
  - text: It is swordfish.
"#;

const SCRIPT: &str = r#"
answers:
  - text: Let me see.
    calls:
      - { name: look, arguments: { order: A } }
      - { name: look, arguments: { order: B } }
      - { name: note, arguments: { order: A } }
  - calls: [{ name: pay, arguments: { order: A } }]
  - text: It is paid.
"#;

/// The error of the `pay` call if the process died between the claim and the payment.
const NOT_PAID: &str = "it was not paid";

/// The process that is killed.
#[test]
#[ignore = "a process that other tests start"]
fn victim() {
    let folder = victim::folder();
    let scenario = std::env::var(SCENARIO).expect("the scenario is given");
    let scenario = SCENARIOS.iter().find(|it| it.name == scenario).expect("it exists");
    victim::work(work(&folder, scenario));
}

impl Scenario {
    /// Registers its agents.
    async fn register(&self, abide: &Abide, folder: &Path) -> Runtime {
        for (name, text) in self.agents {
            define(folder, &format!("{name}.yaml"), text);
        }
        let runtime = runtime_of(abide, folder, providers(self.scripts));
        runtime.register().await.expect("it is registered");
        runtime
    }

    /// A folder in which its agents are registered.
    fn registered(&self) -> TempDir {
        let folder = temporary_folder();
        victim::work(async {
            let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
            self.register(&abide, folder.path()).await;
            abide.close().await;
        });
        folder
    }

    fn victim(&self) -> Victim {
        Victim::new("killed::victim").variable(SCENARIO, self.name)
    }
}

/// Starts the run unless it exists, drives it, and decides as its supervisor, until it is over.
async fn work(folder: &Path, scenario: &Scenario) {
    let abide = victim::open(folder);
    let fixture = scenario.register(&abide, folder).await;
    let stop = CancellationToken::new();
    let drives = fixture.run(stop.clone());
    let asks = async {
        let session = CreateSession::new("clerk").id("s1");
        let _ = abide.call(session).await;
        let run = StartRun::new("s1").id("r1").input("Pay order A.");
        let _ = abide.call(run).await;
        supervise(&abide, folder).await;
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(drives, asks);
    driven.expect("the runtime runs");
    abide.close().await;
}

/// Approves pending calls, settles unknown ones, resumes paused runs and resolves handoffs, until the run is over.
async fn supervise(abide: &Abide, folder: &Path) {
    let sql = "SELECT status, reason, turn FROM runs WHERE id = 'r1'";
    let mut runs = abide.subscribe(sql).await.expect("the subscription starts");
    let sql = "SELECT id FROM handoff_requests WHERE status = 'pending'";
    let mut handoffs = abide.subscribe(sql).await.expect("the subscription starts");
    let sql = "SELECT call_id, status FROM tool_calls WHERE status IN ('awaiting_approval', \
               'unknown') AND tool_name <> 'request_supervisor'";
    let mut calls = abide.subscribe(sql).await.expect("the subscription starts");
    loop {
        tokio::select! {
            update = runs.try_next() => {
                update.expect("the file is open");
                let now: Vec<(String, Option<String>, i64)> =
                    runs.typed_rows().expect("the columns are of these types");
                if now.iter().any(|(status, ..)| status == "done" || status == "failed") {
                    return;
                }
                if now.iter().any(|(_, reason, _)| reason.as_deref() == Some("pause")) {
                    abide.call(ResumeRun::new("r1")).await.expect("it is paused");
                }
            }
            update = handoffs.try_next() => {
                update.expect("the file is open");
                let waiting: Vec<(String,)> = handoffs.typed_rows().expect("a text column");
                for (id,) in waiting {
                    let claim = Call::from(ClaimHandoff::new(&id));
                    let resolve = Call::from(ResolveHandoff::new(&id, "Pay it."));
                    abide.batch([claim, resolve]).await.expect("it is resolved");
                }
            }
            update = calls.try_next() => {
                update.expect("the file is open");
                let waiting: Vec<(String, String)> = calls.typed_rows().expect("text columns");
                for (id, status) in waiting {
                    decide(abide, folder, &id, &status).await;
                }
            }
        }
    }
}

async fn decide(abide: &Abide, folder: &Path, id: &str, status: &str) {
    if status == "unknown" {
        return settle(abide, folder, id).await;
    }
    let call = DecideApproval::new(Decision::Approve).call_id(id);
    abide.call(call).await.expect("the decision succeeds");
}

async fn settle(abide: &Abide, folder: &Path, call_id: &str) {
    let paid = ledger(&folder.join("ledger")).contains(&"pay A".to_owned());
    let args = if paid {
        serde_json::json!({"call_id": call_id, "outcome": "succeeded",
            "result": {"text": "pay A is done"}, "evidence": "the ledger"})
    } else {
        serde_json::json!({"call_id": call_id, "outcome": "failed", "error": NOT_PAID,
            "evidence": "the ledger"})
    };
    abide.call_by_name("settle_tool_call", args).await.expect("the call is settled");
}

/// The measurements of runs, and the facts.
const STATE: &str = "SELECT json_array(iteration, tokens, token_drift, messages, new_messages, \
  tool_messages, over_tooling, context_rot, repeats, signals, unhealthy, action) FROM run_health
  UNION ALL SELECT json_array(space, key, value, confidence) FROM memories
  UNION ALL SELECT json_array(action, count) FROM watchdog_actions ORDER BY 1";

/// The transcript in a finished folder with its other state, and the ledger.
fn outcome(folder: &Path) -> (String, Vec<String>) {
    let transcript = victim::read(folder, async |abide| {
        let state: Vec<(String,)> = abide.sql(STATE).fetch().await.expect("it is read");
        let state: String = state.into_iter().map(|(row,)| row + "\n").collect();
        format!("{}\n{state}{}", derived(abide).await, transcript(abide).await)
    });
    (transcript, ledger(&folder.join("ledger")))
}

#[test]
fn at_every_step() {
    let (killed, unpaid) = kill_at_every_step(&SCENARIOS[0], None);
    assert!(killed > 15, "killed only {killed} times");
    println!("killed at {killed} steps; {unpaid} of them before the payment");
}

/// A process that is killed in an empty folder has registered a part of its tools and agents.
#[test]
fn at_steps_of_the_registration() {
    let scenario = &SCENARIOS[0];
    let registered = scenario.registered();
    let expected = expected(scenario, registered.path());
    let victim = scenario.victim();
    let last = victim::last_event(registered.path());
    let empty = temporary_folder();
    for seq in [1, last / 2, last] {
        let killed = victim.kill_at(empty.path(), seq, |folder, seq| {
            check(scenario, &expected, folder, seq);
        });
        assert!(killed, "{seq}");
    }
}

#[test]
fn at_every_step_of_a_delegation() {
    let (killed, _) = kill_at_every_step(&SCENARIOS[1], None);
    assert!(killed > 15, "killed only {killed} times");
}

#[test]
fn at_every_step_of_a_handoff() {
    let (killed, _) = kill_at_every_step(&SCENARIOS[2], None);
    assert!(killed > 10, "killed only {killed} times");
}

/// After a restart compaction gives the same rows: summaries, archived results and what is omitted.
#[test]
fn at_every_step_of_a_compaction() {
    let folder = SCENARIOS[5].registered();
    assert!(SCENARIOS[5].victim().finishes(folder.path(), None));
    let summaries = victim::read(folder.path(), async |abide| {
        let sql = "SELECT seq, through_id < goal_id FROM context_summaries ORDER BY number";
        let found: Vec<(i64, i64)> = abide.sql(sql).fetch().await.expect("they are read");
        found
    });
    assert!(summaries.len() > 2, "{summaries:?}");
    assert!(summaries.iter().any(|(_, continues)| *continues == 1), "one has several parts");
    let (killed, _) = kill_at_every_step(&SCENARIOS[5], Some(summaries[0].0 - 2));
    assert!(killed > 10, "killed only {killed} times");
}

/// A denied summary is not in a row or an event, even after a kill between the verdict and the summary that replaces it.
#[test]
fn at_every_step_of_a_summary_that_is_held_back() {
    let folder = SCENARIOS[8].registered();
    assert!(SCENARIOS[8].victim().finishes(folder.path(), None));
    let first = victim::read(folder.path(), async |abide| {
        let sql = "SELECT min(seq), min(origin), max(origin) FROM context_summaries";
        let found: Vec<(i64, String, String)> = abide.sql(sql).fetch().await.expect("they exist");
        assert_eq!((found[0].1.as_str(), found[0].2.as_str()), ("fallback", "fallback"));
        found[0].0
    });
    let (killed, _) = kill_at_every_step(&SCENARIOS[8], Some(first - 3));
    assert!(killed > 5, "killed only {killed} times");
}

/// The published part of a held-back answer does not contain the denied text, even after a kill.
#[test]
fn at_every_step_of_an_answer_that_is_held_back() {
    let (killed, _) = kill_at_every_step(&SCENARIOS[3], None);
    assert!(killed > 4, "killed only {killed} times");
}

/// A run that pauses at every stage and is resumed each time: a pause survives the kill, and does not happen again.
#[test]
fn at_every_step_of_a_pause() {
    let (killed, _) = kill_at_every_step(&SCENARIOS[6], None);
    assert!(killed > 15, "killed only {killed} times");
}

/// A loop in Rust takes the same way again: no call is made twice.
#[test]
fn at_every_step_of_a_loop_in_rust() {
    let (killed, unpaid) = kill_at_every_step(&SCENARIOS[10], None);
    assert!(killed > 10, "killed only {killed} times");
    assert!(unpaid < killed);
}

/// A call that waits for a supervisor has its answer after a kill, and asks once.
#[test]
fn at_every_step_of_a_request_for_a_supervisor() {
    let (killed, _) = kill_at_every_step(&SCENARIOS[9], None);
    assert!(killed > 10, "killed only {killed} times");
}

/// Redaction and middleware in Rust do the same after a kill, and what was published before it has no personal data.
#[test]
fn at_every_step_of_a_run_with_pii_and_middleware_in_rust() {
    let (killed, _) = kill_at_every_step(&SCENARIOS[7], None);
    assert!(killed > 8, "killed only {killed} times");
}

/// The rows of facts, measurements, warnings and counts are the same as without a kill.
#[test]
fn at_every_step_of_a_run_with_memory_and_watchdog() {
    let (killed, _) = kill_at_every_step(&SCENARIOS[4], None);
    assert!(killed > 20, "killed only {killed} times");
}

/// How often a process was killed, from an event or from the creation of the session on, and how often before the
/// payment.
fn kill_at_every_step(scenario: &Scenario, from: Option<i64>) -> (usize, usize) {
    let origin = scenario.registered();
    let from = from.unwrap_or_else(|| victim::last_event(origin.path()) + 1);
    let expected = expected(scenario, origin.path());
    let unpaid = AtomicUsize::new(0);
    let killed = scenario.victim().kill_at_each(origin.path(), from, |folder, seq| {
        let paid = check(scenario, &expected, folder, seq);
        unpaid.fetch_add(usize::from(paid < scenario.pays), Relaxed);
    });
    (killed, unpaid.into_inner())
}

/// The outcome of a process that is not killed.
fn expected(scenario: &Scenario, origin: &Path) -> String {
    let folder = temporary_folder();
    victim::copy(origin, folder.path());
    assert!(scenario.victim().finishes(folder.path(), None));
    let (expected, _) = outcome(folder.path());
    assert!(expected.ends_with(ENDS[usize::from(scenario.pays == 0)]), "{expected}");
    expected
}

/// Checks the outcome of the process that followed one that was killed. Returns how often both paid.
fn check(scenario: &Scenario, expected: &str, folder: &Path, seq: i64) -> usize {
    let (transcript, done) = outcome(folder);
    let published = victim::read(folder, async |abide| {
        let sql = "SELECT group_concat(data) FROM run_events";
        let found: Vec<(String,)> = abide.sql(sql).fetch().await.expect("it is read");
        found[0].0.clone()
    });
    assert!(!published.contains("swordfish"), "killed at {seq}: {published}");
    let paid = done.iter().filter(|what| *what == "pay A").count();
    assert!(paid <= scenario.pays, "paid {paid} times after a kill at {seq}");
    let transcript = if paid < scenario.pays {
        transcript.replace(NOT_PAID, "pay A is done")
    } else {
        transcript
    };
    assert_eq!(transcript, expected, "killed at {seq}: {done:?}");
    paid
}

/// How the transcripts end, with and without a payment.
const ENDS: [&str; 2] = ["assistant: It is paid. \n", "assistant: No. \n"];
