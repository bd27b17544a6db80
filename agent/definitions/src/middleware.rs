//! The entries of a definition's `middleware`: what happens around the requests to a model and around the calls of
//! tools. This file defines their settings; `redactor` evaluates `pii`, `agent_middleware`
//! is the interface of middleware in Rust.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{IntoDeserializer as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::guardrail::{Guardrail, GuardrailAt, GuardrailName, Pattern, VerdictRule};
use crate::model_choice::ModelChoice;

/// One entry of a definition's `middleware`: a name, or a map of the name and the settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Middleware {
    /// Denies requests and answers.
    Guardrail(Box<Guardrail>),
    /// Denies calls of tools, in addition to `blocked_tools` and to the deny list of the deployment.
    ToolSecurity(ToolSecurity),
    /// Runs calls again that have failed.
    ToolRetry(ToolRetry),
    /// Asks other models when the agent's models fail.
    ModelFallback(ModelFallback),
    /// Redacts personal data.
    Pii(Pii),
    /// Counts requests to models and calls of tools.
    Observability(Observability),
    /// The part of an answer that is published while it is made.
    Streaming(Streaming),
    /// Middleware in Rust, see `AgentMiddleware` in `abide-agent`.
    Custom(CustomMiddleware),
}

/// The settings of `tool_security`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ToolSecurity {
    /// Tools whose calls are denied, by name or prefix (`files_*`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_tools: Vec<String>,
}

/// The settings of `tool_retry`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ToolRetry {
    /// The tools, by name or prefix. The default is all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Maximum number of attempts, including the first; the default is that of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i64>,
}

/// The settings of `model_fallback`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ModelFallback {
    /// The models to try, in order, after those of `config`.
    pub models: Vec<ModelChoice>,
}

/// The settings of `pii`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pii {
    /// The texts that it redacts. The default is all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<PiiAt>,
    /// The kinds of data. The default is all except IP addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<PiiKind>>,
    /// More kinds, by name: a match is replaced with the name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub patterns: BTreeMap<String, Pattern>,
}

/// A text that `pii` redacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PiiAt {
    /// The conversation, as models receive it. The rows of users stay as they are.
    Request,
    /// The text and the reasoning of answers.
    Response,
    /// The arguments of the calls that a model requests.
    Arguments,
    /// The results of tools.
    Results,
}

/// A kind of personal data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PiiKind {
    /// An email address.
    Email,
    /// A telephone number.
    Phone,
    /// A card number with a valid check digit.
    CreditCard,
    /// A bank account number.
    Iban,
    /// A United States social security number.
    UsSsn,
    /// An IPv4 or IPv6 address.
    IpAddress,
}

/// The settings of `observability`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Observability {
    /// The counters. Default: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<ObservedAt>,
}

/// The counters of `observability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObservedAt {
    /// Requests to models: outcomes, tokens, cost and durations.
    Models,
    /// Calls of tools: outcomes and durations.
    Tools,
    /// Runs: outcomes and durations.
    Runs,
}

/// The settings of `streaming`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Streaming {
    /// Whether the text of an answer is published in pieces, as it arrives. Otherwise it is one piece. The default is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<bool>,
    /// Whether the reasoning is published. The default is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<bool>,
    /// Whether each request to the model and each group of tool calls begins with a status. The default is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<bool>,
}

/// Middleware in Rust, and its settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CustomMiddleware {
    /// The name that it is registered under.
    pub name: String,
    /// Its settings.
    pub settings: Map<String, Value>,
}

/// The settings of each kind, by its name.
const KINDS: [(&str, &[&str]); 7] = [
    ("guardrail", &["at", "deny", "schema", "verdict", "check", "message"]),
    ("tool_security", &["blocked_tools"]),
    ("tool_retry", &["tools", "attempts"]),
    ("model_fallback", &["models"]),
    ("pii", &["at", "kinds", "patterns"]),
    ("observability", &["at"]),
    ("streaming", &["tokens", "reasoning", "status"]),
];

/// Maximum number of attempts of `tool_retry`.
const ATTEMPTS: i64 = 100;

impl Middleware {
    /// Returns the names of the kinds that need no registration.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        KINDS.iter().map(|(name, _)| *name).collect()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Middleware::Guardrail(_) => "guardrail",
            Middleware::ToolSecurity(_) => "tool_security",
            Middleware::ToolRetry(_) => "tool_retry",
            Middleware::ModelFallback(_) => "model_fallback",
            Middleware::Pii(_) => "pii",
            Middleware::Observability(_) => "observability",
            Middleware::Streaming(_) => "streaming",
            Middleware::Custom(custom) => &custom.name,
        }
    }

    /// Returns `true` if it applies to an agent that is a program or a remote agent.
    pub fn applies_to_external(&self) -> bool {
        matches!(self, Middleware::Observability(_))
    }

    /// Returns the guardrail, if it is one.
    pub fn guardrail(&self) -> Option<&Guardrail> {
        match self {
            Middleware::Guardrail(rule) => Some(rule),
            _ => None,
        }
    }

    /// Returns the redaction, if it is one.
    pub fn pii(&self) -> Option<&Pii> {
        match self {
            Middleware::Pii(pii) => Some(pii),
            _ => None,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// One sentence about a setting.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Middleware::Guardrail(rule) => rule.check(),
            Middleware::ToolRetry(ToolRetry { attempts: Some(max), .. })
                if !(1..=ATTEMPTS).contains(max) =>
            {
                Err(format!("tool_retry: attempts is {max}; it is 1 to {ATTEMPTS}"))
            }
            Middleware::ModelFallback(fallback) if fallback.models.is_empty() => {
                Err("model_fallback needs models".to_owned())
            }
            Middleware::Pii(pii) => pii.check(),
            _ => Ok(()),
        }
    }
}

impl Pii {
    fn check(&self) -> Result<(), String> {
        let invalid = self.patterns.keys().find(|name| {
            name.is_empty()
                || !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        });
        match invalid {
            Some(name) => Err(format!(
                "pii: the name {name:?} of a pattern is not made of lower-case letters, digits and _"
            )),
            None if self.kinds.as_ref().is_some_and(Vec::is_empty) && self.patterns.is_empty() => {
                Err("pii has neither kinds nor patterns".to_owned())
            }
            None => Ok(()),
        }
    }
}

/// All settings of all kinds. Their types are known before the name is, so a text is never read as another type.
#[derive(Default, Deserialize)]
struct AnySettings {
    name: String,
    at: Option<Places>,
    deny: Option<Pattern>,
    schema: Option<Value>,
    verdict: Option<VerdictRule>,
    check: Option<String>,
    message: Option<String>,
    blocked_tools: Option<Vec<String>>,
    tools: Option<Vec<String>>,
    attempts: Option<i64>,
    models: Option<Vec<ModelChoice>>,
    kinds: Option<Vec<PiiKind>>,
    patterns: Option<BTreeMap<String, Pattern>>,
    tokens: Option<bool>,
    reasoning: Option<bool>,
    status: Option<bool>,
    settings: Option<Map<String, Value>>,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

impl AnySettings {
    /// Returns the names of the settings that were given.
    fn setting_names(&self) -> Vec<&str> {
        let known = [
            ("at", self.at.is_some()),
            ("deny", self.deny.is_some()),
            ("schema", self.schema.is_some()),
            ("verdict", self.verdict.is_some()),
            ("check", self.check.is_some()),
            ("message", self.message.is_some()),
            ("blocked_tools", self.blocked_tools.is_some()),
            ("tools", self.tools.is_some()),
            ("attempts", self.attempts.is_some()),
            ("models", self.models.is_some()),
            ("kinds", self.kinds.is_some()),
            ("patterns", self.patterns.is_some()),
            ("tokens", self.tokens.is_some()),
            ("reasoning", self.reasoning.is_some()),
            ("status", self.status.is_some()),
            ("settings", self.settings.is_some()),
        ];
        let known = known.into_iter().filter(|(_, given)| *given).map(|(name, _)| name);
        known.chain(self.unknown.keys().map(String::as_str)).collect()
    }

    fn read(self) -> Result<Middleware, String> {
        let name = self.name.as_str();
        let Some((_, settings)) = KINDS.iter().find(|(kind, _)| *kind == name) else {
            if self.setting_names().iter().any(|given| *given != "settings") {
                return Err(unknown(name, &Middleware::names()));
            }
            let settings = self.settings.unwrap_or_default();
            return Ok(Middleware::Custom(CustomMiddleware { name: self.name, settings }));
        };
        if let Some(wrong) =
            self.setting_names().into_iter().find(|given| !settings.contains(given))
        {
            let known = settings.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ");
            return Err(format!(
                "unknown setting `{wrong}` of the middleware {name}, expected one of {known}"
            ));
        }
        match name {
            "guardrail" => self.guardrail().map(|rule| Middleware::Guardrail(Box::new(rule))),
            "tool_security" => Ok(Middleware::ToolSecurity(ToolSecurity {
                blocked_tools: self.blocked_tools.unwrap_or_default(),
            })),
            "tool_retry" => Ok(Middleware::ToolRetry(ToolRetry {
                tools: self.tools.unwrap_or_default(),
                attempts: self.attempts,
            })),
            "model_fallback" => Ok(Middleware::ModelFallback(ModelFallback {
                models: self.models.unwrap_or_default(),
            })),
            "observability" => Ok(Middleware::Observability(Observability {
                at: self.at.map_or(Ok(Vec::new()), |at| at.read())?,
            })),
            "streaming" => Ok(Middleware::Streaming(Streaming {
                tokens: self.tokens,
                reasoning: self.reasoning,
                status: self.status,
            })),
            _ => Ok(Middleware::Pii(Pii {
                at: self.at.map_or(Ok(Vec::new()), |at| at.read())?,
                kinds: self.kinds,
                patterns: self.patterns.unwrap_or_default(),
            })),
        }
    }

    fn guardrail(self) -> Result<Guardrail, String> {
        let at: Vec<GuardrailAt> = self.at.ok_or_else(|| missing_field("at"))?.read()?;
        let [at] = at[..] else {
            return Err("a guardrail has one `at`: request or response".to_owned());
        };
        Ok(Guardrail {
            name: GuardrailName::Guardrail,
            at,
            deny: self.deny,
            schema: self.schema,
            verdict: self.verdict,
            check: self.check,
            message: self.message.ok_or_else(|| missing_field("message"))?,
        })
    }
}

fn missing_field(field: &str) -> String {
    format!("a guardrail has no `{field}`")
}

/// Returns the error of a name that no middleware has.
pub fn unknown(name: &str, known: &[&str]) -> String {
    let known = known.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ");
    format!("unknown middleware `{name}`; available: {known}")
}

/// The value of `at`: a word or a list.
struct Places(Vec<String>);

impl Places {
    fn read<T: for<'de> Deserialize<'de>>(self) -> Result<Vec<T>, String> {
        let mut places = Vec::new();
        for place in &self.0 {
            let place: StrDeserializer<'_, serde::de::value::Error> =
                place.as_str().into_deserializer();
            places.push(T::deserialize(place).map_err(|why| why.to_string())?);
        }
        Ok(places)
    }
}

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Places, D::Error> {
        struct WordOrList;
        impl<'de> Visitor<'de> for WordOrList {
            type Value = Places;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a place, or a list of places")
            }

            fn visit_str<E: serde::de::Error>(self, place: &str) -> Result<Places, E> {
                Ok(Places(vec![place.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Places, A::Error> {
                let mut places = Vec::new();
                while let Some(place) = list.next_element()? {
                    places.push(place);
                }
                Ok(Places(places))
            }
        }
        from.deserialize_any(WordOrList)
    }
}

/// It reports errors with their reason, and accepts a name alone.
impl<'de> Deserialize<'de> for Middleware {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Middleware, D::Error> {
        struct NameOrSettings;
        impl<'de> Visitor<'de> for NameOrSettings {
            type Value = Middleware;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a middleware, or a map with its name and settings")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Middleware, E> {
                let named = AnySettings { name: name.to_owned(), ..AnySettings::default() };
                named.read().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Middleware, A::Error> {
                let settings = AnySettings::deserialize(MapAccessDeserializer::new(map))?;
                settings.read().map_err(serde::de::Error::custom)
            }
        }
        from.deserialize_any(NameOrSettings)
    }
}

impl Serialize for Middleware {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let settings = match self {
            Middleware::Guardrail(rule) => return rule.serialize(to),
            Middleware::ToolSecurity(it) => serde_json::to_value(it),
            Middleware::ToolRetry(it) => serde_json::to_value(it),
            Middleware::ModelFallback(it) => serde_json::to_value(it),
            Middleware::Pii(it) => serde_json::to_value(it),
            Middleware::Observability(it) => serde_json::to_value(it),
            Middleware::Streaming(it) => serde_json::to_value(it),
            Middleware::Custom(it) if it.settings.is_empty() => {
                return to.serialize_str(&it.name);
            }
            Middleware::Custom(it) => Ok(serde_json::json!({"settings": it.settings})),
        };
        let mut settings = settings.map_err(serde::ser::Error::custom)?;
        settings["name"] = Value::from(self.name());
        settings.serialize(to)
    }
}

#[cfg(test)]
mod tests;
