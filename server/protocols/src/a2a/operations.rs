//! The operations of A2A, equal in all bindings.

use std::iter;

use abide_engine::buffers::Reservation;
use abide_schema::limits::A2A_PAGE;
use abide_schema::wire::BatchCall;
use abide_schema::{Caller, Code};
use abide_server::port::{AuthSession, ConnectionPermit, ParseTurn, off_the_runtime};
use serde_json::{Value as JsonValue, json};
use tokio::time::timeout;

use super::binding::{A2aResponse, TaskStream};
use super::error::{A2aError, A2aResult, Kind};
use super::message::Message;
use super::params::{bool_field, field, format_time, number_field, required_text, text_field};
use super::push::PushConfig;
use super::task::{Framing, TaskEncoder, TaskIds, task_to_json};
use super::task_list::{Filter, PageToken, state_of_row};
use super::{card, push, records};
use crate::follow::Follower;
use crate::start::{self, NewRun, NewSession, RunRow};
use crate::state::ProtocolState;
use crate::turn::Turn;
use crate::{limits, whole};

/// An operation, by its name in version 1.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    SendMessage,
    SendStreamingMessage,
    GetTask,
    ListTasks,
    CancelTask,
    SubscribeToTask,
    CreatePushConfig,
    GetPushConfig,
    ListPushConfigs,
    DeletePushConfig,
    GetExtendedAgentCard,
}

impl Operation {
    /// Returns the operation with the name of the protocol.
    pub(super) fn from_name(name: &str) -> Option<Operation> {
        Some(match name {
            "SendMessage" => Operation::SendMessage,
            "SendStreamingMessage" => Operation::SendStreamingMessage,
            "GetTask" => Operation::GetTask,
            "ListTasks" => Operation::ListTasks,
            "CancelTask" => Operation::CancelTask,
            "SubscribeToTask" => Operation::SubscribeToTask,
            "CreateTaskPushNotificationConfig" => Operation::CreatePushConfig,
            "GetTaskPushNotificationConfig" => Operation::GetPushConfig,
            "ListTaskPushNotificationConfigs" => Operation::ListPushConfigs,
            "DeleteTaskPushNotificationConfig" => Operation::DeletePushConfig,
            "GetExtendedAgentCard" => Operation::GetExtendedAgentCard,
            _ => return None,
        })
    }
}

/// A client of an agent.
pub(super) struct Peer {
    pub(super) app: ProtocolState,
    pub(super) session: AuthSession,
    pub(super) place: ConnectionPermit,
    pub(super) agent: String,
    /// Bytes of its request.
    pub(super) bytes: usize,
    /// Counts the request until it is handled.
    pub(super) hold: Option<Reservation>,
    /// The address of the server as the client knows it.
    pub(super) base: String,
}

impl Peer {
    pub(super) fn by(&self) -> &Caller {
        &self.session.caller
    }

    /// Performs an operation.
    pub(super) async fn perform(
        self,
        operation: Operation,
        params: JsonValue,
        framing: Framing,
    ) -> A2aResult<A2aResponse> {
        card::check_exposed(&self.app, self.by(), &self.agent).await?;
        let given = params;
        let params = &given;
        match operation {
            Operation::SendMessage => self.send(given).await,
            Operation::SendStreamingMessage => self.stream(given, framing).await,
            Operation::GetTask => self.get(params).await,
            Operation::ListTasks => self.list(params).await,
            Operation::CancelTask => self.cancel(params).await,
            Operation::SubscribeToTask => self.subscribe(params, framing).await,
            Operation::CreatePushConfig => {
                self.create_push_config(params).await.map(A2aResponse::small)
            }
            Operation::GetPushConfig => self.get_push_config(params).await.map(A2aResponse::small),
            Operation::ListPushConfigs => {
                self.list_push_configs(params).await.map(A2aResponse::small)
            }
            Operation::DeletePushConfig => {
                self.delete_push_config(params).await.map(A2aResponse::small)
            }
            Operation::GetExtendedAgentCard => {
                let card =
                    card::extended_card(&self.app, self.by(), &self.agent, &self.base).await?;
                Ok(A2aResponse::small(card))
            }
        }
    }

    async fn send(mut self, params: JsonValue) -> A2aResult<A2aResponse> {
        let configuration = field(&params, "configuration");
        let length = number_field(configuration, "historyLength")?;
        let returns_immediately = bool_field(configuration, "returnImmediately")?;
        let Sent { run, .. } = self.accept(&params).await?;
        // The task may take long.
        drop(params);
        self.hold = None;
        let ids = self.ids(&run);
        let history = self.load_history(&ids, length).await?;
        let mut permit = if returns_immediately {
            whole::acquire_load_permit(&self.app, self.by(), &run).await?
        } else {
            None
        };
        let turns = Turn::span(1, run.turn);
        let mut follower = Follower::new(&self.app, self.session.clone(), &run, turns).await?;
        if returns_immediately {
            follower.read_until_now().await?
        } else {
            follower.read_until_end().await?;
            permit = whole::acquire_permit(&self.app, self.by(), follower.turn.bytes()).await;
        }
        let task = encode_task(ids, follower, history).await?;
        Ok(A2aResponse::Value(json!({"task": task}), permit))
    }

    async fn stream(self, params: JsonValue, framing: Framing) -> A2aResult<A2aResponse> {
        let length = number_field(field(&params, "configuration"), "historyLength")?;
        let Sent { run, first_turn } = self.accept(&params).await?;
        let ids = self.ids(&run);
        let history = self.load_history(&ids, length).await?;
        let mut encoder = TaskEncoder::new(ids, history, framing);
        encoder.first_turn = first_turn;
        let turns = Turn::span(1, run.turn);
        let follower = Follower::new(&self.app, self.session, &run, turns).await?;
        Ok(A2aResponse::Stream(Box::new(TaskStream { follower, encoder, place: self.place })))
    }

    /// Accepts a message: it begins a task, or continues one. The same message is accepted once.
    async fn accept(&self, params: &JsonValue) -> A2aResult<Sent> {
        let configuration = field(params, "configuration");
        let push = field(configuration, "taskPushNotificationConfig");
        let turn = self.wait_for_turn().await;
        let message = Message::parse(field(params, "message"))?;
        drop(turn);
        let run = match &message.task_id {
            Some(task_id) => Some(self.find(task_id).await?),
            None => None,
        };
        let context = self.context_for(&message, run.as_ref())?;
        if let Some(sent) = self.find_accepted(&message, &context).await? {
            return Ok(sent);
        }
        let sent = match run {
            Some(run) => self.continue_task(&message, run, push).await,
            None => self.begin_task(&message, &context, push).await,
        };
        match sent {
            // The same message may have arrived twice at the same time.
            Err(error) if error.kind == Kind::Refused(Code::Conflict) => {
                self.find_accepted(&message, &context).await?.ok_or(error)
            }
            sent => sent,
        }
    }

    /// Returns the context of a message, in which its id is used once. A message that names neither a task nor a
    /// context begins a context whose id follows from the message: an equal one is a repetition, and another one with
    /// the same id is not.
    fn context_for(&self, message: &Message, run: Option<&RunRow>) -> A2aResult<String> {
        let by = self.by();
        let given = message.context_id.as_deref();
        let given = given.map(|id| start::id_for_caller(by, id));
        match (run.map(|run| self.ids(run)), given) {
            (Some(ids), Some(given)) if ids.context != given => {
                let detail = format!("task {} belongs to the context {}", ids.task, ids.context);
                Err(A2aError::invalid(detail))
            }
            (Some(ids), _) => Ok(ids.context),
            (None, Some(given)) => Ok(given.to_owned()),
            (None, None) => {
                let name = json!([self.agent, message.id, message.digest]).to_string();
                Ok(start::derived_id("s_", by, "a2a", &name))
            }
        }
    }

    /// Waits for the turn in which a large message is processed.
    async fn wait_for_turn(&self) -> Option<ParseTurn> {
        self.app.port.parse_turn(self.by(), self.bytes).await
    }

    /// Returns the task of a message that was accepted before.
    async fn find_accepted(&self, message: &Message, context: &str) -> A2aResult<Option<Sent>> {
        let record = records::find(&self.app, self.by(), &self.agent, context, &message.id);
        let Some(record) = record.await? else { return Ok(None) };
        if record.digest != message.digest {
            let detail = format!(
                "another message of the context {context} has the messageId {}",
                message.id
            );
            return Err(A2aError::invalid(detail));
        }
        let run = self.find(&record.task_id).await?;
        Ok(Some(Sent { run, first_turn: record.turn }))
    }

    async fn begin_task(
        &self,
        message: &Message,
        context: &str,
        push: &JsonValue,
    ) -> A2aResult<Sent> {
        let turn = self.wait_for_turn().await;
        let input = message.prompt()?;
        drop(turn);
        let name = json!([self.agent, context, message.id]).to_string();
        let id = start::derived_id("run_", self.by(), "a2a", &name);
        // From the first event on.
        let push = self.push_call(push, &id, &id, Some(0))?;
        let session_id = context.to_owned();
        let session = start::find_session_id(&self.app.engine, self.by(), &session_id).await?;
        let new_run = |new_session| NewRun {
            agent: self.agent.clone(),
            session_id: session_id.clone(),
            new_session,
            before: Vec::new(),
            input: input.clone(),
            id: Some(id.clone()),
            record: Some(records::record_call(self.by(), &self.agent, context, message, &id, 1)),
            follow_up: push.clone(),
        };
        let made = NewSession { id: session_id.clone(), metadata: None };
        let first = new_run(session.is_none().then_some(made));
        let begun = start::start(&self.app, self.by(), self.bytes, first, None).await;
        let run = match begun {
            // Another request may have created the session in the meantime.
            Err(refusal) if session.is_none() && refusal.code == Code::Conflict => {
                start::start(&self.app, self.by(), self.bytes, new_run(None), None).await?
            }
            begun => begun?,
        };
        Ok(Sent { run, first_turn: 1 })
    }

    /// Returns the call that configures the push notifications of a message, if it does.
    fn push_call(
        &self,
        push: &JsonValue,
        run_id: &str,
        task_id: &str,
        after: Option<i64>,
    ) -> A2aResult<Option<BatchCall>> {
        if push.is_null() {
            return Ok(None);
        }
        let config = PushConfig::parse(push, push::sender(&self.app)?, task_id)?;
        Ok(Some(config.call(run_id, after)))
    }

    async fn continue_task(
        &self,
        message: &Message,
        run: RunRow,
        push: &JsonValue,
    ) -> A2aResult<Sent> {
        let ids = self.ids(&run);
        if run.has_ended {
            let message =
                format!("task {} has ended; a message with its contextId begins another", ids.task);
            return Err(A2aError::new(Kind::UnsupportedOperation, message));
        }
        let pending = start::undecided_call_ids(&self.app.engine, self.by(), &run).await?;
        if pending.is_empty() {
            let message =
                format!("task {} needs no input; send the message when it does", ids.task);
            return Err(A2aError::new(Kind::UnsupportedOperation, message));
        }
        let decisions = message.decisions(&pending)?;
        let TaskIds { task, context } = &ids;
        let record =
            records::record_call(self.by(), &self.agent, context, message, task, run.turn + 1);
        let push = self.push_call(push, &run.id, &ids.task, None)?;
        let calls = iter::once(record).chain(push).collect();
        let before = run.turn;
        let run = start::decide(&self.app, self.by(), &run, decisions, calls).await?;
        let first_turn = (before + 1).min(run.turn);
        Ok(Sent { run, first_turn })
    }

    async fn get(self, params: &JsonValue) -> A2aResult<A2aResponse> {
        let length = number_field(params, "historyLength")?;
        let run = self.find(required_text(params, "id")?).await?;
        let permit = whole::acquire_load_permit(&self.app, self.by(), &run).await?;
        Ok(A2aResponse::Value(self.load_task(&run, length).await?, permit))
    }

    /// A task as it is now, with its artifacts.
    async fn load_task(&self, run: &RunRow, history_length: Option<u32>) -> A2aResult<JsonValue> {
        let ids = self.ids(run);
        let history = self.load_history(&ids, history_length).await?;
        let turns = Turn::span(1, i64::MAX);
        let mut follower = Follower::new(&self.app, self.session.clone(), run, turns).await?;
        follower.read_until_now().await?;
        encode_task(ids, follower, history).await
    }

    async fn cancel(self, params: &JsonValue) -> A2aResult<A2aResponse> {
        let run = self.find(required_text(params, "id")?).await?;
        let task_id = self.ids(&run).task;
        let ended = || A2aError::new(Kind::TaskNotCancelable, format!("task {task_id} has ended"));
        if run.has_ended {
            return Err(ended());
        }
        let args = json!({"id": run.id, "reason": "the task was cancelled"});
        match self.app.engine.call(self.by(), "abort_run", &args, None).await {
            Err(refusal) if refusal.code == Code::BadTransition => return Err(ended()),
            done => drop(done?),
        }
        let permit = whole::acquire_load_permit(&self.app, self.by(), &run).await?;
        let turns = Turn::span(1, i64::MAX);
        let mut follower = Follower::new(&self.app, self.session.clone(), &run, turns).await?;
        // The driver stops its tools first.
        match timeout(limits::ABORT_TIMEOUT, follower.read_until_end()).await {
            Ok(ended) => ended?,
            Err(_) => follower.read_until_now().await?,
        }
        let ids = self.ids(&run);
        let history = self.load_history(&ids, None).await?;
        Ok(A2aResponse::Value(encode_task(ids, follower, history).await?, permit))
    }

    async fn subscribe(self, params: &JsonValue, framing: Framing) -> A2aResult<A2aResponse> {
        let run = self.find(required_text(params, "id")?).await?;
        let ids = self.ids(&run);
        if run.has_ended {
            let message = format!("task {} has ended (use GetTask)", ids.task);
            return Err(A2aError::new(Kind::UnsupportedOperation, message));
        }
        let encoder = TaskEncoder::new(ids, Vec::new(), framing);
        let turns = Turn::span(1, i64::MAX);
        let follower = Follower::new(&self.app, self.session, &run, turns).await?;
        Ok(A2aResponse::Stream(Box::new(TaskStream { follower, encoder, place: self.place })))
    }

    async fn list(self, params: &JsonValue) -> A2aResult<A2aResponse> {
        let filter = Filter::parse(self.by(), &self.agent, params)?;
        let size = number_field(params, "pageSize")?.map_or(A2A_PAGE / 2, |size| size as usize);
        if size == 0 || size > A2A_PAGE {
            return Err(A2aError::invalid(format!("pageSize must be from 1 to {A2A_PAGE}")));
        }
        let after = text_field(params, "pageToken")?.map(PageToken::parse).transpose()?;
        let length = number_field(params, "historyLength")?;
        let with_artifacts = bool_field(params, "includeArtifacts")?;
        let total = filter.count(&self.app, self.by()).await?;
        let rows = filter.rows(&self.app, self.by(), after.as_ref(), size + 1).await?;
        // One permit for all: the runs are loaded one after the other.
        let permit = if with_artifacts {
            whole::acquire_permit(&self.app, self.by(), limits::WHOLE_RUN_BYTES).await
        } else {
            None
        };
        let mut tasks = Vec::new();
        let mut bytes = 0;
        for row in rows.iter().take(size) {
            let run = RunRow::from_row(row);
            let own = if with_artifacts {
                whole::size_of_events(&self.app.engine, self.by(), &run.id).await?
            } else {
                0
            };
            // A task that is too large for one text is listed without its artifacts.
            let is_whole = with_artifacts && own <= limits::WHOLE_RUN_BYTES;
            if is_whole {
                bytes += own;
                if bytes > limits::WHOLE_RUN_BYTES {
                    break;
                }
            }
            let mut task = if is_whole {
                self.load_task(&run, Some(0)).await?
            } else {
                let ids = self.ids(&run);
                let updated_at = row["updated_at"].as_i64().unwrap_or_default();
                json!({"id": ids.task, "contextId": ids.context, "status":
                        {"state": state_of_row(row), "timestamp": format_time(updated_at)}})
            };
            if length.is_some_and(|length| length > 0) {
                let history = self.load_history(&self.ids(&run), length).await?;
                if !history.is_empty() {
                    task["history"] = json!(history);
                }
            }
            tasks.push(task);
        }
        let last = rows[..tasks.len()].last().filter(|_| rows.len() > tasks.len());
        let next = last.map(PageToken::after_row).unwrap_or_default();
        let page =
            json!({"tasks": tasks, "nextPageToken": next, "pageSize": size, "totalSize": total});
        Ok(A2aResponse::Value(page, permit))
    }

    /// Returns a run of the agent that the caller can see and that no other run has delegated.
    pub(super) async fn find(&self, task_id: &str) -> A2aResult<RunRow> {
        let run = start::find(&self.app.engine, self.by(), task_id).await;
        let run = run.map_err(|refusal| match refusal.code {
            Code::NotFound => A2aError::no_task(task_id),
            _ => refusal.into(),
        })?;
        if run.agent == self.agent && !run.is_delegated {
            Ok(run)
        } else {
            Err(A2aError::no_task(task_id))
        }
    }

    /// Returns the ids without the namespace of the caller, which finds them either way.
    pub(super) fn ids(&self, run: &RunRow) -> TaskIds {
        TaskIds::for_run(self.by(), run)
    }

    async fn load_history(&self, ids: &TaskIds, length: Option<u32>) -> A2aResult<Vec<JsonValue>> {
        let mut history =
            records::load_history(&self.app, self.by(), &self.agent, &ids.task, length).await?;
        for message in &mut history {
            message["taskId"] = json!(ids.task);
            message["contextId"] = json!(ids.context);
        }
        Ok(history)
    }
}

/// Returns the task of the events that were read, with its artifacts.
async fn encode_task(
    ids: TaskIds,
    follower: Follower,
    history: Vec<JsonValue>,
) -> A2aResult<JsonValue> {
    Ok(off_the_runtime(move || task_to_json(&ids, &follower.turn, &history, true)).await?)
}

/// The run of a message, and the turn of it that the message began.
struct Sent {
    run: RunRow,
    first_turn: i64,
}
