//! The step `handoff`: a supervisor takes the session over and answers.

use std::future::IntoFuture;
use std::time::Duration;

use abide_reducers::HandoffStatus;
use abide_reducers::arguments::RequestSupervisorHandoff;
use serde::{Deserialize, Serialize};

use super::DurableSession;
use super::stored_row::LiveRow;
use crate::Error;
use crate::request::RequestFuture;

impl DurableSession {
    /// Returns a step that hands the session off to a supervisor with this capability, and waits for the answer.
    pub fn handoff(
        &self,
        reason: impl Into<String>,
        capability: impl Into<String>,
        key: &str,
    ) -> HandoffStep {
        let request_id = self.request_id("handoff", key);
        let arguments = RequestSupervisorHandoff::new(&self.id, reason, capability);
        HandoffStep { session: self.clone(), arguments, request_id, encode_error: None }
    }
}

/// Hands a session off when it is awaited.
#[must_use = "a session is handed off when it is awaited"]
#[derive(Debug)]
pub struct HandoffStep {
    session: DurableSession,
    arguments: RequestSupervisorHandoff,
    request_id: String,
    /// Why `data` cannot be sent. It is returned when the step is awaited.
    encode_error: Option<Error>,
}

/// The answer of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Resolution {
    /// How it ended: resolved, rejected, expired or cancelled.
    pub status: HandoffStatus,
    /// The answer of the supervisor.
    #[serde(rename = "resolution")]
    pub text: Option<String>,
}

impl HandoffStep {
    /// Sets data for the supervisor, stored with the handoff as JSON.
    pub fn data(mut self, data: impl Serialize) -> HandoffStep {
        match super::json("the data of the handoff", data) {
            Ok(data) => self.arguments.data = Some(data),
            Err(why) => self.encode_error = Some(why),
        }
        self
    }

    /// Continues without an answer if it is unclaimed after this time.
    pub fn expires_after(mut self, time: Duration) -> HandoffStep {
        self.arguments.expires_after_ms = Some(super::lease::millis(time));
        self
    }

    /// Hands it off and waits. Awaiting does the same.
    ///
    /// # Errors
    /// [`Error::Refused`] if the session has ended; [`Error::Closed`] if the client was closed while it waited.
    pub async fn answer(self) -> Result<Resolution, Error> {
        let HandoffStep { session, arguments, request_id, encode_error } = self;
        if let Some(error) = encode_error {
            return Err(error);
        }
        let handoff = session.abide.call(arguments).request_id(request_id).await?.into_inner();
        let sql = "SELECT status, resolution FROM handoff_requests WHERE id = :id";
        let waits = [HandoffStatus::Pending, HandoffStatus::Claimed];
        let row = LiveRow::subscribe(&session.abide, sql, &handoff.id).await?;
        row.wait_until(|row: &Resolution| !waits.contains(&row.status)).await
    }
}

impl IntoFuture for HandoffStep {
    type Output = Result<Resolution, Error>;
    type IntoFuture = RequestFuture<Resolution>;

    fn into_future(self) -> RequestFuture<Resolution> {
        Box::pin(self.answer())
    }
}
