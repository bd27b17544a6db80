//! Bounded requests to public addresses. Each redirect is checked as the first address is.

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Client, Method, Request, Response, StatusCode, Url};

use crate::config::ConfigError;
use crate::media_type;
use crate::public_address::{PermittedHosts, failure_of_chosen};

/// Maximum number of redirects.
const REDIRECTS: usize = 5;

/// A client for public addresses.
#[derive(Clone, Debug)]
pub(super) struct Web {
    client: Client,
    hosts: PermittedHosts,
    max_bytes: usize,
}

/// A complete answer.
#[derive(Debug)]
pub(super) struct Page {
    /// The address after redirects.
    pub(super) url: Url,
    pub(super) status: StatusCode,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

impl Web {
    /// Creates a client without a time limit of its own: that of the tool is the only one.
    pub(super) fn new(
        tool: &str,
        hosts: PermittedHosts,
        max_bytes: usize,
    ) -> Result<Web, ConfigError> {
        let client = hosts.client().build();
        let client = client.map_err(|why| ConfigError::new(tool, why.to_string()))?;
        Ok(Web { client, hosts, max_bytes })
    }

    /// Reads a page, and follows redirects.
    ///
    /// # Errors
    /// One sentence for the model.
    pub(super) async fn get(&self, url: Url, headers: HeaderMap) -> Result<Page, String> {
        let mut url = url;
        for hop in 0..=REDIRECTS {
            let mut request = Request::new(Method::GET, url.clone());
            // Headers may contain a key of the first host.
            if hop == 0 {
                *request.headers_mut() = headers.clone();
            }
            request.headers_mut().entry(ACCEPT).or_insert(HeaderValue::from_static(READABLE));
            let response = self.answer(request).await?;
            let to =
                response.headers().get(LOCATION).filter(|_| response.status().is_redirection());
            let Some(to) = to else { return self.page(url, response).await };
            let to = to.to_str().map_err(|_| "the server redirects to an invalid URL")?;
            let before = url.clone();
            url =
                before.join(to).map_err(|why| format!("the server redirects to {to:?}: {why}"))?;
            if before.scheme() == "https" && url.scheme() != "https" {
                return Err(format!("{before} redirects to a URL without TLS"));
            }
        }
        Err(format!("more than {REDIRECTS} redirects"))
    }

    /// Sends a request as JSON, without redirects.
    pub(super) async fn post(
        &self,
        url: Url,
        headers: HeaderMap,
        body: String,
    ) -> Result<Page, String> {
        let mut request = Request::new(Method::POST, url.clone());
        *request.headers_mut() = headers;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *request.body_mut() = Some(body.into());
        let response = self.answer(request).await?;
        self.page(url, response).await
    }

    async fn answer(&self, request: Request) -> Result<Response, String> {
        self.hosts.check(request.url())?;
        let host = request.url().host_str().unwrap_or_default().to_owned();
        self.client.execute(request).await.map_err(|error| failure_of_chosen(&host, &error))
    }

    async fn page(&self, url: Url, mut response: Response) -> Result<Page, String> {
        let status = response.status();
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        let host = url.host_str().unwrap_or_default().to_owned();
        let mut body = Vec::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| failure_of_chosen(&host, &error))?
        {
            if body.len() + chunk.len() > self.max_bytes {
                return Err(format!(
                    "the response of {host} has more than {} bytes",
                    self.max_bytes
                ));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Page { url, status, content_type, body })
    }
}

const READABLE: &str = "text/html, text/plain;q=0.9, application/json;q=0.9, */*;q=0.5";

impl Page {
    /// Returns the text of the body.
    pub(super) fn text(&self) -> String {
        let lower = self.content_type.to_ascii_lowercase();
        let is_latin = ["iso-8859-1", "latin1", "windows-1252"].iter().any(|it| lower.contains(it));
        match std::str::from_utf8(&self.body) {
            Err(_) if is_latin => self.body.iter().map(|byte| char::from(*byte)).collect(),
            _ => String::from_utf8_lossy(&self.body).into_owned(),
        }
    }

    pub(super) fn is_html(&self) -> bool {
        let essence = self.essence();
        essence == "text/html" || essence == "application/xhtml+xml"
    }

    pub(super) fn is_text(&self) -> bool {
        let essence = self.essence();
        let known = ["application/json", "application/xml", "application/javascript", ""];
        essence.starts_with("text/")
            || known.contains(&essence.as_str())
            || essence.ends_with("+json")
            || essence.ends_with("+xml")
    }

    fn essence(&self) -> String {
        media_type::essence(&self.content_type)
    }

    /// Returns the body as JSON, if the status is a success.
    pub(super) fn json(&self) -> Result<serde_json::Value, String> {
        let host = self.url.host_str().unwrap_or_default();
        if !self.status.is_success() {
            return Err(format!("{host} responded with HTTP {}", self.status));
        }
        serde_json::from_slice(&self.body).map_err(|_| format!("{host} did not respond with JSON"))
    }
}
