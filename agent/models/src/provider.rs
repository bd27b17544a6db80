//! The trait of model providers.

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::{
    EmbeddingRequest, Embeddings, ModelError, ModelErrorKind, ModelEvent, ModelRequest,
    ModelResponse, StructuredOutput,
};

/// The events of a model's answer. The first error ends the stream.
pub type ModelStream = BoxStream<'static, Result<ModelEvent, ModelError>>;

/// A provider of models.
pub trait ModelProvider: Send + Sync + 'static {
    /// Returns the id that configurations and answers use.
    fn id(&self) -> &str;

    /// Returns how its models give structured answers.
    fn structured_output(&self) -> StructuredOutput {
        StructuredOutput::Native
    }

    /// Sends a request. Nothing is sent before the stream is first polled, and dropping it aborts the request. It
    /// ends with exactly one [`ModelEvent::Answer`] or with exactly one error.
    fn stream(&self, request: ModelRequest) -> ModelStream;

    /// Makes vectors of texts. The default is for providers that cannot.
    fn embed(
        &self,
        request: EmbeddingRequest,
    ) -> BoxFuture<'static, Result<Embeddings, ModelError>> {
        drop(request);
        let message = format!("provider `{}` makes no embeddings", self.id());
        let error = ModelError::new(ModelErrorKind::BadRequest, message);
        Box::pin(async move { Err(error) })
    }
}

/// Reads a stream to its end and returns the answer, for callers that do not need the chunks.
///
/// # Errors
/// The error of the stream.
pub async fn answer_of(mut stream: ModelStream) -> Result<ModelResponse, ModelError> {
    while let Some(event) = stream.next().await {
        if let ModelEvent::Answer(answer) = event? {
            return Ok(answer);
        }
    }
    Err(ModelError::new(ModelErrorKind::InvalidResponse, "the stream ended without an answer"))
}
