//! The middleware of `abide.yaml`, which applies to all agents before their own.

use abide_agent::{AgentMiddleware, AgentProject, Environment, MiddlewareContext};
use abide_client::arguments::RegisterAgent;
use abide_models::ModelResponse;
use serde_json::{Value, json};

use crate::config_reload::{CONFIG, Reloading, pair};
use crate::fixture::define;

const GUARDED: &str = "middleware:
  - { name: guardrail, at: response, deny: first, message: Not that. }
  - { name: tool_security, blocked_tools: [look] }
";

const DENIED: &str = "calls of look are blocked for all agents: continue without it";

fn guarded() -> String {
    format!("{CONFIG}{GUARDED}")
}

/// An agent of the folder, a delegate, and definitions that were registered without the runtime: with their own middleware, and
/// with a list of the deployment that is empty.
#[tokio::test]
async fn middleware_of_all_agents_cannot_be_lifted() {
    let reloading = Reloading::new(&guarded()).await;
    assert_eq!(reloading.run().await, pair(DENIED, "Not that."));
    let own = json!([{"name": "guardrail", "at": "response", "deny": "x", "message": "Own."}]);
    for (name, definition) in [
        ("plain", json!({"name": "plain", "tools": ["look"]})),
        ("own", json!({"name": "own", "tools": ["look"], "middleware": own})),
        ("lifted", json!({"name": "lifted", "tools": ["look"], "deployment_middleware": []})),
        ("other", json!({"name": "other", "tools": ["look"], "deployment_middleware": own})),
    ] {
        let definition = definition.as_object().cloned().expect("it is an object");
        let register = RegisterAgent::new(name, definition);
        reloading.abide.call(register).await.expect("it is registered");
        assert_eq!(reloading.run_of(name).await, pair(DENIED, "Not that."), "{name}");
    }
    reloading.close().await;
}

/// A revision has the list that it was registered with. A changed list makes a new revision.
#[tokio::test]
async fn middleware_of_all_agents_is_part_of_the_revision_and_reloads() {
    let mut reloading = Reloading::new(CONFIG).await;
    assert_eq!(reloading.run().await, pair("before", "It is the first."));
    let told = reloading.change(&guarded()).await;
    assert!(told.starts_with("middleware +[\"guardrail\", \"tool_security\"] ~[] -[]\n"), "{told}");
    assert!(told.contains("agents +[] ~[\"clerk\""), "{told}");
    assert_eq!(reloading.run().await, pair(DENIED, "Not that."));
    let sql = "SELECT revision, \
               coalesce(json_array_length(definition -> '$.deployment_middleware'), 0) FROM agent_revisions WHERE agent = 'clerk' ORDER BY revision";
    let revisions: Vec<(i64, i64)> = reloading.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(revisions, [(1, 0), (2, 2)]);
    for (config, problem) in [
        (
            guarded().replace("name: guardrail", "name: gardrail"),
            "problem: abide.yaml:8:13: unknown middleware `gardrail`; available: ",
        ),
        (
            guarded().replace("deny: first", "dent: first"),
            "problem: abide.yaml:8:38: unknown setting `dent` of the middleware guardrail, ",
        ),
        (
            format!("{}  - audit\n", guarded()),
            "problem: abide.yaml:10:5: unknown middleware audit; available: ",
        ),
    ] {
        let told = reloading.change(&config).await;
        assert!(told.starts_with(problem), "{told}");
        assert_eq!(reloading.run().await, pair(DENIED, "Not that."), "{problem}");
    }
    reloading.change(CONFIG).await;
    assert_eq!(reloading.run().await, pair("before", "It is the first."));
    reloading.close().await;
}

/// Adds a mark to each answer.
struct Mark;

impl AgentMiddleware for Mark {
    fn after_model(
        &self,
        _: &MiddlewareContext<'_>,
        answer: &mut ModelResponse,
    ) -> Result<(), String> {
        answer.text.push_str(" Marked.");
        Ok(())
    }
}

/// Middleware in Rust applies to all agents, too, and before their own. A process without it runs no agent.
#[tokio::test]
async fn middleware_in_rust_applies_to_all_agents() {
    let config = format!("{CONFIG}middleware: [mark]\n");
    let reloading = Reloading::with(&config, |catalog| catalog.middleware("mark", Mark)).await;
    assert_eq!(reloading.run().await, pair("before", "It is the first. Marked."));
    reloading.close().await;
    let reloading = Reloading::new(&config).await;
    assert_eq!(reloading.run().await, pair("", "unknown_middleware"));
    reloading.close().await;
}

/// A check names the file, the place and a suggestion, including those of models, tools and settings.
#[tokio::test]
async fn a_check_reports_middleware_of_all_agents() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("first.yaml"), "answers: []").expect("it can be written");
    define(folder.path(), "clerk.yaml", "tools: [look]\n");
    define(folder.path(), "coder.yaml", "cli: { command: [sh], terminal: exit_zero }\n");
    let written = async |text: &str| {
        std::fs::write(folder.path().join("abide.yaml"), text).expect("it can be written");
        let environment = Environment::of_process();
        let found = match AgentProject::open_in(folder.path(), &environment).await {
            Ok(project) => project.catalog.check(&project.models, &environment),
            Err(error) => vec![error.to_problem(folder.path())],
        };
        let lines =
            found.iter().map(|it| format!("{it} ({})", it.error.suggestion().unwrap_or_default()));
        let lines: Vec<String> = lines.collect();
        lines.join("\n").replace(&format!("{}/", folder.path().display()), "")
    };
    // The list itself needs no model.
    std::fs::remove_file(folder.path().join("agents/clerk.yaml")).expect("the file exists");
    assert_eq!(written("middleware: [observability]\n").await, "");
    define(folder.path(), "clerk.yaml", "tools: [look]\n");
    let check = async |list: &str| written(&format!("{CONFIG}middleware: {list}\n")).await;
    for (list, problem) in [
        ("[observability, pii]", ""),
        (
            "[pi]",
            "abide.yaml:7:14: unknown middleware pi; available: guardrail, tool_security, tool_retry, model_fallback, pii, observability, streaming (did you mean pii?)",
        ),
        (
            "[{ name: model_fallback, models: [{ provider: frist }] }]",
            "abide.yaml:7:59: unknown provider `frist`; available: `first` (add it to models in abide.yaml, or name another)",
        ),
        (
            "[{ name: tool_retry, tools: [lok] }]",
            "abide.yaml:7:42: unknown tool lok; available: look (did you mean look?)",
        ),
        (
            "[{ name: tool_security, blocked_tools: [lok] }]",
            "abide.yaml:7:53: unknown tool lok; available: look (did you mean look?)",
        ),
        (
            "[{ name: tool_retry, attempts: 0 }]",
            "abide.yaml:7:22: tool_retry: attempts is 0; it is 1 to 100 ()",
        ),
    ] {
        assert_eq!(check(list).await, problem, "{list}");
    }
}

/// A program has only what counts: nothing can hold its output back.
#[tokio::test]
async fn programs_have_only_observability_of_all_agents() {
    let config = format!("{}  - observability\n", guarded());
    let mut reloading = Reloading::new(&config).await;
    define(reloading.folder.path(), "coder.yaml", "cli: { command: [sh], terminal: exit_zero }\n");
    assert_eq!(reloading.next().await, "agents +[\"coder\"] ~[] -[]");
    let sql = "SELECT definition -> '$.deployment_middleware' FROM agent_revisions \
               WHERE agent = 'coder'";
    let lists: Vec<(abide_client::Json,)> =
        reloading.abide.sql(sql).fetch().await.expect("it is read");
    let lists: Vec<Value> = lists.iter().map(|(list,)| list.value()).collect();
    assert_eq!(lists, [json!([{"name": "observability"}])]);
    reloading.close().await;
}
