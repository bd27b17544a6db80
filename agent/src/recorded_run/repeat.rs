//! Repeats a recorded run offline, in a file of its own: the model's answers, the outcomes of tools and the decisions on
//! approvals come from the recording; the definitions and the declarations of the tools are the current ones.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_client::arguments::{
    AbortRun, AppendMessage, ClaimHandoff, CreateSession, DecideApproval, Decision, Outcome,
    RejectHandoff, ResumeRun, SettleToolCall, StartRun,
};
use abide_client::rules::DERIVED;
use abide_client::{Abide, Call, Code, Error};
use abide_definitions::agent::{AgentConfig, AgentDefinition, Subagent};
use abide_definitions::agent_tool::{RESERVED, RESPONSE};
use abide_definitions::middleware::Middleware;
use abide_models::{
    Completeness, ConfigContext, Conversation, ModelError, ModelErrorKind, ModelEvent,
    ModelMessage, ModelProvider, ModelRequest, ModelResponse, ModelStream, Models, ModelsConfig,
    Replay, Stop, StructuredOutput, Usage,
};
use abide_tools::{Failure, Function, Invocation, ToolDeclaration, ToolOutcome, Tools};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::catalog::agents::{Catalog, CatalogSnapshot};
use crate::context::entry::CallStatus;
use crate::recorded_run::recording::{
    RecordedApproval, RecordedConversation, RecordedMessage, RecordedRun, RecordingError,
};
use crate::run::runtime::Runtime;
use crate::run::settings::Settings;

/// The id of the provider.
const RECORDING: &str = "recording";

/// The model of guardrails, which allows every text: what such a model answered is not recorded.
const VERDICT: &str = "verdict";

/// How long a repeated run may take. It waits for nothing outside of the process.
const TIME: Duration = Duration::from_secs(60);

impl RecordedRun {
    /// Repeats the run in an empty file. `tools` are the current declarations; `catalog` returns the definitions, with
    /// the tools that it is given. Nothing is sent over the network, and no tool of `tools` runs. `folder` is empty.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub async fn repeat(
        &self,
        tools: &Tools,
        catalog: impl Fn(Tools) -> Catalog,
        abide: &Abide,
        folder: &Path,
    ) -> Result<RecordedRun, RecordingError> {
        let ours = Tools::new();
        for declaration in self.declarations(tools) {
            let outcomes = Arc::new(self.outcomes());
            let gives = Function::untyped(declaration, move |invocation: Invocation| {
                let outcome = outcomes.get(&invocation.call_id).cloned();
                async move { outcome.unwrap_or_else(unrecorded) }
            });
            ours.add(gives).map_err(|why| RecordingError::Malformed(why.to_string()))?;
        }
        let catalog = Arc::new(catalog(ours.clone()).recorded_prompts(self.instructions()));
        let CatalogSnapshot { definitions, problems, .. } = catalog.read_in_background().await?;
        let first = self.conversations.first().map_or("", |first| &first.agent);
        if !definitions.iter().any(|it| it.name == first) {
            let why = problems.iter().map(|problem| format!("; {problem}")).collect::<String>();
            return Err(RecordingError::Malformed(format!("there is no agent {first}{why}")));
        }
        let surroundings = ConfigContext { environment: &|_| None, folder };
        let mut models = Models::new(ModelsConfig::default(), &surroundings)
            .map_err(|why| RecordingError::Malformed(why.to_string()))?;
        models
            .add(Arc::new(RecordedAnswers::new(self)), Vec::new(), 0)
            .map_err(|why| RecordingError::Malformed(why.to_string()))?;
        let empty = Catalog::new(folder, ours.clone()).with_guardrails_of(&catalog);
        let deployment = catalog.shared_deployment().get().to_vec();
        let empty = empty.deployment(offline_middleware(deployment));
        let settings = Settings::named("recording");
        let runtime = Runtime::builder(abide.clone(), models, ours, empty, settings);
        let runtime = runtime.repeats(self.outcomes()).build();
        runtime.register().await?;
        let offline: Vec<AgentDefinition> = definitions.iter().map(offline).collect();
        Catalog::register(abide, &offline).await?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let driving = tokio::spawn(async move { runtime.run(stopped).await });
        let repeated = self.perform(abide).await;
        stop.cancel();
        // If the runtime failed, the run has not ended as recorded.
        drop(driving.await);
        repeated
    }

    /// Starts the run, decides as recorded, and records the repetition.
    async fn perform(&self, abide: &Abide) -> Result<RecordedRun, RecordingError> {
        let first = self
            .conversations
            .first()
            .ok_or_else(|| RecordingError::Malformed("there is no recording".to_owned()))?;
        let id = first.id.as_str();
        abide.call(CreateSession::new(&first.agent).id(id)).await?;
        let (earlier, own) = first.messages.split_at(first.earlier.min(first.messages.len()));
        for call in history(id, earlier) {
            abide.call(call).await?;
        }
        let input = own.first().filter(|message| message.role == "user");
        let mut start = StartRun::new(id).id(id);
        start.input = input.and_then(|message| message.content.clone());
        abide.call(start).await?;
        let attended = self.attend(abide, id);
        if tokio::time::timeout(TIME, attended).await.is_err() {
            let reason = "the repetition does not end";
            abide.call(AbortRun::new(id).reason(reason)).await?;
            self.attend(abide, id).await?;
        }
        let mut repeated = RecordedRun::with_all_gates(abide, id, id).await?;
        repeated.end_where_interrupted(self);
        repeated.drop_gates_of_results();
        repeated.keep_facts(self);
        Ok(repeated)
    }

    /// Drops what a repetition adds to a run that a person, the clock or a price has ended, and takes over its outcome: the
    /// recorded answers do not say when that was, so the repetition goes on until there is no further answer.
    fn end_where_interrupted(&mut self, recorded: &RecordedRun) {
        let no_further = ModelErrorKind::NoRecording.code();
        for repeated in &mut self.conversations {
            let same = recorded.conversations.iter().find(|it| it.id == repeated.id);
            let is_at_end = repeated.outcome.error_code.as_deref() == Some(no_further);
            if let Some(recorded) = same.filter(|it| is_at_end && it.outcome.is_interrupted()) {
                repeated.messages.truncate(recorded.messages.len());
                repeated.outcome = recorded.outcome.clone();
            }
        }
    }

    /// Decides on approvals and rejects requests for a supervisor as recorded, and resumes pauses, until the run has ended.
    async fn attend(&self, abide: &Abide, id: &str) -> Result<(), RecordingError> {
        let decisions = self.decisions();
        let rejections: BTreeMap<String, &str> = self
            .results()
            .filter_map(|(id, message)| Some((id, message.supervisor_rejection()?)))
            .collect();
        let sql = "SELECT call_id, status FROM tool_calls \
                   WHERE status = 'awaiting_approval' OR status = 'unknown'";
        let mut asked = abide.subscribe(sql).await?;
        let sql = "SELECT h.id, c.call_id FROM handoff_requests AS h \
                   JOIN handoff_calls AS c ON c.handoff_id = h.id WHERE h.status = 'pending'";
        let mut handed_off = abide.subscribe(sql).await?;
        let sql = "SELECT id, turn FROM runs WHERE status = 'waiting' AND reason = 'pause'";
        let mut paused = abide.subscribe(sql).await?;
        let sql = "SELECT id FROM runs WHERE id = :id AND ended_at IS NOT NULL";
        let mut ended = abide.subscribe(sql).param("id", id).await?;
        loop {
            tokio::select! {
                update = asked.try_next() => {
                    update?;
                    for (id, status) in asked.typed_rows::<(String, String)>()? {
                        // A decision is refused if it was made meanwhile.
                        let _ = match (status.as_str(), decisions.get(&id)) {
                            ("unknown", _) => {
                                let settle = SettleToolCall::new(&id, Outcome::Failed);
                                abide.call(settle.error("unknown")).await.map(drop)
                            }
                            (_, decision) => decide_as_recorded(abide, &id, decision).await,
                        };
                    }
                }
                // A request that was answered has a result, so it does not ask again.
                update = handed_off.try_next() => {
                    update?;
                    for (id, call_id) in handed_off.typed_rows::<(String, String)>()? {
                        let why = rejections.get(&call_id).copied().unwrap_or(NO_RESULT);
                        let claim = Call::from(ClaimHandoff::new(&id));
                        let reject = Call::from(RejectHandoff::new(&id, why));
                        let _ = abide.batch([claim, reject]).await;
                    }
                }
                update = paused.try_next() => {
                    update?;
                    for (id, _) in paused.typed_rows::<(String, i64)>()? {
                        let _ = abide.call(ResumeRun::new(&id)).await;
                    }
                }
                update = ended.try_next() => {
                    update?;
                    if ended.rows().len() > 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Returns the results of calls with their ids. The id of a conversation is that of its run.
    fn results(&self) -> impl Iterator<Item = (String, &RecordedMessage)> {
        self.conversations.iter().flat_map(|conversation| {
            let results = conversation.messages.iter().filter(|it| it.role == "tool");
            results.filter_map(move |it| {
                Some((format!("{}{DERIVED}{}", conversation.id, it.position.as_ref()?), it))
            })
        })
    }

    fn outcomes(&self) -> BTreeMap<String, ToolOutcome> {
        self.results().filter_map(|(id, message)| Some((id, outcome_of(message)?))).collect()
    }

    /// Takes the results of tools and the decisions of people from the recording: they do not change with a definition. So a call
    /// that the current definitions do not run keeps its result and its decision for later definitions, which do.
    fn keep_facts(&mut self, recorded: &RecordedRun) {
        let results: BTreeMap<String, RecordedMessage> =
            recorded.results().map(|(id, message)| (id, message.clone())).collect();
        for conversation in &mut self.conversations {
            for now in conversation.messages.iter_mut().filter(|it| it.role == "tool") {
                let position = now.position.clone().unwrap_or_default();
                let id = format!("{}{DERIVED}{position}", conversation.id);
                let Some(was) = results.get(&id).filter(|was| was.name == now.name) else {
                    continue;
                };
                now.keep_facts(was);
            }
        }
    }

    fn decisions(&self) -> BTreeMap<String, RecordedApproval> {
        let decided = self.results().filter_map(|(id, message)| {
            let mut decision = message.approval.clone()?;
            if !decision.approved && decision.comment.is_none() {
                // Without a comment, the model reads who has rejected the call, or that nobody has decided in time.
                decision.comment.clone_from(&message.failure);
            }
            Some((id, decision))
        });
        decided.collect()
    }

    /// Returns the instructions of the agents.
    fn instructions(&self) -> BTreeMap<String, String> {
        let all = self.conversations.iter();
        all.filter_map(|it| Some((it.agent.clone(), it.instructions.clone()?))).collect()
    }

    /// Returns the declarations of the tools: the current ones, and those of the recording for tools that are not
    /// there, such as those of MCP servers, which are not started.
    fn declarations(&self, tools: &Tools) -> Vec<ToolDeclaration> {
        let mut declarations: BTreeMap<String, ToolDeclaration> =
            tools.declarations().into_iter().map(|tool| (tool.name.clone(), tool)).collect();
        for tool in self.conversations.iter().flat_map(|it| &it.tools) {
            if RESERVED.contains(&&*tool.name) || declarations.contains_key(&tool.name) {
                continue;
            }
            let mut declared =
                ToolDeclaration::new(&tool.name, &tool.description, tool.parameters.clone());
            declared.effect = tool.effect;
            declared.needs_approval = tool.needs_approval;
            declarations.insert(tool.name.clone(), declared);
        }
        let mut all: Vec<ToolDeclaration> = declarations.into_values().collect();
        // A recorded failure is final.
        all.iter_mut().for_each(|tool| tool.retry = None);
        all
    }
}

/// Returns the recorded outcome of a call; `None` if a person or a limit ended it before it ran.
fn outcome_of(message: &RecordedMessage) -> Option<ToolOutcome> {
    if message.ran == Some(false) {
        return Some(unrecorded());
    }
    let ending = message.ending();
    let text = ending.content.unwrap_or_default();
    if ending.status == CallStatus::Cancelled {
        return Some(ToolOutcome::failed(Failure::Cancelled, text));
    }
    // A recording can have the result of a tool also if the definitions at the time did not run it: see `keep_facts`.
    if let Some(result) =
        message.result.as_ref().filter(|_| message.status.is_some() || !message.error)
    {
        let text = result["text"].as_str().map_or(text, str::to_owned);
        let exit_code = result["exit_code"].as_i64().and_then(|it| i32::try_from(it).ok());
        return Some(ToolOutcome {
            content: result["content"].clone(),
            exit_code: exit_code.unwrap_or_default(),
            ..ToolOutcome::text(text)
        });
    }
    match ending.status {
        // A person has settled the call, without a result.
        CallStatus::Succeeded => Some(ToolOutcome::text(text)),
        CallStatus::Rejected => {
            let why = message.supervisor_rejection()?;
            Some(ToolOutcome::failed(Failure::Denied, why))
        }
        CallStatus::Skipped => None,
        CallStatus::Failed | CallStatus::Cancelled => Some(ToolOutcome {
            exit_code: ending.exit_code.unwrap_or(1),
            ..ToolOutcome::failed(Failure::Tool, message.failure.clone().unwrap_or(text))
        }),
    }
}

/// The error of a call that did not run in the recorded run.
const NO_RESULT: &str = "the recording has no result of this call";

fn unrecorded() -> ToolOutcome {
    ToolOutcome::failed(Failure::Tool, NO_RESULT)
}

/// Decides on a call as recorded. If the current schema refuses the arguments that the approver wrote, rejects the call, because it
/// cannot run with them.
async fn decide_as_recorded(
    abide: &Abide,
    call_id: &str,
    recorded: Option<&RecordedApproval>,
) -> Result<(), Error> {
    match abide.call(decide(call_id, recorded)).await {
        Err(error) if error.code() == Some(Code::BadArguments) => {
            let why = format!("the arguments of the recorded approval are refused: {error}");
            let reject = DecideApproval::new(Decision::Reject).call_id(call_id).comment(why);
            abide.call(reject).await.map(drop)
        }
        decided => decided.map(drop),
    }
}

fn decide(call_id: &str, recorded: Option<&RecordedApproval>) -> DecideApproval {
    let decision =
        if recorded.is_none_or(|it| it.approved) { Decision::Approve } else { Decision::Reject };
    DecideApproval {
        comment: recorded.and_then(|it| it.comment.clone()),
        approved_arguments: recorded.and_then(|it| it.arguments.clone()),
        ..DecideApproval::new(decision).call_id(call_id)
    }
}

/// The run that stands for those before the recorded one.
const EARLIER: &str = "earlier";

/// Returns the messages of a session before the run.
fn history(session_id: &str, messages: &[RecordedMessage]) -> Vec<AppendMessage> {
    let mut answers = 0;
    let mut history = Vec::new();
    for recorded in messages {
        let content = recorded.content.clone().unwrap_or_default();
        let message = AppendMessage::new(session_id, &recorded.role, content);
        history.push(match recorded.role.as_str() {
            "assistant" => {
                answers += 1;
                let calls = recorded.tool_calls.iter().enumerate().map(|(at, call)| {
                    json!({"call_id": earlier_call_id(answers, at + 1), "name": call.name,
                        "arguments": call.arguments, "provider_call_id": call.id})
                });
                let calls: Vec<Value> = calls.collect();
                let data = json!({"run_id": EARLIER, "iteration": answers, "calls": calls});
                message.data(data).run_id(EARLIER)
            }
            "tool" => {
                let data = json!({"call_id": earlier_call_id(answers, 0), "name": recorded.name,
                    "provider_call_id": recorded.tool_call_id, "is_error": recorded.error});
                message.data(data).run_id(EARLIER)
            }
            _ => message,
        });
    }
    history
}

fn earlier_call_id(answer: usize, position: usize) -> String {
    format!("earlier-{answer}.{position}")
}

/// Returns a definition whose models are those of the recording. The model's name says which agent asks.
fn offline(definition: &AgentDefinition) -> AgentDefinition {
    let config = AgentConfig {
        provider: Some(RECORDING.to_owned()),
        model: Some(definition.name.clone()),
        fallbacks: Vec::new(),
        ..definition.config.clone()
    };
    let subagents = definition.subagents.iter().map(|subagent| match subagent {
        Subagent::Inline(inline) => Subagent::Inline(Box::new(offline(inline))),
        named @ Subagent::Named(_) => named.clone(),
    });
    let limits = abide_definitions::agent::Limits {
        // Prices and the clock are not those of the recording.
        cost_usd: None,
        wall_clock_seconds: None,
        wall_clock_counts_waits: false,
        ..definition.limits.clone()
    };
    AgentDefinition {
        config,
        middleware: offline_middleware(definition.middleware.clone()),
        deployment_middleware: offline_middleware(definition.deployment_middleware.clone()),
        subagents: subagents.collect(),
        limits,
        ..definition.clone()
    }
}

/// Middleware whose models are those of the recording.
fn offline_middleware(mut middleware: Vec<Middleware>) -> Vec<Middleware> {
    // The recording has the answers of the models that were asked in the end.
    middleware.retain(|it| !matches!(it, Middleware::ModelFallback(_)));
    for entry in &mut middleware {
        let Middleware::Guardrail(rule) = entry else { continue };
        if let Some(verdict) = &mut rule.verdict {
            verdict.provider = Some(RECORDING.to_owned());
            verdict.model = Some(VERDICT.to_owned());
        }
    }
    middleware
}

/// The provider: finds the conversation of a request, and gives its next answer with the recorded usage.
struct RecordedAnswers {
    replay: Replay,
    conversations: Vec<KnownConversation>,
    structured_output: StructuredOutput,
}

/// A conversation of the recording.
struct KnownConversation {
    conversation: Conversation,
    usages: Vec<Usage>,
    /// The agent of the run.
    agent: String,
}

impl KnownConversation {
    /// Returns `true` if it continues a request: with the same first message of a user, and the same answers. Those
    /// that a summary stands for are not in the request, and large arguments of others are archived.
    fn continues(&self, request: &ModelRequest) -> bool {
        let given = answered_calls(&request.messages);
        let recorded = answered_calls(&self.conversation.messages);
        let omitted = request.omitted_answers;
        first_user_text(&self.conversation.messages) == first_user_text(&request.messages)
            && omitted + given.len() < recorded.len()
            && given
                .iter()
                .zip(&recorded[omitted..])
                .all(|(given, recorded)| same_calls(given, recorded))
    }

    /// Returns `true` if an agent of this name asks. An inline agent is registered below its parent.
    fn is_of(&self, agent: &str) -> bool {
        let inline = self.agent.strip_suffix(agent).is_some_and(|above| above.ends_with('/'));
        self.agent == agent || inline
    }
}

impl RecordedAnswers {
    fn new(recorded: &RecordedRun) -> RecordedAnswers {
        let known = recorded.conversations.iter().map(|it| KnownConversation {
            conversation: conversation(it),
            usages: usages(it),
            agent: it.agent.clone(),
        });
        let conversations: Vec<KnownConversation> = known.collect();
        let messages = recorded.conversations.iter().flat_map(|it| &it.messages);
        let by_tool = messages.flat_map(|it| &it.tool_calls).any(|call| call.name == RESPONSE);
        let all = conversations.iter().map(|it| it.conversation.clone()).collect();
        let replay = Replay::new(RECORDING, all);
        let structured_output =
            if by_tool { StructuredOutput::Tool } else { StructuredOutput::Native };
        RecordedAnswers { replay, conversations, structured_output }
    }

    /// Returns the conversation that continues a request. That of the agent that asks comes first: an agent may
    /// delegate the message that it got. After a handoff another agent asks.
    fn find(&self, request: &ModelRequest) -> Option<&KnownConversation> {
        let all = || self.conversations.iter().filter(|it| it.continues(request));
        all().find(|it| it.is_of(&request.model)).or_else(|| all().next())
    }
}

/// Returns `true` if an answer has the recorded calls. Arguments that are archived in the request are not compared.
fn same_calls(given: &[(&str, &str)], recorded: &[(&str, &str)]) -> bool {
    given.len() == recorded.len()
        && given.iter().zip(recorded).all(|((name, arguments), (other, recorded))| {
            name == other && (arguments == recorded || arguments.contains(" executionId:'"))
        })
}

fn first_user_text(messages: &[ModelMessage]) -> Option<&str> {
    messages.iter().find_map(|message| match message {
        ModelMessage::User { text } => Some(text.as_str()),
        _ => None,
    })
}

/// The calls of an answer: names and arguments.
type NamedCalls<'a> = Vec<(&'a str, &'a str)>;

/// Returns the calls of the answers. Their texts can be replaced by guardrails.
fn answered_calls(messages: &[ModelMessage]) -> Vec<NamedCalls<'_>> {
    let answers = messages.iter().filter_map(|message| match message {
        ModelMessage::Assistant { calls, .. } => {
            Some(calls.iter().map(|call| (&*call.name, &*call.arguments)).collect())
        }
        _ => None,
    });
    answers.collect()
}

impl ModelProvider for RecordedAnswers {
    fn id(&self) -> &str {
        RECORDING
    }

    fn structured_output(&self) -> StructuredOutput {
        self.structured_output
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        if request.model == VERDICT {
            return allow_stream();
        }
        let Some(KnownConversation { conversation, usages, .. }) = self.find(&request) else {
            let why = "the recording has no further answer here";
            let error = ModelError::new(ModelErrorKind::NoRecording, why);
            return stream::iter([Err(error)]).boxed();
        };
        let position = request.omitted_answers + answered_calls(&request.messages).len();
        let usage = usages.get(position).copied().unwrap_or_default();
        let request = ModelRequest { model: conversation.id.clone(), ..request };
        let stream = self.replay.stream(request);
        stream
            .map(move |event| match event {
                Ok(ModelEvent::Answer(answer)) => {
                    Ok(ModelEvent::Answer(ModelResponse { usage, ..answer }))
                }
                other => other,
            })
            .boxed()
    }
}

fn allow_stream() -> ModelStream {
    let answer = ModelResponse {
        text: "{\"allow\": true}".to_owned(),
        reasoning: None,
        calls: Vec::new(),
        stop: Stop::End,
        usage: Usage::default(),
        cost_micros: None,
        provider: RECORDING.to_owned(),
        model: VERDICT.to_owned(),
        carry: None,
    };
    stream::iter([Ok(ModelEvent::Answer(answer))]).boxed()
}

fn conversation(recorded: &RecordedConversation) -> Conversation {
    let line = serde_json::to_string(recorded).unwrap_or_default();
    Conversation::from_json(&line).unwrap_or_else(|_| Conversation {
        id: recorded.id.clone(),
        model: None,
        system: None,
        messages: Vec::new(),
    })
}

fn usages(recorded: &RecordedConversation) -> Vec<Usage> {
    let answers = recorded.messages.iter().filter(|message| message.role == "assistant");
    let usage = answers.map(|message| {
        let usage = message.usage.unwrap_or_default();
        let completeness = match (usage.input_tokens, usage.output_tokens) {
            (Some(_), Some(_)) => Completeness::Complete,
            (None, None) => Completeness::Unavailable,
            _ => Completeness::Partial,
        };
        Usage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            completeness,
            ..Usage::default()
        }
    });
    usage.collect()
}
