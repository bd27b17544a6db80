//! Interface to what sends requests to webhooks. The host decides which addresses it connects to, because webhooks are set by
//! clients. Pass it to [`serve_with`](crate::serve_with).

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

/// A request to a webhook: POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookRequest {
    /// The address.
    pub url: String,
    /// Headers, also with secrets of the receiver.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: String,
}

/// The status of the response.
pub type WebhookFuture<'a> = Pin<Box<dyn Future<Output = Result<u16, String>> + Send + 'a>>;

/// Sends requests to webhooks.
pub trait WebhookSender: Debug + Send + Sync {
    /// Checks an address before it is stored.
    ///
    /// # Errors
    /// Why no request is sent to it, in one sentence.
    fn check(&self, url: &str) -> Result<(), String>;

    /// Sends a request. It connects to permitted addresses only, even after the resolution of a name, follows no redirects, and
    /// ends within a limited time.
    ///
    /// # Errors
    /// Why there is no response, in one sentence without the address.
    fn send(&self, request: WebhookRequest) -> WebhookFuture<'_>;
}
