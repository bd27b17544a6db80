//! An HTTP request as a tool.
//!
//! The definition determines the target: arguments fill placeholders in path, query and body, with the proper
//! escaping. They cannot change the scheme, the host or the structure of the path. Each request has the call id as
//! its idempotency key, so a server that supports such keys does not repeat a request.

mod address;
mod call;
mod signature;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use abide_client::arguments::{ApprovalPolicy, Retry, ToolLimits};
use abide_client::rows::Effect;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Method};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::{self, ConfigError};
use crate::environment::Setting;
use crate::http_client::http_client;
use crate::outcome::{Failure, ToolOutcome};
use crate::template::Template;
use crate::tool::{Invocation, Tool, ToolDeclaration};
use abide_sandbox::Environment;
use address::Address;
use signature::ContextKey;

/// The definition of an HTTP tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a tool: a map with name and url")]
pub struct HttpToolConfig {
    /// The name.
    pub name: String,
    /// The description for the model.
    pub description: String,
    /// The JSON Schema of the arguments; the default is no arguments.
    #[serde(default = "config::no_parameters")]
    pub parameters: Value,
    /// The method; the default is GET.
    #[serde(default = "get")]
    pub method: String,
    /// The URL, with `{placeholders}` in path and query.
    pub url: String,
    /// Additional query parameters with `{placeholders}`. A parameter is omitted if its argument is absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, String>,
    /// Headers. Placeholders are not supported: a model must not write headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Setting>,
    /// The request body; the default is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<HttpBody>,
    /// The header for the call id. The default is `Idempotency-Key`; an empty name disables it.
    #[serde(default = "idempotency_key")]
    pub idempotency_header: String,
    /// A secret, usually `{env: NAME}`. With it, each request has the context of the call in signed headers. A model
    /// cannot write them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_key: Option<Setting>,
    /// Statuses that count as success, besides those from 200 to 299.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ok_statuses: Vec<u16>,
    /// Maximum number of redirects, only within the same host; the default is 0.
    #[serde(default)]
    pub redirects: usize,
    /// Maximum size of the response in bytes; the default is 4,000,000. A larger response is an error.
    #[serde(default = "four_megabytes")]
    pub max_bytes: usize,
    /// Timeout of a call, in milliseconds; the default is 60,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The effect of the tool. The default follows from the method (RFC 9110, section 9.2): GET and HEAD are
    /// read-only, PUT and DELETE are idempotent, all others must run at most once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// Whether each call needs approval.
    #[serde(default)]
    pub needs_approval: bool,
    /// How approvals are requested. If it is given, each call needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalPolicy>,
    /// How failed calls are retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// The capability that a worker needs to run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_capability: Option<String>,
    /// Rate and concurrency limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ToolLimits>,
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpBody {
    /// All arguments, as JSON.
    Arguments,
    /// JSON whose strings have `{placeholders}`. A string that consists of one placeholder becomes the argument
    /// itself, of any type. A member is omitted if its argument is absent.
    Json(Value),
    /// A form whose fields have `{placeholders}`. A field is omitted if its argument is absent.
    Form(BTreeMap<String, String>),
    /// Text with `{placeholders}`, which are not escaped.
    Text(String),
}

fn get() -> String {
    "GET".to_owned()
}

fn idempotency_key() -> String {
    "Idempotency-Key".to_owned()
}

fn four_megabytes() -> usize {
    4_000_000
}

/// An HTTP request as a tool.
pub struct HttpTool {
    declaration: ToolDeclaration,
    plan: Arc<Plan>,
}

/// The parts that all requests share.
struct Plan {
    name: String,
    client: Client,
    method: Method,
    address: Address,
    headers: HeaderMap,
    body: Option<Body>,
    idempotency_header: Option<HeaderName>,
    context_key: Option<ContextKey>,
    ok_statuses: Vec<u16>,
    max_bytes: usize,
    timeout: Duration,
}

/// A body with parsed templates.
enum Body {
    Arguments,
    Json(Value),
    Form(Vec<(String, Template)>),
    Text(Template),
}

impl HttpTool {
    /// Parses a definition.
    ///
    /// # Errors
    /// The definition is invalid, or a variable for a secret is not set.
    pub fn new(config: HttpToolConfig, environment: &Environment) -> Result<HttpTool, ConfigError> {
        let name = config.name.as_str();
        let bad = |why: String| ConfigError::new(name, why);
        let timeout = config::timeout(name, config.timeout_ms)?;
        let method = Method::from_bytes(config.method.as_bytes())
            .map_err(|_| bad(format!("{:?} is not a valid HTTP method", config.method)))?;
        let idempotency_header = Some(&config.idempotency_header).filter(|name| !name.is_empty());
        let idempotency_header =
            idempotency_header.map(|header| header_name(name, header)).transpose()?;
        let plan = Plan {
            name: name.to_owned(),
            client: client(config.redirects).map_err(|why| bad(why.to_string()))?,
            address: Address::parse(name, &config.url, &config.query, &config.parameters)?,
            headers: headers(name, &config.headers, environment)?,
            body: config
                .body
                .map(|body| Body::parse(name, body, &config.parameters))
                .transpose()?,
            idempotency_header,
            context_key: context_key(name, config.context_key.as_ref(), environment)?,
            ok_statuses: config.ok_statuses,
            max_bytes: config.max_bytes,
            timeout,
            method,
        };
        let declaration = ToolDeclaration {
            effect: config.effect.unwrap_or_else(|| effect_of(&plan.method)),
            needs_approval: config.needs_approval,
            approval: config.approval,
            timeout,
            retry: config.retry,
            required_capability: config.required_capability,
            limits: config.limits,
            ..ToolDeclaration::new(&config.name, config.description, config.parameters)
        };
        Ok(HttpTool { declaration, plan: Arc::new(plan) })
    }
}

/// Returns a client that follows at most this many redirects within the same host; the headers are only for that host.
pub(crate) fn client(redirects: usize) -> Result<Client, reqwest::Error> {
    let same_host = Policy::custom(move |attempt| {
        let first = attempt.previous().first().map(|url| url.origin());
        if attempt.previous().len() > redirects || first != Some(attempt.url().origin()) {
            attempt.stop()
        } else {
            attempt.follow()
        }
    });
    http_client().redirect(same_host).build()
}

/// Returns the secret that signs contexts.
fn context_key(
    tool: &str,
    setting: Option<&Setting>,
    environment: &Environment,
) -> Result<Option<ContextKey>, ConfigError> {
    let Some(setting) = setting else { return Ok(None) };
    match setting.value(tool, environment)? {
        key if key.is_empty() => Err(ConfigError::new(tool, "context_key is empty")),
        key => Ok(Some(ContextKey::new(&key))),
    }
}

fn effect_of(method: &Method) -> Effect {
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => Effect::ReadOnly,
        Method::PUT | Method::DELETE => Effect::Idempotent,
        _ => Effect::AtMostOnce,
    }
}

fn header_name(tool: &str, header: &str) -> Result<HeaderName, ConfigError> {
    HeaderName::from_bytes(header.as_bytes())
        .map_err(|_| ConfigError::new(tool, format!("{header:?} is not a valid header name")))
}

/// Returns the headers of a definition. Values from the environment are marked as sensitive.
pub(crate) fn headers(
    tool: &str,
    settings: &BTreeMap<String, Setting>,
    environment: &Environment,
) -> Result<HeaderMap, ConfigError> {
    let mut headers = HeaderMap::new();
    for (name, setting) in settings {
        let value = setting.value(tool, environment)?;
        let mut value = HeaderValue::from_str(&value).map_err(|_| {
            ConfigError::new(
                tool,
                format!("the value of header {name} has characters that are not allowed"),
            )
        })?;
        value.set_sensitive(setting.is_secret());
        headers.insert(header_name(tool, name)?, value);
    }
    Ok(headers)
}

impl Body {
    fn parse(tool: &str, body: HttpBody, parameters: &Value) -> Result<Body, ConfigError> {
        let read = |text: &str| config::template(tool, text, parameters);
        Ok(match body {
            HttpBody::Arguments => Body::Arguments,
            HttpBody::Json(value) => {
                check_strings(&value, &read)?;
                Body::Json(value)
            }
            HttpBody::Form(fields) => {
                let fields = fields.into_iter().map(|(name, text)| Ok((name, read(&text)?)));
                Body::Form(fields.collect::<Result<_, ConfigError>>()?)
            }
            HttpBody::Text(text) => Body::Text(read(&text)?),
        })
    }
}

fn check_strings(
    value: &Value,
    read: &impl Fn(&str) -> Result<Template, ConfigError>,
) -> Result<(), ConfigError> {
    match value {
        Value::String(text) => read(text).map(drop),
        Value::Array(items) => items.iter().try_for_each(|item| check_strings(item, read)),
        Value::Object(members) => members.values().try_for_each(|one| check_strings(one, read)),
        _ => Ok(()),
    }
}

/// JSON with filled placeholders; `None` if it is a placeholder whose argument is absent.
fn fill_placeholders(value: &Value, arguments: &Map<String, Value>) -> Option<Value> {
    match value {
        Value::String(text) => {
            let template = Template::parse(text).ok()?;
            match template.only_place() {
                Some(name) => arguments.get(name).cloned(),
                None => template.fill(arguments, str::to_owned).ok().map(Value::String),
            }
        }
        Value::Array(items) => {
            Some(items.iter().filter_map(|item| fill_placeholders(item, arguments)).collect())
        }
        Value::Object(members) => {
            let members = members.iter();
            let members = members
                .filter_map(|(name, one)| Some((name.clone(), fill_placeholders(one, arguments)?)));
            Some(Value::Object(members.collect()))
        }
        other => Some(other.clone()),
    }
}

impl Tool for HttpTool {
    fn declaration(&self) -> &ToolDeclaration {
        &self.declaration
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'static, ToolOutcome> {
        let plan = Arc::clone(&self.plan);
        async move {
            let name = plan.name.as_str();
            tokio::select! {
                biased;
                () = invocation.cancel.cancelled() => {
                    ToolOutcome::failed(Failure::Cancelled, format!("{name} was cancelled"))
                }
                done = tokio::time::timeout(plan.timeout, plan.call(&invocation)) => {
                    done.unwrap_or_else(|_| crate::function::timed_out(name, plan.timeout))
                }
            }
        }
        .boxed()
    }
}

impl Plan {
    /// Returns the body of a request and its media type.
    fn body(&self, arguments: &Map<String, Value>) -> Option<(String, &'static str)> {
        let json = "application/json";
        match self.body.as_ref()? {
            Body::Arguments => Some((Value::Object(arguments.clone()).to_string(), json)),
            Body::Json(value) => {
                Some((fill_placeholders(value, arguments).unwrap_or(Value::Null).to_string(), json))
            }
            Body::Form(fields) => {
                let fields = fields.iter().filter_map(|(name, template)| {
                    Some((name.as_str(), template.fill(arguments, str::to_owned).ok()?))
                });
                let form = address::query_of(fields);
                Some((form, "application/x-www-form-urlencoded"))
            }
            Body::Text(template) => {
                let text = template.fill_loosely(arguments);
                Some((text, "text/plain; charset=utf-8"))
            }
        }
    }
}
