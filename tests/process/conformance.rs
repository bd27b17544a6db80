//! The conformance scenarios of all SDKs (`client-sdk/conformance/README.md`), run by the Rust SDK.

mod answer;
mod proxy;
mod script;

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use abide_client::{Abide, Call, Error, Subscription, Update};
use serde_json::{Map, Value as JsonValue, json};
use tempfile::TempDir;
use tokio::sync::{Mutex, OnceCell};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::program::run;
use crate::server::Server;
use answer::{Answer, cells, check_error, expect, is_same, multiset};
use proxy::Proxy;
use script::Script;

/// The limit of each step.
const LIMIT: Duration = Duration::from_secs(20);

/// The steps that wait for an answer. `subscribe` is before `sql`, which is a field of it.
const ANSWERED: [&str; 7] =
    ["connect", "call", "batch", "subscribe", "sql", "session", "find_session"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_sdk_passes_all_scenarios() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client-sdk/conformance");
    let mut scenarios = JoinSet::new();
    for path in abide_tests::files_under(&folder) {
        if path.extension().is_some_and(|extension| extension == "json") {
            scenarios.spawn(async move {
                run_scenario(&path).await.map_err(|why| format!("{}: {why}", path.display()))
            });
        }
    }
    assert!(scenarios.len() >= 10, "the scenarios are in {}", folder.display());
    let mut failed = Vec::new();
    while let Some(ended) = scenarios.join_next().await {
        failed.extend(ended.unwrap().err());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

async fn run_scenario(path: &Path) -> Result<(), String> {
    let scenario: JsonValue = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(scenario["name"], path.file_stem().unwrap().to_str().unwrap());
    let mut runner = Runner::start(&scenario).await;
    for (nth, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
        let replaced = runner.replaced(step);
        let done = timeout(LIMIT, runner.step(replaced.as_object().unwrap()))
            .await
            .unwrap_or_else(|_| Err("nothing happened in time".to_owned()));
        done.map_err(|why| format!("step {nth}, {step}: {why}"))?;
    }
    runner.clients.close().await;
    Ok(())
}

/// Clients by name, created when a step first names them.
#[derive(Clone)]
struct Clients {
    url: String,
    made: Arc<Mutex<BTreeMap<String, Arc<OnceCell<Abide>>>>>,
}

impl Clients {
    async fn get(&self, name: &str, token: Option<&str>) -> Result<Abide, Error> {
        let client = Arc::clone(self.made.lock().await.entry(name.to_owned()).or_default());
        client
            .get_or_try_init(|| async {
                let mut builder = Abide::builder(&self.url);
                if let Some(token) = token {
                    builder = builder.token(token);
                }
                builder.connect().await
            })
            .await
            .cloned()
    }

    async fn close(&self) {
        for client in std::mem::take(&mut *self.made.lock().await).into_values() {
            if let Some(client) = client.get() {
                client.close().await;
            }
        }
    }
}

type Step = Map<String, JsonValue>;
type Answered = Result<Answer, Error>;

/// A subscription, and the updates that arrived while the runner waited for something else.
struct LiveQuery {
    subscription: Subscription,
    early: VecDeque<Result<Update, Error>>,
}

impl LiveQuery {
    async fn next(&mut self) -> Result<Update, Error> {
        match self.early.pop_front() {
            Some(update) => update,
            None => self.subscription.try_next().await?.ok_or(Error::Closed),
        }
    }
}

/// Reads all subscriptions: the SDK checks an update when it is read, and then subscribes again.
async fn read_all(queries: &mut BTreeMap<String, LiveQuery>) {
    poll_fn(|context| {
        for query in queries.values_mut() {
            while let Poll::Ready(Some(update)) = pin!(query.subscription.next()).poll(context) {
                query.early.push_back(update);
            }
        }
        Poll::<()>::Pending
    })
    .await;
}

struct Runner {
    clients: Clients,
    subscriptions: BTreeMap<String, LiveQuery>,
    begun: BTreeMap<String, JoinHandle<Answered>>,
    variables: BTreeMap<String, JsonValue>,
    server: Option<Server>,
    proxy: Option<Proxy>,
    script: Option<Script>,
    _folder: TempDir,
}

impl Runner {
    async fn start(scenario: &JsonValue) -> Runner {
        let folder = tempfile::tempdir().unwrap();
        let mut server = None;
        let mut proxy = None;
        let mut script = None;
        let mut variables = BTreeMap::new();
        let port = if scenario["peer"] == "script" {
            script.insert(Script::start().await).port
        } else {
            let db = folder.path().join("abide.db");
            for token in scenario["tokens"].as_array().into_iter().flatten() {
                create_token(token, &db, &mut variables);
            }
            let options = scenario["serve"].as_array().into_iter().flatten();
            let options: Vec<String> =
                options.map(|option| option.as_str().unwrap().to_owned()).collect();
            let started = tokio::task::spawn_blocking(move || Server::start_with(&db, &options));
            let started = server.insert(started.await.unwrap());
            proxy.insert(Proxy::start(started.address().parse().unwrap()).await).port
        };
        let clients = Clients { url: format!("http://127.0.0.1:{port}"), made: Arc::default() };
        let subscriptions = BTreeMap::new();
        let begun = BTreeMap::new();
        Runner { clients, subscriptions, begun, variables, server, proxy, script, _folder: folder }
    }

    /// A step with the values of its variables. Names that no step has set yet stay.
    fn replaced(&self, value: &JsonValue) -> JsonValue {
        match value {
            JsonValue::String(text) => {
                let variable = text.strip_prefix('$').and_then(|name| self.variables.get(name));
                variable.unwrap_or(value).clone()
            }
            JsonValue::Array(items) => items.iter().map(|item| self.replaced(item)).collect(),
            JsonValue::Object(fields) => {
                fields.iter().map(|(name, value)| (name.clone(), self.replaced(value))).collect()
            }
            value => value.clone(),
        }
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        if let Some(kind) = ANSWERED.into_iter().find(|kind| step.contains_key(*kind)) {
            let answered = answer_of(self.clients.clone(), kind, step.clone());
            if let Some(name) = step.get("begin") {
                self.begun.insert(text(name), tokio::spawn(answered));
                return Ok(());
            }
            return self.take(step, answered.await);
        }
        if let Some(name) = step.get("answer") {
            let begun = self.begun.remove(&text(name)).ok_or("it was not begun")?;
            return self.take(step, begun.await.unwrap());
        }
        let (kind, name) = step.iter().find(|(kind, _)| is_plain(kind)).ok_or("unknown step")?;
        match kind.as_str() {
            "close" => match self.clients.made.lock().await.remove(&text(name)) {
                Some(client) => client.get().ok_or("it is not connected")?.close().await,
                None => return Err("there is no such client".to_owned()),
            },
            "rows" => self.rows(&text(name), &step["equal"]).await?,
            "update" => self.update(&text(name), step).await?,
            "ended" => {
                let mut ended = self.subscriptions.remove(&text(name)).ok_or("none")?;
                let error = loop {
                    if let Err(error) = ended.next().await {
                        break error;
                    }
                };
                check_error(&step["expect"]["error"], &error)?;
            }
            "unsubscribe" => drop(self.subscriptions.remove(&text(name)).ok_or("none")?),
            "mismatches" => {
                let found = self.live(&text(name))?.subscription.mismatches();
                if json!(found) != step["equal"] {
                    return Err(format!("{found} mismatches"));
                }
            }
            "kill" => self.server.as_mut().ok_or("no server")?.kill(),
            "start" => {
                let mut server = self.server.take().ok_or("no server")?;
                let started = tokio::task::spawn_blocking(move || {
                    server.start_again();
                    server
                });
                self.server = Some(started.await.unwrap());
            }
            "cut" => self.proxy.as_ref().ok_or("no proxy")?.cut(),
            "lose" => self.proxy.as_ref().ok_or("no proxy")?.lose_answer(),
            _ => self.script_step(kind, step).await?,
        }
        Ok(())
    }

    async fn script_step(&mut self, kind: &str, step: &Step) -> Result<(), String> {
        let script = self.script.as_mut().ok_or("unknown step")?;
        match kind {
            "accept" => script.accept(&step["accept"]).await,
            "refuse" => script.refuse(&step["refuse"]).await?,
            "say" => script.send_message(&step["say"]).await,
            "drop" => script.drop(),
            "hear" => {
                let message = tokio::select! {
                    message = script.receive(&step["hear"]) => message?,
                    () = read_all(&mut self.subscriptions) => unreachable!("it never ends"),
                };
                if let Some(name) = step.get("as") {
                    self.variables.insert(text(name), message["id"].clone());
                }
                save(step, &message, &mut self.variables)?;
            }
            _ => return Err("unknown step".to_owned()),
        }
        Ok(())
    }

    /// Compares an answer, and keeps what it brought.
    fn take(&mut self, step: &Step, answered: Answered) -> Result<(), String> {
        let expected = step.get("expect").unwrap_or(&JsonValue::Null);
        let answer = match answered {
            Err(error) => return check_error(&expected["error"], &error),
            Ok(answer) => answer,
        };
        expect(expected, &answer)?;
        save(step, &answer.described(), &mut self.variables)?;
        if let Answer::Subscribed(name, subscription) = answer {
            let query = LiveQuery { subscription: *subscription, early: VecDeque::new() };
            self.subscriptions.insert(name, query);
        }
        Ok(())
    }

    fn live(&mut self, name: &str) -> Result<&mut LiveQuery, String> {
        self.subscriptions.get_mut(name).ok_or_else(|| format!("there is no subscription {name}"))
    }

    async fn rows(&mut self, name: &str, expected: &JsonValue) -> Result<(), String> {
        let LiveQuery { subscription, early } = self.live(name)?;
        // An error is kept: a later step expects it.
        early.retain(Result::is_err);
        loop {
            let found = json!(subscription.rows().map(cells).collect::<Vec<_>>());
            if is_same(expected, &found) {
                return Ok(());
            }
            match timeout(LIMIT / 2, subscription.next()).await {
                Ok(Some(Ok(_))) => {}
                Ok(ended) => return Err(format!("it ended: {ended:?}")),
                Err(_) => return Err(format!("the rows are {found}")),
            }
        }
    }

    async fn update(&mut self, name: &str, step: &Step) -> Result<(), String> {
        let query = self.live(name)?;
        let update = query.next().await.map_err(|error| format!("it ended: {error:#}"))?;
        let lists = [
            ("inserts", update.insert_rows().map(cells).collect::<Vec<_>>()),
            ("updates", update.update_rows().map(cells).collect()),
            ("deletes", update.delete_keys().map(cells).collect()),
        ];
        for (name, found) in lists {
            let expected = step.get(name).and_then(JsonValue::as_array).cloned();
            if multiset(&found) != multiset(&expected.unwrap_or_default()) {
                return Err(format!("{name} are {}", json!(found)));
            }
        }
        for (name, found) in [("reset", update.reset), ("history_changed", update.history_changed)]
        {
            if found != step.get(name).is_some_and(|expected| expected == true) {
                return Err(format!("{name} is {found}"));
            }
        }
        Ok(())
    }
}

async fn answer_of(clients: Clients, kind: &str, step: Step) -> Answered {
    if kind == "connect" {
        let token = step.get("token").map(text);
        clients.get(&text(&step["connect"]), token.as_deref()).await?;
        return Ok(Answer::Connected);
    }
    let name = step.get("client").map_or_else(|| "main".to_owned(), text);
    let client = clients.get(&name, None).await?;
    let request_id = step.get("request_id").map(text);
    match kind {
        "call" => {
            let args = step.get("args").cloned().unwrap_or_else(|| json!({}));
            let mut call = client.call_by_name(&text(&step["call"]), args);
            if let Some(id) = request_id {
                call = call.request_id(id);
            }
            Ok(Answer::Called(call.await?))
        }
        "batch" => {
            let calls = step["batch"].as_array().unwrap();
            let calls = calls.iter().map(|call| Call::new(text(&call["reducer"]), &call["args"]));
            let mut batch = client.batch(calls);
            if let Some(id) = request_id {
                batch = batch.request_id(id);
            }
            Ok(Answer::Batch(batch.await?))
        }
        "sql" => {
            let mut sql = client.sql(text(&step["sql"]));
            for (name, value) in params(&step) {
                sql = sql.param(name, value);
            }
            if let Some(seq) = step.get("as_of").and_then(JsonValue::as_i64) {
                sql = sql.as_of(seq);
            }
            Ok(Answer::Rows(sql.rows().await?))
        }
        "session" => {
            let session = client.session(text(&step["session"]));
            let session = match step.get("id").map(text) {
                Some(id) => session.id(id).await?,
                None => session.await?,
            };
            Ok(Answer::Session(Some(session.id().to_owned())))
        }
        "find_session" => {
            let found = client.find_session(&text(&step["find_session"])).await?;
            Ok(Answer::Session(found.map(|session| session.id().to_owned())))
        }
        _ => subscribe(&client, &step).await,
    }
}

async fn subscribe(client: &Abide, step: &Step) -> Answered {
    let mut subscribe = client.subscribe(text(&step["sql"]));
    for (name, value) in params(step) {
        subscribe = subscribe.param(name, value);
    }
    let seq = |name: &str| step.get(name).and_then(JsonValue::as_i64);
    if let Some(seq) = seq("as_of") {
        subscribe = subscribe.as_of(seq);
    }
    if let Some(seq) = seq("after_seq") {
        subscribe = subscribe.after(seq);
    }
    if step.get("checksum").is_some_and(|wanted| wanted == true) {
        subscribe = subscribe.checksum();
    }
    let mut subscription = subscribe.await?;
    if seq("after_seq").is_none() {
        // The first update is the first result.
        subscription.try_next().await?;
    }
    Ok(Answer::Subscribed(text(&step["subscribe"]), Box::new(subscription)))
}

fn params(step: &Step) -> impl Iterator<Item = (&str, &JsonValue)> {
    let params = step.get("params").and_then(JsonValue::as_object).into_iter().flatten();
    params.map(|(name, value)| (name.as_str(), value))
}

fn save(
    step: &Step,
    from: &JsonValue,
    variables: &mut BTreeMap<String, JsonValue>,
) -> Result<(), String> {
    for (name, pointer) in step.get("save").and_then(JsonValue::as_object).into_iter().flatten() {
        let found = from
            .pointer(pointer.as_str().unwrap())
            .ok_or_else(|| format!("{pointer} is not in {from}"))?;
        variables.insert(name.clone(), found.clone());
    }
    Ok(())
}

/// Whether a field of a step is its kind, for steps without an answer.
fn is_plain(field: &str) -> bool {
    !matches!(
        field,
        "client"
            | "equal"
            | "expect"
            | "save"
            | "as"
            | "inserts"
            | "updates"
            | "deletes"
            | "reset"
            | "history_changed"
    )
}

fn create_token(token: &JsonValue, db: &Path, variables: &mut BTreeMap<String, JsonValue>) {
    let identity = text(&token["identity"]);
    let role = text(&token["role"]);
    let mut args =
        vec!["token".to_owned(), "create".to_owned(), identity, "--role".to_owned(), role];
    for capability in token["capabilities"].as_array().into_iter().flatten() {
        args.extend(["--capability".to_owned(), text(capability)]);
    }
    for (key, value) in token["scope"].as_object().into_iter().flatten() {
        args.extend(["--scope".to_owned(), format!("{key}={}", text(value))]);
    }
    args.extend(["--json".to_owned(), "--db".to_owned(), db.to_str().unwrap().to_owned()]);
    let secret = text(&run(args).json()["token"]);
    let id = secret.split('_').nth(1).unwrap().to_owned();
    let name = text(&token["name"]);
    variables.insert(format!("token.{name}"), secret.into());
    variables.insert(format!("token_id.{name}"), id.into());
}

fn text(value: &JsonValue) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text")).to_owned()
}
