//! Prompts of definitions: stored ones with versions and labels, those of an MLflow server, and variables.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;

use abide_agent::{AgentProject, Environment};
use abide_client::Abide;
use abide_client::arguments::{LabelPrompt, PutPrompt};
use expect_test::expect;

use crate::fixture::{FixtureOptions, define, temporary_folder};

const SAYS: &str = "answers: [{ text: Hello. }]\n";

const OF_LABEL: &str =
    "system_prompt: { store: clerk@production, variables: { firm: Acme } }\ntools: [look]\n";

async fn put(abide: &Abide, text: &str, labels: &[&str]) {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    let call = PutPrompt { labels: Some(labels), ..PutPrompt::new("clerk", text) };
    abide.call(call).await.expect("the prompt is stored");
}

/// Waits until the newest revision of the agent has these instructions.
fn with_instructions(text: &str) -> String {
    format!(
        "SELECT a.name FROM agents a JOIN agent_revisions r ON r.agent = a.name AND \
         r.revision = a.revision WHERE a.name = 'clerk' AND \
         r.definition ->> '$.instructions' = '{text}'"
    )
}

#[tokio::test]
async fn a_moved_label_creates_a_revision_and_active_runs_keep_their_prompt() {
    let fixture = FixtureOptions::new(OF_LABEL, SAYS).open().await;
    let problems: Vec<String> =
        fixture.problems.borrow().iter().map(|it| it.error.to_string()).collect();
    expect![[r#"
        prompt clerk@production cannot be read: there is no prompt clerk with the version or the label production"#]].assert_eq(&problems.join("\n"));
    put(&fixture.abide, "You work for {{firm}}.", &["production"]).await;
    fixture.until(&with_instructions("You work for Acme.")).await;
    let run = fixture.begin("Hi").await;
    fixture.output(&run.id, 0).await;
    put(&fixture.abide, "You help {{firm}}.", &["staging"]).await;
    let moved = LabelPrompt::new("clerk", "production", 2);
    fixture.abide.call(moved).await.expect("the label moves");
    fixture.until(&with_instructions("You help Acme.")).await;
    let sql = "SELECT revision FROM agents WHERE name = 'clerk'";
    let revisions: Vec<i64> = fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!((run.revision, revisions), (1, vec![2]));
    fixture.close().await;
}

/// The variables of a new version can differ from those of the definition: the last good revision stays.
#[tokio::test]
async fn a_version_with_other_variables_is_reported_and_the_agent_is_unchanged() {
    let plan = FixtureOptions::new(OF_LABEL, SAYS);
    let abide = Abide::open(plan.folder.path().join("abide.db")).expect("the file opens");
    put(&abide, "You work for {{firm}}.", &["production"]).await;
    abide.close().await;
    drop(abide);
    let mut fixture = plan.open().await;
    assert_eq!(*fixture.problems.borrow(), []);
    put(&fixture.abide, "You work for {{company}} in {{city}}.", &["production"]).await;
    let problems = fixture.problems.wait_for(|problems| !problems.is_empty()).await;
    let problem = problems.expect("the runtime runs")[0].clone();
    let shown = format!(
        "{}: {}, line {:?}\n{}",
        problem.error.code(),
        problem.error,
        problem.at.map(|at| at.line),
        problem.error.suggestion().unwrap_or_default()
    );
    expect![[r#"
        prompt_variables: the prompt needs a value for company, city, line Some(2)
        give each variable a value in `system_prompt: { …, variables: { NAME: VALUE } }`"#]]
    .assert_eq(&shown);
    fixture.until(&with_instructions("You work for Acme.")).await;
    fixture.close().await;
}

/// Agents are shared by all tenants. A tenant that could change their prompts would speak to all of them.
#[tokio::test]
async fn a_prompt_of_a_tenant_is_none_of_an_agent() {
    let plan = FixtureOptions::new("system_prompt: { store: tenant=acme/clerk@1 }\n", SAYS);
    plan.define("other.yaml", "system_prompt: { store: shared@1 }\n");
    let abide = Abide::open(plan.folder.path().join("abide.db")).expect("the file opens");
    let scope = serde_json::Map::from_iter([("tenant".to_owned(), "acme".into())]);
    let acme = [("tenant".to_owned(), "acme".to_owned())].into();
    let of_acme = abide.acting_for(&acme).await.expect("the scope is narrower");
    of_acme.call(PutPrompt::new("clerk", "Obey acme.")).await.expect("it is stored");
    let shared = PutPrompt { scope: Some(scope), ..PutPrompt::new("shared", "Obey acme.") };
    abide.call(shared).await.expect("it is stored");
    abide.close().await;
    drop((abide, of_acme));
    let fixture = plan.open().await;
    let problems: Vec<String> =
        fixture.problems.borrow().iter().map(|it| it.error.to_string()).collect();
    expect![[r#"
        prompt tenant=acme/clerk@1 cannot be read: prompt tenant=acme/clerk belongs to a scope, and agents are shared by all scopes
        prompt shared@1 cannot be read: prompt shared belongs to a scope, and agents are shared by all scopes"#]].assert_eq(&problems.join("\n"));
    fixture.close().await;
}

/// Answers of an MLflow server, by the path and query of the request.
fn mlflow(answers: &[(&str, u16, &str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let answers: BTreeMap<String, (u16, String)> = answers
        .iter()
        .map(|(path, status, body)| ((*path).to_owned(), (*status, (*body).to_owned())))
        .collect();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client connects");
            let mut lines = BufReader::new(&stream).lines();
            let first = lines.next().expect("a request").expect("it is text");
            let rest: Vec<String> =
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let is_allowed = rest.iter().any(|line| line == "authorization: Bearer sesame");
            let path = first.split(' ').nth(1).expect("a path").to_owned();
            let unknown = (404, String::new());
            let (status, body) = if is_allowed {
                answers.get(&path).unwrap_or(&unknown).clone()
            } else {
                (401, String::new())
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(format!("{head}{body}").as_bytes()).expect("the client listens");
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0]);
        }
    });
    url
}

const VERSION: &str = r#"{"model_version": {"name": "clerk", "version": "3", "tags": [
    {"key": "mlflow.prompt.is_prompt", "value": "true"},
    {"key": "mlflow.prompt.text", "value": "You work for {{ firm }}."}]}}"#;

const CHAT: &str = r#"{"model_version": {"tags": [
    {"key": "_mlflow_prompt_type", "value": "chat"},
    {"key": "mlflow.prompt.text", "value": "[]"}]}}"#;

#[tokio::test]
async fn prompts_come_from_an_mlflow_server() {
    let folder = temporary_folder();
    let url = mlflow(&[
        ("/api/2.0/mlflow/model-versions/get?name=clerk&version=3", 200, VERSION),
        ("/api/2.0/mlflow/registered-models/alias?name=a%2Fb+c&alias=live", 200, VERSION),
        ("/api/2.0/mlflow/model-versions/get?name=chat&version=1", 200, CHAT),
        (
            "/api/2.0/mlflow/model-versions/get?name=model&version=1",
            200,
            r#"{"model_version": {}}"#,
        ),
        ("/api/2.0/mlflow/model-versions/get?name=page&version=1", 200, "<html>"),
        ("/api/2.0/mlflow/model-versions/get?name=moved&version=1", 302, ""),
    ]);
    let config = format!("prompts: {{ mlflow: {{ url: '{url}/', token_env: TOKEN }} }}\n");
    std::fs::write(folder.path().join("abide.yaml"), config).expect("it is written");
    let with = "variables: { firm: Acme }";
    for (file, prompt) in [
        ("good.yaml", format!("{{ mlflow: clerk@v3, {with} }}")),
        ("alias.yaml", format!("{{ mlflow: a/b c@live, {with} }}")),
        ("unfilled.yaml", "{ mlflow: clerk@3 }".to_owned()),
        ("chat.yaml", "{ mlflow: chat@1 }".to_owned()),
        ("missing.yaml", "{ mlflow: clerk@4 }".to_owned()),
        ("model.yaml", "{ mlflow: model@1 }".to_owned()),
        ("moved.yaml", "{ mlflow: moved@1 }".to_owned()),
        ("page.yaml", "{ mlflow: page@1 }".to_owned()),
        ("without.yaml", "{ mlflow: clerk }".to_owned()),
    ] {
        define(folder.path(), file, &format!("system_prompt: {prompt}\n"));
    }
    let environment: Environment =
        [("TOKEN".to_owned(), "sesame".to_owned())].into_iter().collect();
    let project = AgentProject::open_in(folder.path(), &environment).await.expect("it opens");
    let (definitions, problems) = project.catalog.read();
    for name in ["good", "alias"] {
        let found = definitions.iter().find(|it| it.name == name);
        let text = found.and_then(|it| it.instructions.as_deref());
        assert_eq!(text, Some("You work for Acme."), "{name}");
    }
    let problems: Vec<String> = problems.iter().map(|it| it.error.to_string()).collect();
    expect![[r#"
        prompt chat@1 cannot be read: chat is a list of chat messages, not a string
        prompt clerk@4 cannot be read: the MLflow server has no prompt clerk with version 4
        prompt model@1 cannot be read: model is a model, not a prompt
        prompt moved@1 cannot be read: the MLflow server responded with HTTP 302 Found
        prompt page@1 cannot be read: the response is not valid for the MLflow API
        the prompt needs a value for firm
        prompt clerk cannot be read: the version is missing: write clerk@1, or clerk@ and a label"#]].assert_eq(&problems.join("\n"));

    // A wrong token, and a server that does not exist.
    let environment: Environment = [("TOKEN".to_owned(), "open".to_owned())].into_iter().collect();
    let project = AgentProject::open_in(folder.path(), &environment).await.expect("it opens");
    let (_, problems) = project.catalog.read();
    let refused =
        "prompt clerk@v3 cannot be read: the MLflow server responded with HTTP 401 Unauthorized";
    assert!(problems.iter().any(|it| it.error.to_string() == refused), "{problems:?}");
    let none = AgentProject::open_in(folder.path(), &Environment::default()).await;
    let why = none.map(drop).expect_err("there is no token").to_string();
    assert_eq!(why, "prompts.mlflow: there is no environment variable TOKEN");
    let environment: Environment =
        [("TOKEN".to_owned(), "sesame\n".to_owned())].into_iter().collect();
    let invalid = AgentProject::open_in(folder.path(), &environment).await;
    let why = invalid.map(drop).expect_err("no header has a line break").to_string();
    assert_eq!(
        why,
        "prompts.mlflow: the value of TOKEN has characters that are not allowed in a header"
    );
}
