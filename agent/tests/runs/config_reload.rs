//! `abide.yaml` changes while a runtime uses it.

use std::path::Path;
use std::time::Duration;

use abide_agent::{
    AgentProject, Catalog, Environment, FolderChanges, Runtime, Settings, Tools, begin,
    until_turn_ends,
};
use abide_client::Abide;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fixture::define;

/// A folder with a model that calls `look`, a tool, and the agent `clerk`.
pub(crate) const CONFIG: &str = "
models:
  default: { provider: first }
  providers: [{ id: first, kind: script, script: first.yaml, models: [scripted] }]
programs:
  - { name: look, description: Looks., command: [echo, before], effect: read_only }
";

/// A runtime that reads its folder again.
pub(crate) struct Reloading {
    pub(crate) folder: TempDir,
    pub(crate) abide: Abide,
    tools: Tools,
    told: mpsc::UnboundedReceiver<FolderChanges>,
    stop: CancellationToken,
    runtime: Option<JoinHandle<()>>,
}

impl Reloading {
    pub(crate) async fn new(config: &str) -> Reloading {
        Reloading::with(config, |catalog| catalog).await
    }

    /// With what a program in Rust adds to the catalog.
    pub(crate) async fn with(config: &str, extend: impl FnOnce(Catalog) -> Catalog) -> Reloading {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), config);
        for (file, text) in
            [("first.yaml", "It is the first."), ("second.yaml", "It is the second.")]
        {
            let answers = format!(
                "answers: [{{ calls: [{{ name: look, arguments: {{}} }}] }}, {{ text: {text} }}]\n"
            );
            std::fs::write(folder.path().join(file), answers).expect("the file can be written");
        }
        define(folder.path(), "clerk.yaml", "tools: [look]\n");
        let environment = Environment::of_process();
        let project = AgentProject::open_in(folder.path(), &environment).await;
        let AgentProject { models, tools, catalog, servers, sandbox, source, .. } =
            project.expect("the folder is valid");
        let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
        let (tell, told) = mpsc::unbounded_channel();
        let settings =
            Settings { reload_interval: Duration::from_millis(20), ..Settings::named("runtime") };
        let catalog = extend(catalog);
        let runtime = Runtime::builder(abide.clone(), models, tools.clone(), catalog, settings)
            .reloads(source, servers, sandbox)
            .on_change(move |changes| tell.send(changes.clone()).expect("the test listens"))
            .build();
        runtime.register().await.expect("it is registered");
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            runtime.run(stopped).await.expect("the runtime runs");
        });
        Reloading { folder, abide, tools, told, stop, runtime: Some(task) }
    }

    /// Writes another configuration, and waits until it was read. One line for each thing that is reported.
    pub(crate) async fn change(&mut self, config: &str) -> String {
        write(self.folder.path(), config);
        self.next().await
    }

    pub(crate) async fn next(&mut self) -> String {
        let told = self.told.recv().await.expect("the runtime runs");
        let changes = told
            .changes
            .iter()
            .map(|it| format!("{} +{:?} ~{:?} -{:?}", it.part, it.added, it.changed, it.removed));
        let notes = told.notes.iter().map(|note| format!("note: {note}"));
        let problems = told.problems.iter().map(|it| format!("problem: {it}"));
        let lines: Vec<String> = changes.chain(notes).chain(problems).collect();
        lines.join("\n").replace(&format!("{}/", self.folder.path().display()), "")
    }

    /// The result of `look` and the answer of the agent, in a new session.
    pub(crate) async fn run(&self) -> (String, String) {
        self.run_of("clerk").await
    }

    /// The result of `look` and the answer of another agent, in a new session.
    pub(crate) async fn run_of(&self, agent: &str) -> (String, String) {
        let run = begin(&self.abide, agent, "Look.").await.expect("it starts").id;
        until_turn_ends(&self.abide, &run, 0).await.expect("it ends");
        let result = "SELECT data ->> '$.output' FROM run_events WHERE run_id = :id \
                      AND kind = 'tool_result'";
        let result: Vec<(String,)> =
            self.abide.sql(result).param("id", &run).fetch().await.expect("it is read");
        let sql = "SELECT coalesce(output ->> '$.content', error_code) FROM runs WHERE id = :id";
        let answer: Vec<(String,)> =
            self.abide.sql(sql).param("id", &run).fetch().await.expect("it is read");
        let result = result.first().map(|(text,)| text.clone()).unwrap_or_default();
        (result, answer[0].0.clone())
    }

    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        self.runtime.take().expect("it runs").await.expect("the task succeeds");
        self.abide.close().await;
    }
}

/// Replaces the file at once, so that no half of it is read.
fn write(folder: &Path, config: &str) {
    let beside = folder.join("beside.yaml");
    std::fs::write(&beside, config).expect("the file can be written");
    std::fs::rename(beside, folder.join("abide.yaml")).expect("the file can be written");
}

pub(crate) fn pair(result: &str, answer: &str) -> (String, String) {
    (result.to_owned(), answer.to_owned())
}

/// Models, tools and the deny list are those of the new file in the next request and the next call.
#[tokio::test]
async fn a_changed_configuration_takes_effect_without_a_restart() {
    let mut reloading = Reloading::new(CONFIG).await;
    assert_eq!(reloading.run().await, pair("before", "It is the first."));
    let second = CONFIG.replace("first", "second").replace("before", "after");
    assert_eq!(
        reloading.change(&second).await,
        "models +[\"second\"] ~[\"default\"] -[\"first\"]\nprograms +[] ~[\"look\"] -[]"
    );
    assert_eq!(reloading.run().await, pair("after", "It is the second."));
    let denied = format!("{second}tool_security: {{ blocked_tools: [look] }}\n");
    assert_eq!(reloading.change(&denied).await, "tool_security +[\"look\"] ~[] -[]");
    let blocked = "calls of look are blocked for all agents: continue without it";
    assert_eq!(reloading.run().await, pair(blocked, "It is the second."));
    assert_eq!(reloading.change(&second).await, "tool_security +[] ~[] -[\"look\"]");
    assert_eq!(reloading.run().await, pair("after", "It is the second."));
    reloading.close().await;
}

/// All tools of an agent were unavailable when one of them was removed.
#[tokio::test]
async fn an_agent_keeps_its_other_tools_when_one_is_removed() {
    let put = "  - { name: put, description: Puts., command: [echo], effect: read_only }\n";
    let mut reloading = Reloading::new(&format!("{CONFIG}{put}")).await;
    define(reloading.folder.path(), "clerk.yaml", "tools: [look, put]\n");
    reloading.next().await;
    reloading.change(CONFIG).await;
    assert_eq!(reloading.run().await, pair("before", "It is the first."));
    reloading.close().await;
}

/// Nothing was reported when a broken definition got its former content again, so its error remained the last line.
#[tokio::test]
async fn a_definition_that_is_repaired_is_reported() {
    let mut reloading = Reloading::new(CONFIG).await;
    define(reloading.folder.path(), "clerk.yaml", "tools: [look\n");
    let told = reloading.next().await;
    assert!(told.starts_with("problem: agents/clerk.yaml:"), "{told}");
    define(reloading.folder.path(), "clerk.yaml", "tools: [look]\n");
    let told = reloading.next().await;
    assert_eq!(told, "note: the definitions are valid again, and unchanged");
    reloading.close().await;
}

/// The lease of a call ended with the time limit of its tool. The call looked like one whose worker had crashed, and it ran
/// again.
#[tokio::test]
async fn a_timeout_is_the_result_of_its_call() {
    let slow = "command: [sleep, '600'], timeout_ms: 300";
    let reloading = Reloading::new(&CONFIG.replace("command: [echo, before]", slow)).await;
    assert_eq!(reloading.run().await, pair("look timed out after 0.3 s", "It is the first."));
    let sql = "SELECT status, attempt FROM tool_calls";
    let calls: Vec<(String, i64)> = reloading.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(calls, [("failed".to_owned(), 1)]);
    reloading.close().await;
}

/// A file that cannot work changes nothing, whatever is wrong with it, and says what and where. A file that is gone is one.
#[tokio::test]
async fn a_broken_configuration_changes_nothing_and_is_reported() {
    let mut reloading = Reloading::new(CONFIG).await;
    let with = |more: &str| format!("{CONFIG}{more}\n");
    for (config, problem) in [
        (
            CONFIG.replace("kind: script", "kind: scirpt"),
            "problem: abide.yaml:4:34: unknown value `scirpt`, expected one of openai, \
             openai_responses, anthropic, gemini, ollama, openai_compatible, replay, script",
        ),
        (CONFIG.replace("first.yaml", "gone.yaml"), "problem: abide.yaml:4:21: provider `first`: "),
        (
            with("tool_security: { blocked_tools: [pay] }"),
            "problem: abide.yaml:7:34: unknown tool pay; ",
        ),
        (
            with("  - { name: look, description: x, command: [x] }"),
            "problem: abide.yaml:6:13: tool look already exists",
        ),
        (
            with("mcp_servers: [{ name: files }]"),
            "problem: abide.yaml:7:23: invalid definition of files: it needs either command or url",
        ),
        // It was half applied: the new program ran under the old terms of the tool, because no row can have these.
        (
            CONFIG
                .replace("before", "after")
                .replace("command:", "retry: { max_attempts: 0 }, command:"),
            "problem: abide.yaml:6:13: the tool look cannot be registered: max_attempts must be between 1 and 1000, not 0",
        ),
        (
            CONFIG.replace("command:", "limits: { rate: { calls: 0, per_ms: 1 } }, command:"),
            "problem: abide.yaml:6:13: the tool look cannot be registered: rate.calls must be between 1 and ",
        ),
        (with("sandbox: { workspace: nowhere }"), "problem: abide.yaml:7:1: "),
        (with("models: ["), "problem: abide.yaml:"),
    ] {
        let told = reloading.change(&config).await;
        assert!(told.starts_with(problem), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        assert_eq!(reloading.run().await, pair("before", "It is the first."), "{problem}");
    }
    std::fs::remove_file(reloading.folder.path().join("abide.yaml")).expect("the file exists");
    assert_eq!(reloading.next().await, "problem: abide.yaml: the file is gone");
    assert_eq!(reloading.run().await, pair("before", "It is the first."));
    // The same file again is not a change, and the next one is compared with what is in effect.
    let told = reloading.change(CONFIG).await;
    assert_eq!(told, "note: abide.yaml is valid again, with the former settings");
    let told = reloading.change(&CONFIG.replace("before", "after")).await;
    assert_eq!(told, "programs +[] ~[\"look\"] -[]");
    reloading.close().await;
}

/// A change of a model's script had no effect.
#[tokio::test]
async fn a_changed_script_answers_without_a_restart() {
    let mut reloading = Reloading::new(CONFIG).await;
    assert_eq!(reloading.run().await, pair("before", "It is the first."));
    let replace = |text: &str| {
        let beside = reloading.folder.path().join("beside.yaml");
        std::fs::write(&beside, text).expect("the file can be written");
        std::fs::rename(beside, reloading.folder.path().join("first.yaml")).expect("it can be");
    };
    replace("answers: [{ text: It is new. }]\n");
    assert_eq!(reloading.next().await, "models +[] ~[\"first\"] -[]");
    assert_eq!(reloading.run().await, pair("", "It is new."));
    let beside = reloading.folder.path().join("beside.yaml");
    std::fs::write(&beside, "answers: 3\n").expect("the file can be written");
    std::fs::rename(beside, reloading.folder.path().join("first.yaml")).expect("it can be");
    let told = reloading.next().await;
    assert!(told.starts_with("problem: first.yaml:1:10: provider `first`: "), "{told}");
    assert_eq!(reloading.run().await, pair("", "It is new."));
    reloading.close().await;
}

/// What lives as long as the process says so. A definition that the new file breaks is a problem, and stays.
#[tokio::test]
async fn settings_that_need_a_restart_and_broken_definitions_are_reported() {
    let mut reloading = Reloading::new(CONFIG).await;
    let fixed = format!("{CONFIG}traces: {{ log_data: true }}\nmcp: {{ tools: [look] }}\n");
    assert_eq!(
        reloading.change(&fixed).await,
        "note: mcp in abide.yaml has changed: restart the server to use it\n\
         note: traces in abide.yaml has changed: restart the server to use it"
    );
    let renamed = fixed.replace("name: look", "name: see");
    let told = reloading.change(&renamed).await;
    assert!(told.starts_with("programs +[\"see\"] ~[] -[\"look\"]\n"), "{told}");
    assert!(
        told.contains("problem: agents/clerk.yaml:1:9: unknown tool look; available: see"),
        "{told}"
    );
    let without =
        renamed.replace("id: first", "id: other").replace("tools: [look]", "tools: [see]");
    let told = reloading.change(&without).await;
    assert!(
        told.contains("problem: abide.yaml:3:24: models.default: unknown provider `first`"),
        "{told}"
    );
    assert_eq!(reloading.run().await.1, "unknown_provider");
    // Definitions are reported in the same way.
    define(reloading.folder.path(), "clerk.yaml", "tools: [see]\n");
    define(reloading.folder.path(), "late.yaml", "tools: [see]\n");
    let mut told = reloading.next().await;
    if !told.contains("late") {
        told += &reloading.next().await;
    }
    assert!(told.contains("agents +[\"late\"]") && told.contains("~[\"clerk\""), "{told}");
    reloading.close().await;
}

/// A server that is not reachable is a note, and its tools may come. Removed, it is forgotten.
#[tokio::test]
async fn mcp_servers_come_and_go() {
    let mut reloading = Reloading::new(CONFIG).await;
    let server = |port: u16| {
        format!("{CONFIG}mcp_servers: [{{ name: files, url: 'http://127.0.0.1:{port}/' }}]\n")
    };
    let told = reloading.change(&server(1)).await;
    assert!(told.starts_with("mcp_servers +[\"files\"] ~[] -[]\n"), "{told}");
    assert!(told.contains("note: MCP server files is unavailable and is tried again: "), "{told}");
    // A definition may use its tools meanwhile.
    let is_known = |tools: &Tools| {
        let tools = tools.view(abide_tools::Selection {
            tools: Some(vec!["files_read".to_owned()]),
            ..abide_tools::Selection::default()
        });
        tools.is_ok()
    };
    assert!(is_known(&reloading.tools));
    let told = reloading.change(&server(2)).await;
    assert!(told.starts_with("mcp_servers +[] ~[\"files\"] -[]\n"), "{told}");
    assert!(is_known(&reloading.tools));
    let told = reloading.change(CONFIG).await;
    assert_eq!(told, "mcp_servers +[] ~[] -[\"files\"]");
    assert!(!is_known(&reloading.tools));
    reloading.close().await;
}
