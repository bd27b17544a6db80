//! The step `message`.

use std::future::IntoFuture;

use abide_reducers::arguments::AppendMessage;
use serde::Serialize;

use super::DurableSession;
use crate::Error;
use crate::request::RequestFuture;

impl DurableSession {
    /// Returns a step that appends a message to the session. Its result is the message's id in `agent_state`.
    pub fn message(&self, role: impl Into<String>, content: impl Into<String>) -> MessageStep {
        let arguments = AppendMessage::new(&self.id, role, content.into());
        MessageStep { session: self.clone(), arguments, key: None, encode_error: None }
    }
}

/// Appends a message when it is awaited.
#[must_use = "a message is appended when it is awaited"]
#[derive(Debug)]
pub struct MessageStep {
    session: DurableSession,
    arguments: AppendMessage,
    key: Option<String>,
    /// Why `data` cannot be sent. It is returned when the step is awaited.
    encode_error: Option<Error>,
}

impl MessageStep {
    /// Sets the key of the step, unique among the messages of its session. A repetition of the step with the same key
    /// appends nothing, and returns the id of the first message. Without a key every repetition appends a message.
    pub fn key(mut self, key: impl Into<String>) -> MessageStep {
        self.key = Some(key.into());
        self
    }

    /// Sets data that is stored with the message as JSON (the column `data`), such as names or usage.
    pub fn data(mut self, data: impl Serialize) -> MessageStep {
        match super::json("the data of the message", data) {
            Ok(data) => self.arguments.data = Some(data),
            Err(why) => self.encode_error = Some(why),
        }
        self
    }

    /// Appends the message. Awaiting the step does the same.
    ///
    /// # Errors
    /// [`Error::Encode`] if the data is not JSON; [`Error::Refused`] if the session has ended; otherwise those of
    /// [`Request::send`](crate::Request::send).
    pub async fn append(self) -> Result<i64, Error> {
        let MessageStep { session, arguments, key, encode_error } = self;
        if let Some(error) = encode_error {
            return Err(error);
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
