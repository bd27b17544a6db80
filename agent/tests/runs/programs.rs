//! Runs of command-line programs: a shell script with Claude Code's output format. It is killed with its runtime at
//! every step, it is aborted, and it requests permissions.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use abide_agent::{Catalog, Reparsed, RunEvents};
use abide_client::arguments::{
    AbortRun, ClaimRun, CorrectedLine, CreateSession, DecideApproval, Decision, NewRunEvent,
    RecordRun, RegisterAgent, StartRun,
};
use abide_client::rows::RunEventKind;
use abide_client::{Abide, Scope};
use abide_programs::{CliConfig, Parser, ProgramEvent, ProgramResult, Prompt, spawn_paused};
use abide_schema::reducer::Caller;
use expect_test::expect;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fixture::{
    FixtureOptions, RemotePrompts, RuntimeFixture, define, runtime, temporary_folder, transcript,
};
use crate::victim::{self, Victim};

/// Reports its session id, sends a message, and answers. It records its arguments and its prompt.
const ANSWERS: &str = r#"
echo "called with $*" >> calls
{ printf '%s: ' "$*"; tr '\n' ' '; echo; } >> prompts
echo '{"type":"system","subtype":"init","session_id":"p1"}'
echo '{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"Let me see."}]}}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"It is 42.","session_id":"p1",
"total_cost_usd":0.25,"usage":{"input_tokens":10,"output_tokens":5}}' | tr -d '\n'
"#;

/// The definition of an agent that runs a script in a folder.
fn script(folder: &Path, text: &str, more: &str) -> String {
    script_of("claude", folder, text, more)
}

/// The definition of an agent that runs a script with the format of another program.
fn script_of(program: &str, folder: &Path, text: &str, more: &str) -> String {
    std::fs::write(folder.join("agent.sh"), text).expect("the file can be written");
    let folder = folder.display();
    format!(
        "cli: {{ command: [sh, agent.sh], program: {program}, working_dir: '{folder}', \
         grace_seconds: 0.2{more} }}\n"
    )
}

async fn fixture(text: &str, more: &str) -> RuntimeFixture {
    let plan = FixtureOptions::new("", "answers: []");
    let definition = script(plan.folder.path(), text, more);
    plan.define("clerk.yaml", &definition);
    plan.open().await
}

#[tokio::test]
async fn the_usage_that_a_program_reports_is_recorded() {
    let fixture = fixture(ANSWERS, "").await;
    let run = fixture.begin("How much?").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "It is 42.", "{rendered}");
    assert!(rendered.contains(r#""estimated_cost":0.25"#), "{rendered}");
    let sql = "SELECT input_tokens, output_tokens, cost_micros, iterations FROM runs";
    let took: Vec<(i64, i64, Option<i64>, i64)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!(took, [(10, 5, Some(250_000), 1)]);
    fixture.close().await;
}

/// The class: success although something is missing.
#[tokio::test]
async fn a_program_without_an_answer_fails_unless_its_agent_may_be_silent() {
    let text = ANSWERS.replace("It is 42.", "").replace("Let me see.", "");
    for (permission, ended) in [
        ("", ("failed".to_owned(), Some("no_answer".to_owned()))),
        ("allow_empty_answers: true\n", ("done".to_owned(), None)),
    ] {
        let plan = FixtureOptions::new("", "answers: []");
        let definition = script(plan.folder.path(), &text, "");
        plan.define("clerk.yaml", &format!("{permission}{definition}"));
        let fixture = plan.open().await;
        let run = fixture.begin("How much?").await;
        fixture.output(&run.id, 0).await;
        let sql = "SELECT status, error_code FROM runs";
        let runs: Vec<(String, Option<String>)> =
            fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
        assert_eq!(runs, [ended], "{permission}");
        fixture.close().await;
    }
}

/// Has a format of its own, with the usage in the middle and two answers.
const OWN_FORMAT: &str = r#"
cat > /dev/null
echo '{"kind":"hello","sid":"p1"}'
echo '{"kind":"call","no":7,"tool":"sh","in":{"cmd":"ls"}}'
echo '{"kind":"called","no":7,"out":"a b","code":0}'
echo '{"kind":"used","tokens":{"in":10,"out":5},"usd":0.25}'
echo '{"kind":"done","say":"It is 41."}'
echo '{"kind":"done","say":"It is 42."}'
"#;

/// A program without a parser of its own is described by pointers.
#[tokio::test]
async fn a_parser_by_configuration_reads_calls_usage_session_and_the_last_answer() {
    let rules = "\
  parser:
    session: /sid
    tool_call: { when: { /kind: call }, id: /no, name: /tool, arguments: /in }
    tool_result: { when: { /kind: called }, id: /no, output: /out, exit_code: /code }
    usage: { input_tokens: /tokens/in, output_tokens: /tokens/out, cost_usd: /usd }
    terminal: { when: { /kind: done }, text: /say, match: last }
";
    let plan = FixtureOptions::new("", "answers: []");
    std::fs::write(plan.folder.path().join("agent.sh"), OWN_FORMAT).expect("it can be written");
    let folder = plan.folder.path().display();
    let cli = format!("cli:\n  command: [sh, agent.sh]\n  working_dir: '{folder}'\n  ");
    let cli = cli + rules.trim_start();
    plan.define("clerk.yaml", &cli);
    let fixture = plan.open().await;
    let run = fixture.begin("How much?").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "It is 42.", "{rendered}");
    let sql = "SELECT tool_calls, input_tokens, output_tokens, cost_micros, \
               output ->> '$.program_session' FROM runs";
    let took: Vec<(i64, i64, i64, Option<i64>, String)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!(took, [(1, 10, 5, Some(250_000), "p1".to_owned())]);
    fixture.close().await;
}

/// The stored lines of a run are read again: with the same rules nothing differs, and with better ones the calls, the tokens
/// and the answer that the first ones had missed. The rows stay as they are.
#[tokio::test]
async fn stored_lines_are_read_again_with_the_current_parser() {
    let plan = FixtureOptions::new("", "answers: []");
    std::fs::write(plan.folder.path().join("agent.sh"), OWN_FORMAT).expect("it can be written");
    let folder = plan.folder.path().to_owned();
    let cli = |rules: &str| {
        let folder = folder.display();
        format!("cli:\n  command: [sh, agent.sh]\n  working_dir: '{folder}'\n  parser:\n{rules}")
    };
    let poor = "    terminal: { when: { /kind: done }, text: /say, match: first }\n";
    let better = "    session: /sid
    tool_call: { when: { /kind: call }, id: /no, name: /tool, arguments: /in }
    usage: { input_tokens: /tokens/in, output_tokens: /tokens/out, cost_usd: /usd }
    terminal: { when: { /kind: done }, text: /say, match: last }
";
    plan.define("clerk.yaml", &cli(poor));
    let fixture = plan.open().await;
    let run = fixture.begin("How much?").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "It is 41.", "{rendered}");
    let catalog = || Arc::new(Catalog::new(&folder, abide_tools::Tools::new()));
    let again = async || {
        Reparsed::read(&fixture.abide, &catalog(), &run.id).await.expect("the lines can be read")
    };
    let same = again().await;
    assert_eq!((same.lines, same.is_current, &same.changes[..]), (6, true, &[][..]));
    define(&folder, "clerk.yaml", &cli(better));
    let text = |texts: &[String]| texts.join("; ");
    let changes = again().await.changes;
    let changes: Vec<String> =
        changes.iter().map(|it| format!("{} | {}", text(&it.before), text(&it.after))).collect();
    expect![[r#"
        status {"program":{"data":{"kind":"hello","sid":"p1"},"type":"status"},"status":"thinking"} | status {"program_session":"p1","status":"thinking"}; status {"program":{"data":{"kind":"hello","sid":"p1"},"type":"status"},"status":"thinking"}
        status {"program":{"data":{"in":{"cmd":"ls"},"kind":"call","no":7,"tool":"sh"},"type":"status"},"status":"thinking"} | tool_call {"args":{"cmd":"ls"},"id":"7","name":"sh"}
        status {"program":{"data":{"kind":"used","tokens":{"in":10,"out":5},"usd":0.25},"type":"status"},"status":"thinking"} | usage {"cache_write_tokens":null,"cached_tokens":null,"completeness":"partial","estimated_cost":null,"input_tokens":10,"model":"clerk","output_tokens":5,"provider":"cli","reasoning_tokens":null}
        status {"program":{"code":"extra_final","message":"the program gave another answer; the first one is used","type":"notice"},"status":"thinking"} | status {"program":{"code":"extra_final","message":"the program gave another answer; the last one is used","type":"notice"},"status":"thinking"}; usage {"cache_write_tokens":null,"cached_tokens":null,"completeness":"complete","estimated_cost":null,"input_tokens":10,"model":"clerk","output_tokens":5,"provider":"cli","reasoning_tokens":null}; usage {"cache_write_tokens":null,"cached_tokens":null,"completeness":"complete","estimated_cost":0.25,"input_tokens":10,"model":"clerk","output_tokens":5,"provider":"cli","reasoning_tokens":null}
        answer "It is 41."; cost_micros null; input_tokens 0; output_tokens 0; tool_calls 0 | answer "It is 42."; cost_micros 250000; input_tokens 10; output_tokens 5; tool_calls 1"#]].assert_eq(&changes.join("\n"));
    let sql = "SELECT output ->> '$.content', tool_calls FROM runs";
    let stored: Vec<(String, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(stored, [("It is 41.".to_owned(), 0)]);
    // What differs is stored once, next to the run. Then nothing differs any more.
    let stored = again().await.store(&fixture.abide, Some("better rules".to_owned())).await;
    let correction = stored.expect("it is stored").expect("there are differences");
    let lines: Vec<CorrectedLine> =
        serde_json::from_value(correction.lines.value()).expect("they are lines");
    let kinds = lines.iter().map(|line| line.events.iter().map(|event| event.kind.as_str()));
    let kinds: Vec<String> = kinds.map(|kinds| kinds.collect::<Vec<_>>().join("+")).collect();
    assert_eq!(kinds, ["status+status", "tool_call", "usage", "status+usage+usage"]);
    let same = again().await;
    assert_eq!(same.changes, []);
    assert_eq!(same.store(&fixture.abide, None).await.expect("nothing is stored"), None);
    let results = "SELECT r.output ->> '$.content', r.tool_calls, s.answer, s.tool_calls, \
                   s.input_tokens, \
                   s.cost_micros, s.corrections FROM run_results s JOIN runs r ON r.id = s.run_id";
    let results: Vec<(String, i64, String, i64, i64, i64, i64)> =
        fixture.abide.sql(results).fetch().await.expect("they are read");
    assert_eq!(results, [("It is 41.".to_owned(), 0, "It is 42.".to_owned(), 1, 10, 250_000, 1)]);
    // The former rules read the former result, and that is a correction, too.
    define(&folder, "clerk.yaml", &cli(poor));
    let back = again().await.store(&fixture.abide, None).await.expect("it is stored");
    let back = back.expect("there are differences");
    assert_eq!((back.number, back.lines.value()), (2, json!([])));
    assert_eq!(back.after, correction.before);
    // Without a definition in the folder, that of the run counts.
    std::fs::remove_file(folder.join("agents/clerk.yaml")).expect("the file exists");
    let of_run = again().await;
    assert_eq!((of_run.is_current, of_run.changes.len()), (false, 0));
    let missing =
        Reparsed::read(&fixture.abide, &catalog(), "r9").await.expect_err("there is none");
    assert_eq!(missing.to_string(), "there is no run r9");
    fixture.close().await;
}

/// The end of a run is read again, too: a refusal that the first rules took for an answer, and a refusal that they missed.
#[tokio::test]
async fn the_end_of_a_run_is_read_again() {
    let plan = FixtureOptions::new("", "answers: []");
    let script = r#"cat > /dev/null; echo '{"kind":"refusal","why":"I may not."}'
echo '{"kind":"done","say":"-"}'"#;
    std::fs::write(plan.folder.path().join("agent.sh"), script).expect("it can be written");
    let folder = plan.folder.path().to_owned();
    let cli = |rules: &str| {
        let folder = folder.display();
        format!("cli:\n  command: [sh, agent.sh]\n  working_dir: '{folder}'\n  parser:\n{rules}")
    };
    let poor = "    terminal: { when: { /kind: done }, text: /say }\n";
    let better = "    terminal: { when: { /kind: done }, text: /say }
    error: { when: { /kind: refusal }, message: /why }
";
    plan.define("clerk.yaml", &cli(poor));
    let fixture = plan.open().await;
    let run = fixture.begin("How much?").await;
    fixture.output(&run.id, 0).await;
    define(&folder, "clerk.yaml", &cli(better));
    let catalog = Arc::new(Catalog::new(&folder, abide_tools::Tools::new()));
    let again = Reparsed::read(&fixture.abide, &catalog, &run.id).await.expect("it can be read");
    let end = again.changes.last().map(|it| it.after.join("; ")).unwrap_or_default();
    let expected =
        r#"answer null; error_code "runtime_crash"; error_message "I may not."; status "failed""#;
    assert_eq!(end, expected);
    again.store(&fixture.abide, None).await.expect("it is stored");
    let sql = "SELECT status, error_code, error_message, answer FROM run_results";
    let results: Vec<(String, String, String, Option<String>)> =
        fixture.abide.sql(sql).fetch().await.expect("they are read");
    let expected = ["failed", "runtime_crash", "I may not."].map(str::to_owned);
    let [status, code, message] = expected;
    assert_eq!(results, [(status, code, message, None)]);
    fixture.close().await;
}

/// Regression: the folder was read on the thread that drives the connection of a store of prompts, which waited for ever.
#[tokio::test]
async fn lines_are_read_again_while_a_store_of_prompts_needs_the_thread() {
    let fixture = fixture(ANSWERS, "").await;
    let run = fixture.begin("How much?").await;
    fixture.output(&run.id, 0).await;
    let folder = fixture.folder.path();
    let definition = script(folder, ANSWERS, "");
    define(folder, "clerk.yaml", &format!("system_prompt: {{ store: clerk@1 }}\n{definition}"));
    let catalog = Catalog::new(folder, abide_tools::Tools::new()).store(RemotePrompts);
    let again = Reparsed::read(&fixture.abide, &Arc::new(catalog), &run.id).await;
    assert!(again.expect("it can be read").is_current);
    fixture.close().await;
}

/// The lines of Claude Code, of a failed run, and of a run with two processes: the same parser makes the same of them.
#[tokio::test]
async fn stored_lines_of_known_programs_give_the_same_events() {
    for text in [ANSWERS, GIVES_UP, "cat > /dev/null; echo '{\"type\":\"system\"}'; exit 3"] {
        let fixture = fixture(text, "").await;
        let run = fixture.begin("How much?").await;
        fixture.output(&run.id, 0).await;
        let catalog = Catalog::new(fixture.folder.path(), abide_tools::Tools::new());
        let catalog = Arc::new(catalog);
        let again =
            Reparsed::read(&fixture.abide, &catalog, &run.id).await.expect("it can be read");
        assert_eq!(again.changes, [], "{text}");
        assert!(again.lines > 0);
        fixture.close().await;
    }
}

/// Counts the lines of one run. A parser that two runs share would count on.
#[derive(Default)]
struct CountsLines(usize);

impl Parser for CountsLines {
    fn parse_line(&mut self, _line: &str) -> Vec<ProgramEvent> {
        self.0 += 1;
        Vec::new()
    }

    fn finish(&mut self) -> Vec<ProgramEvent> {
        vec![ProgramEvent::Final(ProgramResult {
            text: format!("{} lines", self.0),
            ..ProgramResult::default()
        })]
    }
}

/// A definition names a parser in Rust; each run gets its own.
#[tokio::test]
async fn a_registered_parser_reads_the_output_of_each_run() {
    let plan = FixtureOptions::new("", "answers: []");
    let cli = "cli: { command: [printf, 'a\\nb\\n'], parser: lines }\n";
    plan.define("clerk.yaml", cli);
    let catalog =
        Catalog::new(plan.folder.path(), plan.tools.clone()).parser("lines", CountsLines::default);
    let fixture = plan.open_with(catalog).await;
    let first = fixture.begin("Go.").await;
    let (rendered, last) = fixture.output(&first.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "2 lines", "{rendered}");
    let again = StartRun::new(&first.session_id).input("Again.");
    let again = fixture.abide.call(again).await.expect("the run starts").into_inner();
    let (rendered, last) = fixture.output(&again.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "2 lines", "{rendered}");
    fixture.close().await;
}

/// Permission to register an agent does not include permission to run programs on the runtime's machine. A
/// definition that exists only as a row does not run, neither under a new name nor under that of an agent in the
/// folder.
#[tokio::test]
async fn a_program_outside_the_folder_is_not_run() {
    let fixture = fixture(ANSWERS, "").await;
    let cli = json!({"command": ["touch", fixture.folder.path().join("harm")]});
    for name in ["intruder", "clerk"] {
        let definition = json!({"name": name, "cli": cli}).as_object().cloned();
        let agent = RegisterAgent::new(name, definition.expect("it is an object"));
        fixture.abide.call(agent).await.expect("the agent is registered");
        let session = CreateSession::new(name);
        let session = fixture.abide.call(session).await.expect("it is created").into_inner();
        let run = StartRun::new(&session.id).input("Go.");
        let run = fixture.abide.call(run).await.expect("the run starts").into_inner();
        let (rendered, last) = fixture.output(&run.id, 0).await;
        assert_eq!(last.data["code"], "program_not_trusted", "{rendered}");
    }
    assert!(!fixture.folder.path().join("harm").exists());
    fixture.close().await;
}

const VICTIM: &str = "programs::victim";

/// The process that is killed.
#[test]
#[ignore = "a process that other tests start"]
fn victim() {
    let folder = victim::folder();
    victim::work(work(&folder));
}

/// Starts the run unless it exists, and drives it until it is over. Files of the folder say which program it has.
async fn work(folder: &Path) {
    let speaks_acp = folder.join("acp").exists();
    let definition = if speaks_acp {
        script_of("acp", folder, ACP_ASKS_ONCE, "")
    } else if folder.join("hangs").exists() {
        script(folder, HANGS_ONCE, "")
    } else {
        script(folder, ANSWERS, "")
    };
    define(folder, "clerk.yaml", &definition);
    let abide = victim::open(folder);
    let fixture = runtime(&abide, folder, "answers: []");
    fixture.register().await.expect("it is registered");
    // The second time, the question of the first process is still open.
    if speaks_acp && !folder.join("first").exists() {
        let sql = "SELECT call_id FROM approvals WHERE status = 'pending'";
        let mut asked = abide.subscribe(sql).await.expect("the subscription starts");
        let fifo = folder.join("asked");
        tokio::spawn(async move {
            while asked.rows().len() == 0 && asked.try_next().await.is_ok() {}
            // A named pipe: the writer waits for a reader.
            tokio::task::spawn_blocking(move || std::fs::write(fifo, "asked"));
        });
    }
    let stop = CancellationToken::new();
    let drives = fixture.run(stop.clone());
    let waits = async {
        let session = CreateSession::new("clerk").id("s1");
        let _ = abide.call(session).await;
        let run = StartRun::new("s1").id("r1").input("How much?");
        let _ = abide.call(run).await;
        let sql = "SELECT id FROM runs WHERE id = 'r1' AND ended_at IS NOT NULL";
        let mut ended = abide.subscribe(sql).await.expect("the subscription starts");
        while ended.rows().len() == 0 {
            ended.try_next().await.expect("the file is open");
        }
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(drives, waits);
    driven.expect("the runtime runs");
    abide.close().await;
}

/// The run's status and transcript in a finished folder, and the program's invocations.
fn outcome(folder: &Path) -> (String, String, String) {
    let (status, transcript) = victim::read(folder, async |abide| {
        let sql = "SELECT status || coalesce(' ' || error_code, '') FROM runs WHERE id = 'r1'";
        let status: Vec<(String,)> = abide.sql(sql).fetch().await.expect("the query succeeds");
        (status[0].0.clone(), transcript(abide).await)
    });
    let calls = std::fs::read_to_string(folder.join("calls")).unwrap_or_default();
    (status, transcript, calls)
}

/// A program that reported a session is resumed, not restarted. If it has reported nothing yet, it is started
/// again. Regression: a resumed program got its whole first prompt again, as a new task: one that had paid paid again.
#[test]
fn a_program_is_resumed_after_a_kill_at_every_step() {
    let origin = temporary_folder();
    victim::work(async {
        let abide = Abide::open(origin.path().join("abide.db")).expect("the file opens");
        define(origin.path(), "clerk.yaml", &script(origin.path(), ANSWERS, ""));
        let runtime = runtime(&abide, origin.path(), "answers: []");
        runtime.register().await.expect("it is registered");
        abide.close().await;
    });
    let resumed = AtomicUsize::new(0);
    let from = victim::last_event(origin.path()) + 1;
    let killed = Victim::new(VICTIM).kill_at_each(origin.path(), from, |folder, seq| {
        let (status, rendered, calls) = outcome(folder);
        assert_eq!(
            (status.as_str(), rendered.as_str()),
            ("done", "user: How much? \nassistant: It is 42. \n"),
            "killed at {seq}: {calls}"
        );
        resumed.fetch_add(usize::from(calls.contains("--resume p1")), Relaxed);
        let prompts = std::fs::read_to_string(folder.join("prompts")).unwrap_or_default();
        // A process whose runtime ends before it sends the prompt reads nothing.
        for prompt in prompts.lines().filter(|prompt| prompt.contains("Conversation:")) {
            let is_resumed = prompt.contains("--resume p1");
            assert_eq!(is_resumed, !prompt.contains("How much?"), "killed at {seq}: {prompt}");
            assert_eq!(is_resumed, prompt.contains("session has been resumed"), "{prompt}");
        }
    });
    assert!(killed > 5, "killed only {killed} times");
    println!("killed at {killed} steps; {} times the program was resumed", resumed.into_inner());
}

/// Waits for a reader of `started`, writes its process id, and then hangs and ignores SIGTERM. The second time it
/// answers.
const HANGS_ONCE: &str = r#"
trap '' TERM
echo '{"type":"system","subtype":"init","session_id":"p1"}'
echo '{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"Let me see."}]}}'
cat > /dev/null
if mkdir first; then
  echo $$ > started
  # Not `tail -f`, which ends when the reader of its output is gone.
  exec sleep 1000
fi
echo '{"type":"result","subtype":"success","is_error":false,"result":"It is 42.","session_id":"p1"}'
"#;

/// Regression: a program survived the SIGKILL of its runtime, and the next runtime started a second one. Both
/// finished.
#[test]
fn a_program_that_survives_its_runtime_is_ended_before_it_is_resumed() {
    let folder = temporary_folder();
    let fifo = folder.path().join("started");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo exists");
    assert!(made.success());
    std::fs::write(folder.path().join("hangs"), "").expect("the file can be written");
    let victim = Victim::new(VICTIM);
    let mut process = victim.command(folder.path(), None).spawn().expect("it starts");
    // The program has its prompt, so the runtime has stored its identity.
    let pid = std::fs::read_to_string(&fifo).expect("the program has started");
    process.kill().expect("the runtime is killed");
    process.wait().expect("the runtime has ended");
    // A process that has ended may stay as a zombie: its parent is gone.
    let lives = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    assert!(lives(), "the program survives its runtime");
    assert!(victim.finishes(folder.path(), None));
    assert!(!lives(), "process {pid} lives");
    let (status, rendered, _) = outcome(folder.path());
    assert_eq!(
        (status.as_str(), rendered.as_str()),
        ("done", "user: How much? \nassistant: It is 42. \n")
    );
    let restarts = victim::read(folder.path(), async |abide| {
        let sql = "SELECT data ->> '$.code', NOT EXISTS (SELECT 1 FROM run_events t \
                   WHERE t.kind = 'token' AND t.number < r.data ->> '$.since') FROM run_events r \
                   WHERE kind = 'restart'";
        let found: Vec<(String, bool)> = abide.sql(sql).fetch().await.expect("it succeeds");
        found
    });
    assert_eq!(restarts, [("runtime_restarted".to_owned(), true)]);
}

/// Speaks ACP. The first time it asks for permission and then waits, without a look at SIGTERM. The second time it
/// answers.
const ACP_ASKS_ONCE: &str = r#"
trap '' TERM
read -r initialize
echo '{"id":0,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}'
read -r session; echo "$session" >> calls
says() {
  printf '{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk",'
  echo '"content":{"type":"text","text":"'"$1"'"}}}}'
}
if mkdir first; then
  echo '{"id":1,"result":{"sessionId":"a1"}}'
  read -r prompt
  says "Let me see."
  printf '{"id":9,"method":"session/request_permission","params":{"toolCall":{"toolCallId":"c1",'
  printf '"kind":"execute","rawInput":{"command":"ls"}},"options":[{"optionId":"yes",'
  echo '"kind":"allow_once"},{"optionId":"no","kind":"reject_once"}]}}'
  echo $$ > pid
  exec sleep 1000
fi
says "An earlier answer."
echo '{"id":1,"result":{}}'
read -r prompt; printf '%s\n' "$prompt" >> calls
says "It is 42."
echo '{"id":2,"result":{"stopReason":"end_turn"}}'
read -r end
"#;

/// An agent with ACP continues its session in a new process. Its open question is withdrawn, because the process that
/// asked is gone.
#[test]
fn an_acp_session_is_loaded_after_a_kill() {
    let folder = temporary_folder();
    let fifo = folder.path().join("asked");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo exists");
    assert!(made.success());
    std::fs::write(folder.path().join("acp"), "").expect("the file can be written");
    let victim = Victim::new(VICTIM);
    let mut process = victim.command(folder.path(), None).spawn().expect("it starts");
    std::fs::read_to_string(&fifo).expect("the program has asked");
    process.kill().expect("the runtime is killed");
    process.wait().expect("the runtime has ended");
    assert!(victim.finishes(folder.path(), None));
    let pid = std::fs::read_to_string(folder.path().join("pid")).expect("the program ran");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    assert!(
        stat.is_ok_and(|stat| stat.contains(") Z "))
            || !Path::new("/proc").join(pid.trim()).exists()
    );
    let (status, rendered, calls) = outcome(folder.path());
    let answered = "user: How much? \nassistant: It is 42. \n";
    assert_eq!((status.as_str(), rendered.as_str()), ("done", answered), "{calls}");
    let calls: Vec<Value> =
        calls.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let methods: Vec<&Value> = calls.iter().map(|call| &call["method"]).collect();
    assert_eq!(methods, ["session/new", "session/load", "session/prompt"]);
    assert_eq!(calls[1]["params"]["sessionId"], "a1");
    // It has worked, so its session has the task.
    let prompt = calls[2]["params"]["prompt"][0]["text"].as_str().expect("it is a text");
    assert!(prompt.contains("session has been resumed"), "{prompt}");
    assert!(!prompt.contains("How much?"), "{prompt}");
    let open = victim::read(folder.path(), async |abide| {
        let sql = "SELECT status FROM tool_calls";
        let found: Vec<(String,)> = abide.sql(sql).fetch().await.expect("it succeeds");
        found
    });
    assert_eq!(open, [("cancelled".to_owned(),)]);
}

/// Regression: a runtime that ended between the first line of an agent with ACP and its session left a run that failed with
/// `runtime_crash`, although the agent had no prompt yet. It gets its prompt when its session is stored, so it is started
/// again.
#[tokio::test]
async fn an_acp_agent_without_a_stored_session_is_started_again() {
    let answers = r#"
read -r initialize; echo '{"id":0,"result":{"protocolVersion":1}}'
read -r session; echo "$session" >> calls; echo '{"id":1,"result":{"sessionId":"a1"}}'
read -r prompt; printf '%s\n' "$prompt" >> calls
echo '{"method":"session/update","params":{"sessionId":"a1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"Done."}}}}'
echo '{"id":2,"result":{"stopReason":"end_turn"}}'
read -r end
"#;
    let folder = tempfile::tempdir().expect("a temporary folder");
    define(folder.path(), "clerk.yaml", &script_of("acp", folder.path(), answers, ""));
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let fixture = runtime(&abide, folder.path(), "answers: []");
    fixture.register().await.expect("it is registered");
    abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
    abide.call(StartRun::new("s1").id("r1").input("Go.")).await.expect("the run starts");
    let claim = ClaimRun::new("r1", "ended", 1_000);
    let claimed = abide.call(claim).await.expect("it is claimed").into_inner();
    let line = json!({"raw": r#"{"id":0,"result":{"protocolVersion":1}}"#});
    let line = line.as_object().cloned().expect("it is an object");
    let line = NewRunEvent { kind: RunEventKind::Line, data: line };
    let record = RecordRun::new("r1", claimed.fencing_token.expect("it is claimed"));
    abide.call(record.events(&[line]).lease_ms(1)).await.expect("it is recorded");
    let stop = CancellationToken::new();
    let ends = async {
        let sql = "SELECT id FROM runs WHERE ended_at IS NOT NULL";
        let mut ended = abide.subscribe(sql).await.expect("the subscription starts");
        while ended.rows().len() == 0 {
            ended.try_next().await.expect("the file is open");
        }
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(fixture.run(stop.clone()), ends);
    driven.expect("the runtime runs");
    let calls = std::fs::read_to_string(folder.path().join("calls")).expect("the program ran");
    let calls: Vec<Value> =
        calls.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let methods: Vec<&Value> = calls.iter().map(|call| &call["method"]).collect();
    assert_eq!(methods, ["session/new", "session/prompt"]);
    let sql = "SELECT status FROM runs";
    let status: Vec<(String,)> = abide.sql(sql).fetch().await.expect("it succeeds");
    assert_eq!(status, [("done".to_owned(),)]);
    abide.close().await;
}

/// Speaks ACP, asks for permission, and records the decision.
const ACP_ASKS: &str = r#"
read -r initialize; echo '{"id":0,"result":{"protocolVersion":1}}'
read -r session; echo '{"id":1,"result":{"sessionId":"a1"}}'
read -r prompt
printf '{"id":9,"method":"session/request_permission","params":{"toolCall":{"toolCallId":"c1",'
printf '"kind":"execute","rawInput":{"command":"ls"}},"options":[{"optionId":"yes",'
echo '"kind":"allow_once"},{"optionId":"no","kind":"reject_once"}]}}'
read -r decision; echo "$decision" > decision
printf '{"method":"session/update","params":{"update":{"sessionUpdate":"plan","entries":['
echo '{"content":"List","priority":"high","status":"completed"}]}}}'
echo '{"id":2,"result":{"stopReason":"end_turn"}}'
read -r end
"#;

#[tokio::test]
async fn an_acp_permission_is_an_approval_and_its_plan_is_published() {
    for (decision, option) in [(Decision::Approve, "yes"), (Decision::Reject, "no")] {
        let plan = FixtureOptions::new("", "answers: []");
        let definition = script_of("acp", plan.folder.path(), ACP_ASKS, "");
        plan.define("clerk.yaml", &definition);
        let fixture = plan.open().await;
        let run = fixture.begin("List.").await;
        fixture.until("SELECT call_id FROM approvals WHERE status = 'pending'").await;
        let sql = "SELECT call_id, arguments ->> '$.tool', arguments ->> '$.input.command' \
                   FROM approvals";
        let mut asked: Vec<(String, String, String)> =
            fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
        let (call, tool, command) = asked.remove(0);
        assert_eq!((tool.as_str(), command.as_str()), ("execute", "ls"));
        let decide = DecideApproval::new(decision).call_id(call);
        fixture.abide.call(decide).await.expect("the decision succeeds");
        let (rendered, _) = fixture.output(&run.id, 0).await;
        assert!(rendered.contains(r#""todos":["List"]"#), "{rendered}");
        let received = std::fs::read_to_string(fixture.folder.path().join("decision"));
        let received: Value = serde_json::from_str(&received.expect("it was heard")).expect("JSON");
        assert_eq!(received["result"]["outcome"]["optionId"], option);
        fixture.close().await;
    }
}

/// Regression: Claude Code used a request id twice. After its run, the second approval was pending, and an approval left a call
/// that nobody took. The class: at the end of a program's run, none of its requests is open.
#[tokio::test]
async fn no_request_of_a_program_is_open_after_its_run() {
    let asks = r#"
ask() {
  printf '{"type":"control_request","request_id":"%s","request":{"subtype":"can_use_tool",' "$1"
  printf '"tool_name":"Bash","input":{"command":"%s"},"tool_use_id":"t"}}\n' "$2"
}
read -r initialize; read -r prompt
ask r1 ls; ask r1 'rm -rf /'; ask r2 ls; ask r2 ls; ask r3 ls; ask r1 ls
read -r refused
echo '{"type":"result","subtype":"success","is_error":false,"result":"Done.","session_id":"p1"}'
"#;
    let fixture = fixture(asks, ", input_format: stream-json").await;
    let run = fixture.begin("List.").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "Done.", "{rendered}");
    let sql = "SELECT (SELECT count(*) FROM approvals WHERE status = 'pending'), \
               (SELECT count(*) FROM tool_calls WHERE status <> 'cancelled')";
    let open: Vec<(i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!(open, [(0, 0)], "{rendered}");
    fixture.close().await;
}

/// An identity that may drive runs records on its own run that the program of the run was another process, with a
/// session of another tenant. The next runtime trusts neither.
#[tokio::test]
async fn a_recorded_process_of_another_driver_is_not_ended() {
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", &script(folder.path(), ANSWERS, ""));
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let fixture = runtime(&abide, folder.path(), "answers: []");
    fixture.register().await.expect("it is registered");
    abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
    abide.call(StartRun::new("s1").id("r1").input("Go.")).await.expect("the run starts");
    let victim = spawn_paused(CliConfig::new(["sleep", "600"]), Prompt::user("Sleep."), None);
    let process = victim.process().expect("the system shows it").clone();
    let eve = Caller::with("eve", "agent", BTreeSet::new(), Scope::new());
    let engine = abide.engine().expect("it is embedded");
    let claim = json!({"id": "r1", "driver": "eve", "lease_ms": 1000});
    let claimed = engine.call(&eve, "claim_run", &claim, None).await.expect("it is claimed");
    let claimed: Value = serde_json::from_str(&claimed.result).expect("a result is JSON");
    let status = json!({"status": "thinking", "process": process, "program_session": "stolen"});
    let record = json!({"id": "r1", "fencing_token": claimed["fencing_token"],
        "events": [{"kind": "status", "data": status}], "lease_ms": 1});
    engine.call(&eve, "record_run", &record, None).await.expect("it is recorded");
    let stop = CancellationToken::new();
    let ends = async {
        let sql = "SELECT id FROM runs WHERE ended_at IS NOT NULL";
        let mut ended = abide.subscribe(sql).await.expect("the subscription starts");
        while ended.rows().len() == 0 {
            ended.try_next().await.expect("the file is open");
        }
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(fixture.run(stop.clone()), ends);
    driven.expect("the runtime runs");
    let pid = process.pid.to_string();
    let lives = Command::new("kill").args(["-0", &pid]).status().expect("the command exists");
    assert!(lives.success(), "the other process lives");
    let calls = std::fs::read_to_string(folder.path().join("calls")).expect("the program ran");
    assert_eq!(calls, "called with --print --output-format stream-json --verbose\n");
    drop(victim);
    abide.close().await;
}

/// Runs two tools, one of them reported twice, and gives up.
const GIVES_UP: &str = r#"
cat > /dev/null
echo '{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"Half of it."}]}}'
call() {
  printf '{"type":"assistant","message":{"id":"%s","content":[{"type":"tool_use","id":"%s",' $1 $2
  echo '"name":"Bash","input":{}}]}}'
}
call m2 t1; call m2 t1; call m3 t2; call m4 t3
echo '{"type":"result","subtype":"error_max_turns","is_error":true,"total_cost_usd":0.030714,
"error":"no more turns","usage":{"input_tokens":17,"output_tokens":308}}' | tr -d '\n'
exit 1
"#;

/// Regression: a failed run had no calls, tokens and cost, its answer was lost, and its message was a generic one.
#[tokio::test]
async fn a_failed_program_keeps_what_it_reported() {
    let fixture = fixture(GIVES_UP, "").await;
    let run = fixture.begin("Go on.").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data, json!({"code": "loop_limit", "message": "no more turns"}), "{rendered}");
    let sql = "SELECT status, tool_calls, input_tokens, output_tokens, cost_micros, usage_missing \
               FROM runs";
    let took: Vec<(String, i64, i64, i64, Option<i64>, i64)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!(took, [("failed".to_owned(), 3, 17, 308, Some(30_714), 0)]);
    fixture.close().await;
}

/// Class: a check on one path of several. Only stderr was redacted: an error that a program reported in its own format was in
/// `runs.error_message`, in the event of the error and in the lines in clear.
#[tokio::test]
async fn no_row_has_a_secret_of_a_program() {
    let quits = r#"
cat > /dev/null
echo '{"type":"result","subtype":"error","is_error":true,"result":"quota of '"$API_TOKEN"' is over"}'
echo "$API_TOKEN" >&2
exit 1
"#;
    let fixture = fixture(quits, ", env: { API_TOKEN: hunter2-and-more }").await;
    let run = fixture.begin("Go on.").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["message"], "quota of [redacted] is over", "{rendered}");
    let sql = "SELECT error_message FROM runs UNION ALL SELECT data FROM run_events";
    let texts: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert!(texts.iter().all(|(text,)| !text.contains("hunter2")), "{texts:?}");
    assert!(texts.iter().any(|(text,)| text.contains("quota of [redacted]")), "{texts:?}");
    fixture.close().await;
}

/// The text of a program that fails without an answer stays in the session, and so does the usage of an aborted one.
#[tokio::test]
async fn a_program_without_an_answer_keeps_its_text_and_usage() {
    let says = "
cat > /dev/null
echo '{\"type\":\"assistant\",\"message\":{\"id\":\"m1\",\"usage\":{\"input_tokens\":3,\
\"output_tokens\":4},\"content\":[{\"type\":\"text\",\"text\":\"Half of it.\"}]}}'
";
    let usage = "SELECT error_code, input_tokens, output_tokens FROM runs";
    for (then, code) in [("exit 3", "runtime_crash"), ("exec tail -f /dev/null", "aborted")] {
        let fixture = fixture(&format!("{}\n{then}\n", says.trim_end()), "").await;
        let run = fixture.begin("Go on.").await;
        if code == "aborted" {
            fixture.until("SELECT id FROM run_events WHERE kind = 'token'").await;
            fixture.abide.call(AbortRun::new(&run.id)).await.expect("the abort succeeds");
        }
        fixture.output(&run.id, 0).await;
        assert_eq!(
            fixture.transcript().await,
            "user: Go on. \nassistant: Half of it. \n",
            "{then}"
        );
        let took: Vec<(String, i64, i64)> =
            fixture.abide.sql(usage).fetch().await.expect("the query succeeds");
        assert_eq!(took, [(code.to_owned(), 3, 4)]);
        fixture.close().await;
    }
}

#[tokio::test]
async fn an_abort_ends_the_program() {
    let hangs =
        "echo $$ > pid\necho '{\"type\":\"system\",\"subtype\":\"init\"}'\nexec sleep 600\n";
    let fixture = fixture(hangs, "").await;
    let run = fixture.begin("Go on.").await;
    let mut events =
        RunEvents::subscribe(&fixture.abide, &run.id, 0).await.expect("the subscription starts");
    loop {
        let event =
            events.next().await.expect("the stream continues").expect("the run has not ended");
        if event.kind == RunEventKind::Line {
            break;
        }
    }
    fixture.abide.call(AbortRun::new(&run.id).reason("enough")).await.expect("the abort succeeds");
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data, json!({"code": "aborted", "message": "enough"}));
    let pid = std::fs::read_to_string(fixture.folder.path().join("pid"))
        .expect("the program has started");
    let lives =
        Command::new("kill").args(["-0", pid.trim()]).output().expect("the kill command exists");
    assert!(!lives.status.success(), "process {pid} lives");
    fixture.close().await;
}

/// Requests permission to run `ls`, records the decision, answers.
const ASKS: &str = r#"
read hello; read prompt
echo '{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool",
"tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"t1"}}' | tr -d '\n'; echo
read decision; echo "$decision" > decision
echo '{"type":"result","subtype":"success","is_error":false,"result":"Listed."}'
"#;

/// The decision that the program receives.
async fn decision_received(decision: Decision, comment: Option<&str>) -> Value {
    let fixture = fixture(ASKS, ", input_format: stream-json").await;
    let run = fixture.begin("List.").await;
    fixture.until("SELECT call_id FROM approvals WHERE status = 'pending'").await;
    let sql = "SELECT call_id, arguments ->> '$.tool', arguments ->> '$.input.command' \
               FROM approvals";
    let mut asked: Vec<(String, String, String)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    let (call, tool, command) = asked.remove(0);
    assert_eq!((tool.as_str(), command.as_str()), ("Bash", "ls"));
    let decide = DecideApproval::new(decision).call_id(call);
    let decide = match comment {
        Some(comment) => decide.comment(comment),
        None => decide,
    };
    fixture.abide.call(decide).await.expect("the decision succeeds");
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "Listed.", "{rendered}");
    assert!(rendered.contains("waiting_for_approval"), "{rendered}");
    let received = std::fs::read_to_string(fixture.folder.path().join("decision"))
        .expect("the program received a decision");
    fixture.close().await;
    let received: Value = serde_json::from_str(&received).expect("it is JSON");
    received["response"]["response"].clone()
}

#[tokio::test]
async fn a_program_request_can_be_approved() {
    let received = decision_received(Decision::Approve, None).await;
    assert_eq!(received, json!({"behavior": "allow", "updatedInput": {"command": "ls"}}));
}

#[tokio::test]
async fn a_program_request_can_be_rejected_with_a_reason() {
    let received = decision_received(Decision::Reject, Some("not here")).await;
    assert_eq!(received["behavior"], "deny");
    assert_eq!(received["message"], "not here");
}
