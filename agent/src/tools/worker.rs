//! Runs tool calls that belong to no run, such as those that clients of MCP request. Each call is a row: it waits for its
//! approval, is retried, and ends like a call of a run, even if the process was killed in between.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use abide_client::arguments::ClaimToolCall;
use abide_client::rows::{Session, ToolCall};
use abide_client::rules::CommonScopeKeys;
use abide_client::{Abide, Error, Scope};
use abide_tools::{Effect, ToolContext, ToolView};
use serde_json::{Map, Value};
use tokio::task::{Id, JoinSet};

use crate::run::context::restriction;
use crate::run::heartbeat::{HeldLeases, LeaseKeeper};
use crate::run::lease::millis;
use crate::run::settings::Settings;
use crate::run::shutdown::Shutdown;
use crate::tools::claimed::ClaimedCall;
use crate::tools::exchange::CallLog;
use crate::tools::waiting_calls::{WaitingCall, WaitingCalls};

/// Calls that run at the same time. Programs of calls use the memory of this machine.
const AT_ONCE: usize = 64;

/// Calls of one session that run at the same time, so that a session with many calls does not delay the others.
const OF_A_SESSION: usize = 8;

/// Calls of one tenant that run at the same time, so that a tenant with many sessions does not delay the others.
const OF_A_TENANT: usize = 16;

/// Pause after a refused claim, unless the refusal says when it may succeed.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the calls of some tools in the sessions of one agent name.
#[derive(Clone)]
pub struct ToolWorker {
    shared: Arc<Shared>,
}

struct Shared {
    abide: Abide,
    tools: ToolView,
    settings: Settings,
    leases: Arc<HeldLeases>,
    agent: String,
}

impl ToolWorker {
    /// Creates a worker for the calls of these tools in the sessions of `agent`.
    #[must_use]
    pub fn new(abide: Abide, tools: ToolView, settings: Settings, agent: &str) -> ToolWorker {
        let agent = agent.to_owned();
        let leases = Arc::default();
        ToolWorker { shared: Arc::new(Shared { abide, tools, settings, leases, agent }) }
    }

    /// Runs calls until stopped. Then running tools are asked to stop. With a [`Shutdown`] they can end before that.
    ///
    /// # Errors
    /// [`Error`] if the connection is lost, or the system has no room for a thread.
    pub async fn run(&self, stop: impl Into<Shutdown>) -> Result<(), Error> {
        let shutdown = stop.into();
        let Shared { abide, settings, leases, agent, .. } = &*self.shared;
        let keeper = LeaseKeeper::start(abide, leases, settings.lease)?;
        let newest = WaitingCalls::newest();
        let mut changes = abide.subscribe(newest).param("agent", agent).await?;
        let mut running = RunningCalls::default();
        let mut waiting = WaitingCalls::new(abide, agent, OF_A_SESSION);
        loop {
            tokio::select! {
                () = shutdown.draining() => break,
                update = changes.try_next() => {
                    update?.ok_or(Error::Closed)?;
                    let newest = changes.typed_rows::<(Option<i64>,)>()?;
                    let newest = newest.first().and_then(|it| it.0);
                    if !waiting.arrive(newest.unwrap_or(0)).await? {
                        continue;
                    }
                    running.share_by(&waiting);
                }
                ended = running.one_ended() => {
                    waiting.refill(&ended.session_id, ended.waits_again).await?;
                }
            }
            waiting.take(|WaitingCall { call_id, session_id, tool_name, scope, .. }| {
                if running.tasks.len() >= AT_ONCE {
                    return false;
                }
                if running.contains_call(call_id) {
                    return true;
                }
                if self.shared.tools.get(tool_name).is_none() {
                    return false;
                }
                let call_id = call_id.clone();
                let session_id = session_id.clone();
                let place = CallPlace { call_id, session_id, scope: restriction(scope) };
                let has_room = running.have_room(&place);
                if has_room {
                    let work = self.clone().work(place.clone(), shutdown.clone());
                    running.begin(place, work);
                }
                has_room
            });
        }
        while !running.tasks.is_empty() {
            running.one_ended().await;
        }
        keeper.stop().await;
        Ok(())
    }

    /// Runs a call. Returns whether it may wait again.
    async fn work(self, place: CallPlace, shutdown: Shutdown) -> bool {
        let CallPlace { call_id, session_id, .. } = place;
        let Err(error) = self.attempt(&call_id, &session_id, &shutdown).await else {
            return false;
        };
        if error.code().is_none() {
            tracing::warn!(
                name: "tool_call_failed",
                error = format_args!("{error:#}"),
                call_id,
                "a tool call could not be run"
            );
        }
        // A limit of the tool holds the call back, or the row has just changed.
        let pause = error.retry_after().unwrap_or(PAUSE);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shutdown.draining() => {}
        }
        true
    }

    async fn attempt(
        &self,
        call_id: &str,
        session_id: &str,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let Shared { abide, tools, settings, leases, .. } = &*self.shared;
        let cancel = &shutdown.stop_token();
        let context = self.context(session_id).await?;
        tokio::select! {
            biased;
            () = shutdown.draining() => return Ok(()),
            () = leases.until_renewed() => {}
        }
        let claim = ClaimToolCall::new(call_id).lease_ms(millis(settings.lease));
        let call: ToolCall = abide.call(claim.worker(&settings.driver)).await?.into_inner();
        let effect = tools.get(&call.tool_name).map(|tool| tool.declaration().effect);
        let log = CallLog::for_call(abide, &call);
        let held = ClaimedCall { abide, settings, leases, call: &call, exchange: Some(&log) };
        let exchange = log.load(settings, &call).await?;
        let running = async {
            let admitted = tools.admit_value(&call.tool_name, call.arguments.value());
            match (admitted, exchange) {
                (Ok(admitted), Ok(exchange)) => {
                    let id = &call.call_id;
                    admitted.continue_until(id, context, cancel.clone(), exchange).await
                }
                (Err(refused), _) | (_, Err(refused)) => refused,
            }
        };
        let outcome = held.keep(running, cancel).await.unwrap_or_else(|lost| lost);
        held.record(&outcome, effect.unwrap_or(Effect::AtMostOnce), false, None).await.map(drop)
    }

    async fn context(&self, session_id: &str) -> Result<ToolContext, Error> {
        let Shared { abide, agent, .. } = &*self.shared;
        let sql = "SELECT * FROM sessions WHERE id = :id";
        let found: Vec<Session> = abide.sql(sql).param("id", session_id).fetch().await?;
        let session = found.first();
        Ok(ToolContext {
            session_id: session_id.to_owned(),
            agent: agent.clone(),
            scope: object_or_empty(session.map(|session| session.scope.value())),
            run_id: None,
            thread_id: Some(session_id.to_owned()),
            metadata: object_or_empty(session.map(|session| session.metadata.value())),
        })
    }
}

/// The calls that run now.
#[derive(Default)]
struct RunningCalls {
    tasks: JoinSet<bool>,
    /// The call of each task.
    calls: HashMap<Id, CallPlace>,
    /// The keys of the scopes of all waiting and running calls. The calls of a tenant share its places, because it can
    /// narrow its own scope as often as it likes.
    common_keys: CommonScopeKeys,
}

/// A call, and what it shares the worker with.
#[derive(Clone)]
struct CallPlace {
    call_id: String,
    session_id: String,
    scope: Scope,
}

impl RunningCalls {
    fn begin(&mut self, place: CallPlace, work: impl Future<Output = bool> + Send + 'static) {
        let task = self.tasks.spawn(work);
        self.calls.insert(task.id(), place);
    }

    /// Sets the keys that distinguish tenants. Those of calls that have ended do not count.
    fn share_by(&mut self, waiting: &WaitingCalls) {
        let mut common_keys = CommonScopeKeys::default();
        waiting.scopes().for_each(|scope| common_keys.include_scope(&restriction(scope)));
        self.calls.values().for_each(|place| common_keys.include_scope(&place.scope));
        self.common_keys = common_keys;
    }

    fn have_room(&self, place: &CallPlace) -> bool {
        let calls = || self.calls.values();
        let of_session = calls().filter(|it| it.session_id == place.session_id).count();
        let tenant = self.common_keys.tenant_of(&place.scope);
        let of_tenant =
            calls().filter(|it| self.common_keys.tenant_of(&it.scope) == tenant).count();
        // The sessions without a scope are those of the operator.
        let tenant_has_room = of_tenant < OF_A_TENANT || place.scope.is_empty();
        tenant_has_room && of_session < OF_A_SESSION && self.calls.len() < AT_ONCE
    }

    fn contains_call(&self, call_id: &str) -> bool {
        self.calls.values().any(|it| it.call_id == call_id)
    }

    /// Waits for the end of a task; for ever if there is none.
    async fn one_ended(&mut self) -> EndedCall {
        let (id, waits_again) = match self.tasks.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, waits_again))) => (id, waits_again),
            Some(Err(panicked)) => {
                tracing::error!(
                    name: "tool_worker_panicked",
                    error = %panicked,
                    "the worker of a tool call panicked"
                );
                (panicked.id(), true)
            }
        };
        let session_id = self.calls.remove(&id).map(|place| place.session_id).unwrap_or_default();
        EndedCall { session_id, waits_again }
    }
}

/// A call that has ended, or was given up.
struct EndedCall {
    session_id: String,
    /// Whether it may wait again without an event.
    waits_again: bool,
}

fn object_or_empty(value: Option<Value>) -> Map<String, Value> {
    match value {
        Some(Value::Object(members)) => members,
        _ => Map::new(),
    }
}
