//! Durable steps in your own code: a step that has run returns its recorded outcome when it is repeated.
//!
//! Each step of a [`DurableSession`] has a key, unique in its session. A program that crashed runs from the beginning
//! again, and its steps return what they returned before, without a second effect. The ids of calls, timers and requests
//! are derived from session and key in the same way in all SDKs.
//!
//! A [`Worker`] and a [`Supervisor`] serve the calls and handoffs of other programs.
//!
//! `tool` one call · `message` · `approval` · `handoff` · `timer` · `worker` and `supervisor` · `lease` runs work with
//! heartbeats.

mod approval;
mod handoff;
mod lease;
mod message;
mod outcome;
mod stored_row;
mod supervisor;
mod timer;
mod tool;
mod worker;

use std::future::IntoFuture;

use abide_reducers::arguments::{CompleteSession, OpenSession as OpenSessionArguments};
use serde::Serialize;
use serde_json::Value as JsonValue;

use crate::request::RequestFuture;
use crate::{Abide, Error};

pub use approval::DecidedApproval;
pub use handoff::{HandoffStep, Resolution};
pub use message::MessageStep;
pub use outcome::ToolError;
pub use supervisor::{HandoffResolution, Supervisor};
pub use tool::ToolStep;
pub use worker::Worker;

use stored_row::find_stored_id;

impl Abide {
    /// Returns a session for durable steps, which is found or created when it is awaited.
    ///
    /// ```
    /// use abide_client::Abide;
    /// use abide_client::rows::Effect;
    /// use serde_json::{Value, json};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("agents.db");
    /// let abide = Abide::open(path)?;
    /// let session = abide.session("support").id("order-8812").await?;
    /// session.message("user", "Please refund order 8812.").key("request").await?;
    /// let receipt: String = session
    ///     .tool("refund", json!({"order": 8812}), "refund")
    ///     .effect(Effect::AtMostOnce)
    ///     .run(|args: Value| async move { Ok(format!("receipt of {}", args["order"])) })
    ///     .await?;
    /// assert_eq!(receipt, "receipt of 8812");
    /// # let again: String = session.tool("refund", json!({"order": 8812}), "refund")
    /// #     .run(|_: Value| async move { unreachable!("it has run") }).await?;
    /// # assert_eq!(again, receipt);
    /// # abide.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn session(&self, agent: impl Into<String>) -> OpenSession {
        OpenSession { abide: self.clone(), arguments: OpenSessionArguments::new(agent) }
    }

    /// Returns the session with this id; `None` if there is none that the caller can see. A caller with a scope can give
    /// the id that it chose, or the stored id, which begins with [`Abide::namespace`].
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the server does not answer.
    pub async fn find_session(&self, id: &str) -> Result<Option<DurableSession>, Error> {
        let found = find_stored_id(self, "SELECT id FROM sessions WHERE id = :id", id).await?;
        Ok(found.map(|id| DurableSession { abide: self.clone(), id }))
    }
}

/// Finds or creates a session when it is awaited.
#[must_use = "a session is opened when it is awaited"]
#[derive(Debug)]
pub struct OpenSession {
    abide: Abide,
    arguments: OpenSessionArguments,
}

impl OpenSession {
    /// Sets its id. A session with this id is used if it exists. Default: a new session with a generated id.
    pub fn id(mut self, id: impl Into<String>) -> OpenSession {
        self.arguments.id = Some(id.into());
        self
    }

    /// Sets the title of a new session.
    pub fn title(mut self, title: impl Into<String>) -> OpenSession {
        self.arguments.title = Some(title.into());
        self
    }

    /// Opens it. Awaiting does the same.
    ///
    /// # Errors
    /// [`Error::Refused`] if the caller may not create or see the session; otherwise those of
    /// [`Request::send`](crate::Request::send).
    pub async fn open(self) -> Result<DurableSession, Error> {
        let OpenSession { abide, arguments } = self;
        let id = abide.call(arguments).await?.into_inner().id;
        Ok(DurableSession { abide, id })
    }
}

impl IntoFuture for OpenSession {
    type Output = Result<DurableSession, Error>;
    type IntoFuture = RequestFuture<DurableSession>;

    fn into_future(self) -> RequestFuture<DurableSession> {
        Box::pin(self.open())
    }
}

/// A session, with durable steps. Clones share it.
#[derive(Clone, Debug)]
pub struct DurableSession {
    abide: Abide,
    id: String,
}

impl DurableSession {
    /// Returns its stored id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Completes the session.
    ///
    /// # Errors
    /// [`Error::Refused`] if the session has ended; otherwise those of [`Request::send`](crate::Request::send).
    pub async fn complete(&self, result: impl Serialize) -> Result<(), Error> {
        let result = json("the result", result)?;
        let complete = CompleteSession { result: Some(result), ..CompleteSession::new(&self.id) };
        self.abide.call(complete).await.map(drop)
    }

    /// The id of the tool call, or of the timer, of a step.
    fn call_id(&self, key: &str) -> String {
        format!("{}/{key}", self.id)
    }

    /// The request id of a step that is one call.
    fn request_id(&self, kind: &str, key: &str) -> String {
        format!("{kind}/{}/{key}", self.id)
    }
}

fn json(what: &str, value: impl Serialize) -> Result<JsonValue, Error> {
    serde_json::to_value(value).map_err(|why| Error::encode(what, why))
}
