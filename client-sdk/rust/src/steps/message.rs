//! The step `message`.

use std::future::IntoFuture;

use abide_reducers::arguments::AppendMessage;
use serde::Serialize;

use super::DurableSession;
use crate::Error;
use crate::request::RequestFuture;

impl DurableSession {
    /// Returns a step that appends a message, and returns its number in `agent_state`.
    pub fn message(&self, role: impl Into<String>, content: impl Into<String>) -> MessageStep {
        let arguments = AppendMessage::new(&self.id, role, content.into());
        MessageStep { session: self.clone(), arguments, key: None, wrong: None }
    }
}

/// Appends a message when it is awaited.
#[must_use = "a message is appended when it is awaited"]
#[derive(Debug)]
pub struct MessageStep {
    session: DurableSession,
    arguments: AppendMessage,
    key: Option<String>,
    wrong: Option<Error>,
}

impl MessageStep {
    /// Sets the key of the step: repeated with the same key, the message is appended once.
    pub fn key(mut self, key: impl Into<String>) -> MessageStep {
        self.key = Some(key.into());
        self
    }

    /// Sets other data to store with it.
    pub fn data(mut self, data: impl Serialize) -> MessageStep {
        match super::json("the data of the message", data) {
            Ok(data) => self.arguments.data = Some(data),
            Err(why) => self.wrong = Some(why),
        }
        self
    }

    /// Appends it. Awaiting does the same.
    ///
    /// # Errors
    /// [`Error::Refused`] if the session has ended; otherwise those of [`Request::send`](crate::Request::send).
    pub async fn append(self) -> Result<i64, Error> {
        let MessageStep { session, arguments, key, wrong } = self;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let mut request = session.abide.call(arguments);
        if let Some(key) = key {
            request = request.request_id(session.request_id("message", &key));
        }
        Ok(request.await?.value.id)
    }
}

impl IntoFuture for MessageStep {
    type Output = Result<i64, Error>;
    type IntoFuture = RequestFuture<i64>;

    fn into_future(self) -> RequestFuture<i64> {
        Box::pin(self.append())
    }
}
