//! Where a request goes: an address with places for arguments in its path and query, and nowhere else.

use std::collections::BTreeMap;

use reqwest::Url;
use serde_json::{Map, Value};

use crate::config::{self, ConfigError};
use crate::template::{Template, as_text, percent_encoded};

/// An address with places.
pub(super) struct Address {
    /// Scheme and host, as they were written.
    origin: String,
    path: Template,
    query: Option<Template>,
    /// Further parts of the query, left out with their arguments.
    parts: Vec<(String, Template)>,
}

impl Address {
    pub(super) fn of(
        tool: &str,
        url: &str,
        query: &BTreeMap<String, String>,
        parameters: &Value,
    ) -> Result<Address, ConfigError> {
        let bad = |why: &str| ConfigError::new(tool, format!("its url {url:?} {why}"));
        let scheme = ["http://", "https://"].into_iter().find(|scheme| url.starts_with(scheme));
        let scheme = scheme.ok_or_else(|| bad("begins with neither http:// nor https://"))?;
        let rest = &url[scheme.len()..];
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        if authority.contains(['{', '}', '@', '\\']) {
            return Err(bad("has a placeholder or a user before its path: the host is fixed"));
        }
        let rest = &rest[authority.len()..];
        if rest.contains('#') {
            return Err(bad("has a fragment, which is never sent"));
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
        // A trial, with something in every place, finds what can never be an address.
        let names = address.path.names().chain(address.query.iter().flat_map(Template::names));
        let trial: Map<String, Value> =
            names.map(|name| (name.to_owned(), Value::from("x"))).collect();
        address.fill(&trial).map_err(|why| bad(&format!("is none: {why}")))?;
        Ok(address)
    }

    /// The address of a call.
    ///
    /// # Errors
    /// What is wrong with the arguments.
    pub(super) fn fill(&self, arguments: &Map<String, Value>) -> Result<Url, String> {
        for name in self.path.names() {
            let Some(value) = arguments.get(name).and_then(as_text) else { continue };
            if value.is_empty() {
                return Err(format!("{name} is empty, which cannot be part of a path"));
            }
            // Who decodes a path before resolving it sees these segments, although they are sent percent-encoded.
            if value.split(['/', '\\']).any(is_dots) {
                return Err(OUT_OF_THE_PATH.to_owned());
            }
        }
        let missing = |name: String| format!("{name} is left out and has to be in the address");
        let path = self.path.fill(arguments, percent_encoded).map_err(missing)?;
        // Servers and proxies resolve `.` and `..`, which would change the path. Literals with a
        // place beside them can make one as well: `/.{name}`.
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
        let slashes = |path: &str| path.matches('/').count().max(1);
        if url.origin() != origin.origin() || slashes(url.path()) != slashes(&path) {
            return Err(OUT_OF_THE_PATH.to_owned());
        }
        Ok(url)
    }
}

const OUT_OF_THE_PATH: &str = "the arguments would lead out of the path";

/// Whether a segment is one that is resolved and not sent.
fn is_dots(segment: &str) -> bool {
    matches!(segment, "." | "..")
}

/// Names and values as a query, or as a form.
pub(super) fn query_of<'a>(parts: impl Iterator<Item = (&'a str, String)>) -> String {
    let parts: Vec<String> = parts
        .map(|(name, value)| format!("{}={}", percent_encoded(name), percent_encoded(&value)))
        .collect();
    parts.join("&")
}
