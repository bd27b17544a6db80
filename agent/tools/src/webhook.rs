//! Sends requests to webhooks: to addresses that clients have chosen, so only to public ones and those that the operator permits.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url};

use crate::public_address::{PermittedHosts, failure_of_chosen};

/// How long one request may take. A receiver that works longer answers first.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client for webhooks.
#[derive(Clone, Debug)]
pub struct WebhookClient {
    client: Client,
    hosts: PermittedHosts,
}

impl WebhookClient {
    /// Creates a client that connects to public addresses, and to these hosts (`host` or `host:port`).
    ///
    /// # Errors
    /// Why it cannot be built, in one sentence.
    pub fn new(allow_private: impl IntoIterator<Item = String>) -> Result<WebhookClient, String> {
        let hosts = PermittedHosts::new(allow_private);
        let client = hosts.client().timeout(TIMEOUT).build().map_err(|why| why.to_string())?;
        Ok(WebhookClient { client, hosts })
    }

    /// Checks the parts of an address that need no resolution of names.
    ///
    /// # Errors
    /// Why it is not used, in one sentence.
    pub fn check(&self, url: &str) -> Result<(), String> {
        self.parse(url).map(drop)
    }

    fn parse(&self, url: &str) -> Result<Url, String> {
        let url = Url::parse(url).map_err(|why| format!("the URL is invalid: {why}"))?;
        self.hosts.check(&url)?;
        Ok(url)
    }

    /// Sends a request, and returns the status of the response, whose body is not read. A redirect is not followed: its status is
    /// the result.
    ///
    /// # Errors
    /// Why there is no response, in one sentence without the address.
    pub async fn post(
        &self,
        url: &str,
        headers: Vec<(&'static str, String)>,
        body: String,
    ) -> Result<u16, String> {
        // The host may not have been checked under the present configuration.
        let url = self.parse(url)?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            let value = HeaderValue::try_from(value)
                .map_err(|_| format!("the header {name} has characters that are not allowed"))?;
            all.insert(HeaderName::from_static(name), value);
        }
        let sent = self.client.post(url).headers(all).body(body).send().await;
        sent.map(|response| response.status().as_u16())
            .map_err(|why| failure_of_chosen(&host, &why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permitted_addresses_are_accepted() {
        let client = WebhookClient::new(["127.0.0.1:9".to_owned()]).expect("it can be built");
        for (url, expected) in [
            ("http://127.0.0.1:9/x", None),
            ("https://example.com/x", None),
            (
                "http://169.254.169.254/latest",
                Some(
                    "169.254.169.254 is not a public address, and only public addresses can be used",
                ),
            ),
            ("gopher://example.com/", Some("gopher: only http and https can be used")),
            ("https://ann@example.com/", Some("a URL with a user name is not used")),
            ("nowhere", Some("the URL is invalid: relative URL without a base")),
        ] {
            assert_eq!(client.check(url).err().as_deref(), expected, "{url}");
        }
    }

    /// A name that resolves to a private address is refused when the connection is made, even if it has resolved to another
    /// one before.
    #[tokio::test]
    async fn a_name_with_a_private_address_is_refused() {
        let client = WebhookClient::new([]).expect("it can be built");
        assert_eq!(client.check("http://localhost:9/"), Ok(()), "names are resolved later");
        let sent = client.post("http://localhost:9/", Vec::new(), String::new()).await;
        let why = "localhost is not a public address, and only public addresses can be used";
        assert_eq!(sent, Err(why.to_owned()));
        // A name that does not exist has the same text. The system does not look up so long a part.
        let name = "x".repeat(64);
        let sent = client.post(&format!("http://{name}:9/"), Vec::new(), String::new()).await;
        assert_eq!(sent, Err(why.replace("localhost", &name)));
    }
}
