//! The URL of a request, with placeholders only in path and query.

use std::collections::BTreeMap;

use reqwest::Url;
use serde_json::{Map, Value};

use crate::config::{self, ConfigError};
use crate::template::{Template, as_text, percent_encoded};

/// A URL with placeholders.
pub(super) struct Address {
    /// Scheme and host, as written in the definition.
    origin: String,
    path: Template,
    query: Option<Template>,
    /// Additional query parameters, omitted if their argument is absent.
    parts: Vec<(String, Template)>,
}

impl Address {
    pub(super) fn parse(
        tool: &str,
        url: &str,
        query: &BTreeMap<String, String>,
        parameters: &Value,
    ) -> Result<Address, ConfigError> {
        let bad = |why: &str| ConfigError::new(tool, format!("url {url:?} {why}"));
        let scheme = ["http://", "https://"].into_iter().find(|scheme| url.starts_with(scheme));
        let scheme = scheme.ok_or_else(|| bad("must begin with http:// or https://"))?;
        let rest = &url[scheme.len()..];
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        if authority.contains(['{', '}', '@', '\\']) {
            return Err(bad(
                "has a placeholder or a user name before its path; the host must be fixed",
            ));
        }
        let rest = &rest[authority.len()..];
        if rest.contains('#') {
            return Err(bad("has a fragment, which cannot be sent"));
        }
        let (path, in_url) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        let read = |text: &str| config::template(tool, text, parameters);
        let parts = query.iter().map(|(name, text)| Ok((name.clone(), read(text)?)));
        let address = Address {
            origin: format!("{scheme}{authority}"),
            path: read(path)?,
            query: in_url.map(read).transpose()?,
            parts: parts.collect::<Result<_, ConfigError>>()?,
        };
        // Fill in sample values to find URLs that can never be valid.
        let names = address.path.names().chain(address.query.iter().flat_map(Template::names));
        let trial: Map<String, Value> =
            names.map(|name| (name.to_owned(), Value::from("x"))).collect();
        address.fill(&trial).map_err(|why| bad(&format!("is invalid: {why}")))?;
        Ok(address)
    }

    /// Returns the URL of a call.
    ///
    /// # Errors
    /// The arguments are invalid.
    pub(super) fn fill(&self, arguments: &Map<String, Value>) -> Result<Url, String> {
        for name in self.path.names() {
            let Some(value) = arguments.get(name).and_then(as_text) else { continue };
            if value.is_empty() {
                return Err(format!("{name} is empty, which is not allowed in a path"));
            }
            // These segments are sent percent-encoded. A server that decodes a path before resolving it would still
            // see them.
            if value.split(['/', '\\']).any(is_dots) {
                return Err(OUT_OF_THE_PATH.to_owned());
            }
        }
        let missing = |name: String| format!("{name} is missing; the url needs it");
        let path = self.path.fill(arguments, percent_encoded).map_err(missing)?;
        // Servers and proxies resolve `.` and `..`, which would change the path. A literal next to a placeholder
        // can also produce them: `/.{name}`.
        if path.split('/').any(is_dots) {
            return Err(OUT_OF_THE_PATH.to_owned());
        }
        let mut text = format!("{}{path}", self.origin);
        let mut queries = Vec::new();
        if let Some(query) = &self.query {
            queries.push(query.fill(arguments, percent_encoded).map_err(missing)?);
        }
        let parts = self.parts.iter().filter_map(|(name, template)| {
            Some((name.as_str(), template.fill(arguments, str::to_owned).ok()?))
        });
        queries.push(query_of(parts));
        queries.retain(|query| !query.is_empty());
        if !queries.is_empty() {
            text = format!("{text}?{}", queries.join("&"));
        }
        let url = Url::parse(&text).map_err(|why| why.to_string())?;
        let origin = Url::parse(&self.origin).map_err(|why| why.to_string())?;
        if url.origin() != origin.origin() || count_slashes(url.path()) != count_slashes(&path) {
            return Err(OUT_OF_THE_PATH.to_owned());
        }
        Ok(url)
    }
}

const OUT_OF_THE_PATH: &str = "the arguments would change the structure of the path";

/// Returns the number of slashes of a path; an empty path counts as `/`.
fn count_slashes(path: &str) -> usize {
    path.matches('/').count().max(1)
}

/// Returns `true` if a segment is `.` or `..`, also before parameters: some servers remove `;` and what follows it
/// first.
fn is_dots(segment: &str) -> bool {
    let end = segment.find(';').or_else(|| segment.find("%3B")).unwrap_or(segment.len());
    matches!(&segment[..end], "." | "..")
}

/// Encodes names and values as a query or a form.
pub(super) fn query_of<'a>(parts: impl Iterator<Item = (&'a str, String)>) -> String {
    let parts: Vec<String> = parts
        .map(|(name, value)| format!("{}={}", percent_encoded(name), percent_encoded(&value)))
        .collect();
    parts.join("&")
}
