//! The trait: who answers requests.

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

use crate::{ModelAnswer, ModelError, ModelErrorKind, ModelEvent, ModelRequest};

/// What happens while a model answers. The first error ends it.
pub type ModelStream = BoxStream<'static, Result<ModelEvent, ModelError>>;

/// Who answers requests.
pub trait ModelProvider: Send + Sync + 'static {
    /// The name that configurations and answers call it by.
    fn id(&self) -> &str;

    /// Asks. Nothing is sent before the stream is first polled, and dropping it aborts the request.
    /// It ends with exactly one [`ModelEvent::Answer`] or with exactly one error.
    fn stream(&self, request: ModelRequest) -> ModelStream;
}

/// The answer that a stream ends with, for who does not care for its pieces.
///
/// # Errors
/// The stream's own.
pub async fn answer_of(mut stream: ModelStream) -> Result<ModelAnswer, ModelError> {
    while let Some(event) = stream.next().await {
        if let ModelEvent::Answer(answer) = event? {
            return Ok(answer);
        }
    }
    Err(ModelError::new(ModelErrorKind::Broken, "the stream ended without an answer"))
}
