//! The Rust SDK: one API over two backends, an engine in this process and a remote server.
//!
//! It changes when the Rust API changes. It contains no business rules: those are reducers. Each reducer has a struct of
//! its arguments, and [`Abide::call`] takes it: [`arguments`] has those of the built-in reducers, and `#[reducer]`
//! generates them for custom ones.
//!
//! ```
//! use abide_client::Abide;
//! use abide_client::arguments::{
//!     AppendMessage, ClaimHandoff, CreateSession, RequestSupervisorHandoff, ResolveHandoff,
//! };
//! use abide_client::rows::HandoffRequest;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("agents.db");
//! let abide = Abide::open(path)?; // or Abide::connect("http://127.0.0.1:7341").await?
//!
//! let session = abide.call(CreateSession::new("support")).await?.into_inner();
//! abide.call(AppendMessage::new(&session.id, "user", "Where is my parcel?")).await?;
//! abide.call(RequestSupervisorHandoff::new(&session.id, "angry customer", "refunds")).await?;
//!
//! let mut pending = abide
//!     .subscribe_as::<HandoffRequest>("SELECT * FROM handoff_requests WHERE status = 'pending'")
//!     .await?;
//! while let Some(update) = pending.try_next().await? {
//!     for handoff in update.inserts {
//!         if abide.call(ClaimHandoff::new(&handoff.id)).await.is_ok() {
//!             abide.call(ResolveHandoff::new(&handoff.id, "a refund is on its way")).await?;
//!         }
//!     }
//! #   if pending.rows()?.is_empty() { break; }
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
//! **Errors say what the caller can do.** [`Error::Refused`] has a stable [`Code`], and nothing was written; after
//! [`Error::TimedOut`] it is unknown whether a call took effect. An error displays what failed, and `{error:#}` also its
//! reason.
//!
//! # Modules
//!
//! The root has what most programs name. [`rows`] has the types of rows, [`arguments`] those of calls; [`steps`] the
//! durable steps, [`query_plan`] what a live query costs, [`embedded`] the options of an engine in this process, and
//! [`rules`] what programs share with the reducers.
//!
//! In reading order: [`Abide`] · [`OpenShared`] · `request` calls and batches · [`arguments`] the built-in reducers ·
//! [`Secret`] a new token · `query` · `query_plan` · `subscription` and `typed_subscription` · `live_result` the maintained
//! result, in the `order` of SQLite · `row_decode` rows as Rust types · `steps` durable steps, workers and supervisors ·
//! `backend` the interface of both backends, `embedded` and `remote` them.

mod abide;
pub mod arguments;
mod backend;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error;
mod live_result;
mod open_shared;
mod order;
mod query;
pub mod query_plan;
mod remote;
mod request;
mod row_decode;
pub mod rows;
pub mod rules;
mod secret;
pub mod steps;
mod subscription;
mod typed_subscription;

pub use abide::{Abide, Builder, Link};
/// The numbers of `/metrics`, as `Runtime::metrics` of agents returns them.
pub use abide_schema::metrics;
pub use abide_schema::wire::CallResult;
pub use abide_schema::{Code, Json, Micros, Refusal, Row, Scope, Seq, Value};
pub use backend::AppliedCall;
#[cfg(feature = "embedded")]
pub use embedded::Config;
pub use error::{Error, ErrorSource};
pub use live_result::Positions;
pub use open_shared::OpenShared;
pub use query::{Position, Query, QueryResult};
pub use request::{Batch, Call, Committed, Request, RequestFuture};
pub use secret::Secret;
pub use steps::{DurableSession, HandoffResolution, Supervisor, ToolError, Worker};
pub use subscription::{Subscribe, Subscription, Update};
pub use typed_subscription::{SubscribeAs, TypedSubscription, TypedUpdate};
