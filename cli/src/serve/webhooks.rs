//! Sends the requests of the server to webhooks, with the client of the tools.

use abide_protocols::{WebhookFuture, WebhookRequest, WebhookSender};
use abide_schema::{Code, Refusal};
use abide_tools::WebhookClient;

/// The sender of `abide serve`.
#[derive(Debug)]
pub(super) struct Webhooks(WebhookClient);

impl Webhooks {
    /// A sender that may also connect to these hosts.
    pub(super) fn new(allow_private: &[String]) -> Result<Webhooks, Refusal> {
        WebhookClient::new(allow_private.iter().cloned()).map(Webhooks).map_err(|why| {
            // A minimal image without root certificates is the usual reason, which the error does not name.
            let detail = format!("no client for push notifications can be created: {why}");
            Refusal::new(Code::Internal, detail).hint(
                "install the root certificates of the system (the package ca-certificates), \
                     or name a file with them in SSL_CERT_FILE",
            )
        })
    }
}

impl WebhookSender for Webhooks {
    fn check(&self, url: &str) -> Result<(), String> {
        self.0.check(url)
    }

    fn send(&self, request: WebhookRequest) -> WebhookFuture<'_> {
        let WebhookRequest { url, headers, body } = request;
        Box::pin(async move { self.0.post(&url, headers, body).await })
    }
}
