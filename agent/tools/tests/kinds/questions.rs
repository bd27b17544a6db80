//! Questions of a server of 2025-11-25 during a call: they are requests on the connection, so this process keeps the call.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide_client::arguments::{NewExchange, NewInput};
use abide_client::rows::ExchangeKind;
use abide_tools::{
    Exchange, ExchangeError, ExchangeLog, ExchangeStep, Failure, InputAnswer, Invocation,
    McpServer, McpServerConfig, ToolOutcome, Tools,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::watch;

use crate::{context, environment, example};

/// A log in memory.
#[derive(Default)]
pub(crate) struct Log {
    steps: Mutex<Vec<NewExchange>>,
    inputs: Mutex<Vec<NewInput>>,
    withdrawn: watch::Sender<bool>,
    ended: watch::Sender<bool>,
}

impl ExchangeLog for Log {
    fn record(&self, steps: Vec<NewExchange>) -> BoxFuture<'_, Result<(), ExchangeError>> {
        self.steps.lock().expect("no panic").extend(steps);
        std::future::ready(Ok(())).boxed()
    }

    fn suspend(
        &self,
        steps: Vec<NewExchange>,
        inputs: Vec<NewInput>,
        _: Option<Duration>,
    ) -> BoxFuture<'_, Result<(), ExchangeError>> {
        self.inputs.lock().expect("no panic").extend(inputs);
        self.record(steps)
    }

    fn withdraw(&self) -> BoxFuture<'_, ()> {
        self.withdrawn.send_replace(true);
        std::future::ready(()).boxed()
    }

    fn wants_cancel(&self) -> BoxFuture<'_, bool> {
        std::future::ready(true).boxed()
    }

    fn until_ended(&self) -> BoxFuture<'_, ()> {
        let mut ended = self.ended.subscribe();
        async move { drop(ended.wait_for(|ended| *ended).await) }.boxed()
    }
}

struct Home {
    _server: McpServer,
    tools: Tools,
}

async fn start() -> Home {
    let command = [example("faulty_mcp_server"), "old".to_owned()];
    let mut config = McpServerConfig::program("faulty", command);
    config.prefix = Some(String::new());
    let tools = Tools::new();
    let server = McpServer::start(config, &environment(), &tools).await.expect("it starts");
    Home { _server: server, tools }
}

impl Home {
    /// Calls a tool with what its log has, and these answers.
    async fn call(
        &self,
        tool: &str,
        id: &str,
        log: &Arc<Log>,
        answers: &[InputAnswer],
    ) -> ToolOutcome {
        let mut invocation = Invocation::new(id, json!({}), context());
        let step = |step: &NewExchange| ExchangeStep {
            kind: step.kind,
            data: step.data.clone(),
            is_open: step.kind == ExchangeKind::Task,
            age: Duration::ZERO,
        };
        let steps = log.steps.lock().expect("no panic").iter().map(step).collect();
        let log: Arc<dyn ExchangeLog> = Arc::clone(log) as _;
        invocation.exchange = Exchange { steps, answers: answers.to_vec(), log: Some(log) };
        self.tools.get(tool).expect("it exists").run(invocation).await
    }
}

#[tokio::test]
async fn an_answer_reaches_the_server_that_waits_for_it() {
    let home = start().await;
    for (answer, expected) in [
        (
            InputAnswer::Accepted(Some(json!({"name": "Ada"}))),
            r#"{"action":"accept","content":{"name":"Ada"}}"#,
        ),
        (InputAnswer::Declined, r#"{"action":"decline"}"#),
        (InputAnswer::Cancelled, r#"{"action":"cancel"}"#),
    ] {
        let log = Arc::new(Log::default());
        let asked = home.call("ask", "c1", &log, &[]).await;
        assert_eq!(asked.failure, Some(Failure::Suspended), "{}", asked.text);
        assert_eq!(log.inputs.lock().expect("no panic")[0].message, "Who travels?");
        // Meanwhile other calls run, on another connection.
        assert!(!home.call("pid", "c2", &Arc::default(), &[]).await.is_error);
        let answered = home.call("ask", "c1", &log, &[answer]).await;
        assert_eq!(answered.text, expected);
    }
}

/// The answer of a person cannot reach another call: not of another tenant, and not after the server was lost.
#[tokio::test]
async fn a_question_whose_call_is_not_known_is_refused() {
    let home = start().await;
    let hang = home.tools.get("hang").expect("it exists");
    let other = Invocation::new("c1", json!({}), context());
    let stop = other.cancel.clone();
    let other = tokio::spawn(hang.run(other));
    // The answer to a later call shows that the server has received this one.
    home.call("pid", "c2", &Arc::default(), &[]).await;
    let log = Arc::new(Log::default());
    let asked = home.call("ask", "c3", &log, &[]).await;
    assert_eq!(
        asked.text,
        "the server asked for input without naming the call, and 2 calls are in progress"
    );
    assert!(log.inputs.lock().expect("no panic").is_empty());
    stop.cancel();
    other.await.expect("no panic");
    // A call that must not run twice is not sent again when the process that held it has ended.
    let asked = home.call("ask", "c4", &log, &[]).await;
    assert_eq!(asked.failure, Some(Failure::Suspended), "{}", asked.text);
    drop(home);
    let answer = [InputAnswer::Declined];
    let lost = start().await.call("ask", "c4", &log, &answer).await;
    assert_eq!(lost.failure, Some(Failure::Lost), "{}", lost.text);
}

#[tokio::test]
async fn a_server_that_does_not_wait_withdraws_its_question() {
    let home = start().await;
    let log = Arc::new(Log::default());
    let asked = home.call("hasty", "c1", &log, &[]).await;
    assert_eq!(asked.failure, Some(Failure::Suspended), "{}", asked.text);
    let mut withdrawn = log.withdrawn.subscribe();
    withdrawn.wait_for(|withdrawn| *withdrawn).await.expect("the log exists");
    let ended = home.call("hasty", "c1", &log, &[InputAnswer::Cancelled]).await;
    assert_eq!(ended.text, "there was no time for an answer");
}

/// Without a log there is no person to ask.
#[tokio::test]
async fn a_question_without_a_log_is_cancelled() {
    let home = start().await;
    let ask = home.tools.get("ask").expect("it exists");
    let outcome = ask.run(Invocation::new("c1", json!({}), context())).await;
    assert_eq!(outcome.text, r#"{"action":"cancel"}"#);
}
