//! The HTTP client of a server whose requests have a token, if the server asks for one. Each request is repeated at most once with
//! another token, and at most once with more scopes.

use std::io;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use reqwest::Client;
use rmcp::ServiceError;
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};

use super::post::{Events, Headers, HttpError, Post, decodable};
use crate::oauth::{Authorizer, Challenge, OAuthError};

/// The size of a message if the configuration has none.
const MESSAGE_BYTES: usize = 16 << 20;

/// The beginning of the error for a 401 without a challenge; the SDK has no variant for it.
const UNAUTHORIZED: &str = "HTTP 401";

/// Why a request with the configured headers was rejected.
const REJECTED: &str = "the server rejects the configured headers (HTTP 401)";

/// An HTTP client with the tokens of its server.
#[derive(Clone)]
pub(super) struct AuthorizedClient {
    http: Client,
    /// `None`: the configured headers authenticate.
    authorizer: Option<Arc<Authorizer>>,
}

impl AuthorizedClient {
    pub(super) fn new(http: Client, authorizer: Option<Authorizer>) -> AuthorizedClient {
        AuthorizedClient { http, authorizer: authorizer.map(Arc::new) }
    }

    async fn send<T, F: Future<Output = Result<T, HttpError>>>(
        &self,
        request: impl Fn(Option<String>) -> F,
    ) -> Result<T, HttpError> {
        let Some(authorizer) = &self.authorizer else {
            return request(None).await.map_err(|error| match challenge_of(&error) {
                Some(_) => into_http_error(OAuthError::Refused(REJECTED.to_owned())),
                None => error,
            });
        };
        let mut has_renewed = false;
        let mut has_stepped_up = false;
        let of = Arc::clone(authorizer);
        let mut token = detached(async move { of.token().await }).await?;
        loop {
            let of = Arc::clone(authorizer);
            let sent = token.clone();
            let answered = request(token.clone()).await;
            let challenge = answered.as_ref().err().and_then(challenge_of);
            token = Some(match (answered, challenge) {
                (Err(_), Some(challenge)) => {
                    if std::mem::replace(&mut has_renewed, true) {
                        return Err(into_http_error(authorizer.rejected()));
                    }
                    detached(async move { of.renewed(sent.as_deref(), challenge).await }).await?
                }
                (Err(StreamableHttpError::InsufficientScope(error)), None) => {
                    let challenge = Challenge::parse(&error.www_authenticate_header);
                    if !challenge.is_insufficient_scope {
                        return Err(StreamableHttpError::InsufficientScope(error));
                    }
                    if std::mem::replace(&mut has_stepped_up, true) {
                        return Err(into_http_error(authorizer.rejected()));
                    }
                    detached(async move { of.stepped_up(sent.as_deref(), challenge).await }).await?
                }
                (other, _) => return other,
            });
        }
    }
}

/// Returns the challenge of a server that has rejected the credentials of a request (HTTP 401); empty if it has sent
/// none. The server has not processed the request.
fn challenge_of(error: &HttpError) -> Option<Challenge> {
    match error {
        StreamableHttpError::AuthRequired(error) => {
            Some(Challenge::parse(&error.www_authenticate_header))
        }
        StreamableHttpError::UnexpectedServerResponse(why) if why.starts_with(UNAUTHORIZED) => {
            Some(Challenge::default())
        }
        _ => None,
    }
}

/// In a separate task, so that the end of one call does not interrupt a renewal: the authorization server may have replaced the
/// refresh token already.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, OAuthError>> + Send + 'static,
) -> Result<T, HttpError> {
    // Boxed, so that the code of the task exists once and not for each caller.
    let work: BoxFuture<'static, Result<T, OAuthError>> = Box::pin(work);
    let done = tokio::spawn(work).await;
    let result = match done {
        Ok(result) => result,
        Err(_) => Err(OAuthError::Unavailable("its task panicked".to_owned())),
    };
    result.map_err(into_http_error)
}

/// The callers find the error again: [`OAuthError::among_causes`].
fn into_http_error(error: OAuthError) -> HttpError {
    StreamableHttpError::Io(io::Error::other(error))
}

/// Why there is no token for a request, if that is the reason of the error.
pub(super) fn oauth_cause(error: &ServiceError) -> Option<&OAuthError> {
    match error {
        // This error does not report its cause through `source`.
        ServiceError::TransportSend(error) => OAuthError::among_causes(error),
        other => OAuthError::among_causes(other),
    }
}

impl StreamableHttpClient for AuthorizedClient {
    type Error = reqwest::Error;

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<(), HttpError> {
        self.send(|token| {
            self.http.delete_session(uri.clone(), session_id.clone(), token, headers.clone())
        })
        .await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<Events, HttpError> {
        self.send(|token| {
            let session_id = session_id.clone();
            let last_event_id = last_event_id.clone();
            self.http.get_stream(uri.clone(), session_id, last_event_id, token, headers.clone())
        })
        .await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        headers: Headers,
        max: usize,
    ) -> Result<Events, HttpError> {
        let request = |token| {
            let session_id = session_id.clone();
            let last_event_id = last_event_id.clone();
            let uri = uri.clone();
            let headers = headers.clone();
            self.http.get_stream_with_max_sse_event_size(
                uri,
                session_id,
                last_event_id,
                token,
                headers,
                max,
            )
        };
        self.send(request).await.map(decodable)
    }

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        self.post_message_with_max_sse_event_size(
            uri,
            message,
            session_id,
            token,
            headers,
            MESSAGE_BYTES,
        )
        .await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        headers: Headers,
        max: usize,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let post = Post {
            uri: &uri,
            message: &message,
            session_id: session_id.as_deref(),
            headers: &headers,
            max,
        };
        self.send(|token| post.send(&self.http, token)).await
    }
}
