//! The Rust SDK: one API over two backends, an engine in this process and a remote server.
//!
//! It changes when the Rust API changes. It contains no business rules: those are reducers. Each reducer has a struct of
//! its arguments, and [`Abide::call`] takes it: [`arguments`] has those of the built-in reducers, and `#[reducer]`
//! generates them for custom ones.
//!
//! ```
//! use abide_client::arguments::{
//!     AppendMessage, ClaimHandoff, CreateSession, RequestSupervisorHandoff, ResolveHandoff,
//! };
//! use abide_client::{Abide, HandoffRequest};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("agents.db");
//! let abide = Abide::open(path)?; // or Abide::connect("http://127.0.0.1:7341").await?
//!
//! let session = abide.call(CreateSession::new("support")).await?;
//! abide.call(AppendMessage::new(&session.id, "user", "Where is my parcel?")).await?;
//! abide.call(RequestSupervisorHandoff::new(&session.id, "angry customer", "refunds")).await?;
//!
//! let mut pending =
//!     abide.subscribe("SELECT * FROM handoff_requests WHERE status = 'pending'").await?;
//! while let Some(update) = pending.next().await {
//!     for handoff in update.inserts::<HandoffRequest>()? {
//!         if let Ok(claim) = abide.call(ClaimHandoff::new(&handoff.id)).await {
//!             abide.call(ResolveHandoff::new(&claim.id, "a refund is on its way")).await?;
//!         }
//!     }
//! #   if pending.rows().len() == 0 { break; }
//! }
//!
//! let messages: Vec<(String, String)> = abide
//!     .sql("SELECT role, content FROM agent_state WHERE session_id = :sid ORDER BY id")
//!     .param("sid", &session.id)
//!     .fetch()
//!     .await?;
//! assert_eq!(messages[1], ("supervisor".to_owned(), "a refund is on its way".to_owned()));
//! abide.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! **Calls take effect at most once.** Each call has a request id, generated once. After a lost
//! connection the client sends the call again with the same id until it is answered or its deadline has
//! passed. With your own id ([`Request::request_id`]) the guarantee extends across processes.
//!
//! **Subscriptions have no gaps and no duplicates**, even across lost connections and server restarts:
//! they resume from the last seq received, and a result that must be sent whole again is reduced to its
//! difference.
//!
//! **Memory is bounded.** A subscription whose consumer does not read is dropped on the server and resumed
//! from its seq when the consumer reads again. It delays no other subscriber.
//!
//! **A file can be shared.** [`Abide::open`] is the engine of its file, in this process. [`Abide::open_shared`] connects
//! to an engine that all programs of this user share, and starts it if none runs. It stops with its last user.
//!
//! **Steps are durable.** [`Abide::session`] returns a session whose steps (a tool call, a message, an approval, a handoff, a
//! timer) have keys. A program that crashed runs again, and its steps return their recorded outcomes.
//!
//! In reading order: [`Abide`] · [`OpenShared`] · `request` calls and batches · [`arguments`] the built-in reducers ·
//! [`Secret`] a new token · `sql` · `explain` · `subscription` · `rows` the maintained result, in the `order` of SQLite · `decode` rows as
//! Rust types · `steps` durable steps, workers and supervisors · `link` connection state · `backend` the interface of
//! both backends, `embedded` and `remote` them.

mod abide;
mod backend;
mod decode;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod explain;
mod link;
mod open_shared;
mod order;
mod remote;
mod request;
mod rows;
mod secret;
mod sql;
mod steps;
mod subscription;

pub use abide::{Abide, Builder};
#[cfg(feature = "embedded")]
pub use abide_engine::{Clock, Retention, SystemClock, buffers::BufferLimits};
pub use abide_reducers::agent::delegation_cycle;
pub use abide_reducers::approval::{ApprovalStatus, Decision};
pub use abide_reducers::arguments;
pub use abide_reducers::collection::EntryPut;
pub use abide_reducers::correction::{CorrectedLine, CorrectedResult, recorded_result};
pub use abide_reducers::exchange::{INPUT_TOOL, asked_by, input_id};
pub use abide_reducers::memory::space_name;
pub use abide_reducers::message::Appended;
pub use abide_reducers::plan::NewPlanStep;
pub use abide_reducers::prompt::{PROMPT_VERSION_AT, prompt_version};
pub use abide_reducers::run::NewRunEvent;
pub use abide_reducers::run::RunEnd;
pub use abide_reducers::run::drive::ModelUsage;
pub use abide_reducers::summary::{NewArchivedResult, NewSummary};
pub use abide_reducers::tool::{ApprovalPolicy, Rate, Retry, ToolLimits};
pub use abide_reducers::tool_call::Outcome;
pub use abide_reducers::{
    Agent, AgentAllow, AgentMode, AgentRevision, AgentState, Approval, ArchivedResult,
    ContextSummary, Effect, ExchangeKind, HandoffRequest, HandoffStatus, HealthAction, Identity,
    LostLease, Memory, MemoryVector, NewExchange, NewHealth, NewInput, NewMemory, NewMemoryVector,
    Pause, PauseStage, PauseStatus, PlanStep, PlanStepStatus, PlanVersion, Prompt, PromptLabel,
    PromptVersion, Reservation, Role, Run, RunBudget, RunCorrection, RunEvent, RunEventKind,
    RunHealth, RunImport, RunSnapshot, RunStatus, RunTrace, Session, SessionFork, SessionPlan,
    SessionStatus, Timer, TimerStatus, Token, Tool, ToolCall, ToolCallStatus, ToolExchange,
    TraceStatus, Webhook, WebhookState, WebhookStatus, WithheldAnswer,
};
pub use abide_schema::caller::{CallLimits, RateLimit};
pub use abide_schema::id::{forbidden_character, is_invisible};
pub use abide_schema::reducer::DERIVED;
pub use abide_schema::template;
pub use abide_schema::wire::{CallResult, Column, Explanation, OrderTerm, Plan, Shape, TableScan};
pub use abide_schema::{Checksum, Code, Json, Micros, Refusal, Row, Scope, Seq, Value, nearest};
pub use backend::AppliedCall;
#[cfg(feature = "embedded")]
pub use embedded::Config;
pub use error::Error;
pub use explain::Explain;
pub use link::Link;
pub use open_shared::OpenShared;
pub use request::{Batch, Call, Committed, Request, RequestFuture};
pub use rows::Positions;
pub use secret::Secret;
pub use sql::{Position, QueryResult, Sql};
pub use steps::{
    DecidedApproval, DurableSession, HandoffResolution, HandoffStep, MessageStep, OpenSession,
    Resolution, Supervisor, ToolError, ToolStep, Worker,
};
pub use subscription::{Subscribe, Subscription, Update};
