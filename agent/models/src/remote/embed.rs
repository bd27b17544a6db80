//! Embeddings over HTTP: the `/embeddings` API of OpenAI, which many servers have.

use reqwest::Response;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{FIRST_SETTING, Shared, cut_off, stalled, unreachable};
use crate::{EMBEDDED_TEXTS, EmbeddingRequest, Embeddings, ModelError, ModelErrorKind, Protocol};

/// Maximum size of an answer. A number takes about twelve bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

impl Shared {
    /// Sends a request and reads the answer.
    pub(super) async fn embed(&self, request: &EmbeddingRequest) -> Result<Embeddings, ModelError> {
        let texts = request.texts.len();
        let has_api = matches!(
            self.protocol,
            Protocol::OpenAi | Protocol::OpenAiResponses | Protocol::OpenAiCompatible
        );
        if !has_api {
            let message = format!(
                "provider `{}` of kind `{}` makes no embeddings: use one of kind \
                 `openai_compatible`",
                self.id,
                self.protocol.kind()
            );
            return Err(ModelError::new(ModelErrorKind::BadRequest, message));
        }
        if texts == 0 || texts > EMBEDDED_TEXTS {
            let message =
                format!("the request has {texts} texts; it must have 1 to {EMBEDDED_TEXTS}");
            return Err(ModelError::new(ModelErrorKind::BadRequest, message));
        }
        let body = json!({"model": request.model, "input": request.texts,
            "encoding_format": "float"});
        let mut url = self.base_url.clone();
        url.path_segments_mut()
            .map_err(|()| {
                let message = format!("the base URL of provider `{}` cannot have a path", self.id);
                ModelError::new(ModelErrorKind::BadRequest, message)
            })?
            .pop_if_empty()
            .push("embeddings");
        let first = self.stall_timeouts.first;
        let sent = self.client.post(url).headers(self.headers.clone()).body(body.to_string());
        let response =
            timeout(first, sent.send()).await.map_err(|_| stalled(first, FIRST_SETTING))?;
        let response = response.map_err(unreachable)?;
        if !response.status().is_success() {
            return Err(self.response_error(response).await);
        }
        let body = timeout(first, read_body(response))
            .await
            .map_err(|_| stalled(first, FIRST_SETTING))??;
        let answer: Value = serde_json::from_slice(&body)
            .map_err(|_| ModelError::invalid_response("the provider sent no JSON"))?;
        Embeddings::from_answer(&answer, texts)
    }
}

/// Returns the whole body, within the limit.
async fn read_body(mut response: Response) -> Result<Vec<u8>, ModelError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(cut_off)? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            let message = format!("the embeddings exceed {ANSWER_BYTES_MAX} bytes");
            return Err(ModelError::invalid_response(message));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
