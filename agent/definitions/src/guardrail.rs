//! Guardrails: rules that a request or an answer must satisfy. This file defines the rules and evaluates those that
//! need no model; `verdict` asks a model, and `held` keeps an answer back until its rules have cleared it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use abide_tools::Parameters;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One rule of a definition's `middleware`. It has exactly one of `deny`, `schema`, `verdict` and `check`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a middleware, such as {name: guardrail, at: request, deny: REGEX, message: TEXT}"
)]
pub struct Guardrail {
    /// The kind of middleware: `guardrail`.
    pub name: GuardrailName,
    /// The text that it checks.
    pub at: GuardrailAt,
    /// A regular expression that the text must not match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny: Option<Pattern>,
    /// JSON Schema: the text must be JSON that matches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// A model decides whether the text is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictRule>,
    /// The name of a Rust function that decides: see `Catalog::guardrail` in `abide-agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// The text to return instead.
    pub message: String,
}

/// The name of a guardrail among other middleware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub enum GuardrailName {
    /// Denies by pattern, by schema, by a model's verdict or by a function.
    Guardrail,
}

impl TryFrom<String> for GuardrailName {
    type Error = String;

    fn try_from(name: String) -> Result<GuardrailName, String> {
        match name.as_str() {
            "guardrail" => Ok(GuardrailName::Guardrail),
            _ => Err(format!("unknown guardrail `{name}`")),
        }
    }
}

/// The text that a guardrail checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardrailAt {
    /// The messages since the last answer, before the model is asked.
    Request,
    /// The model's answer, before it is accepted.
    Response,
}

/// A rule that a model decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerdictRule {
    /// The instructions for the model that decides: which texts are allowed.
    pub instructions: String,
    /// The provider's id; the default is the server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model; the default is the provider's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Bytes of a compiled pattern. Ordinary ones take some kilobytes; a repetition such as `\\w{200}` takes megabytes.
const PATTERN_BYTES: usize = 1 << 20;

/// A regular expression. An invalid one is refused with the definition.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Pattern, String> {
        let compiled = RegexBuilder::new(&text).size_limit(PATTERN_BYTES).build();
        compiled.map(Pattern).map_err(|why| match why {
            regex::Error::CompiledTooBig(max) => {
                format!("a pattern needs more than {max} bytes; use a shorter repetition")
            }
            why => why.to_string(),
        })
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.0.as_str().to_owned()
    }
}

impl Pattern {
    /// Where the first match begins, at this byte or after it. The text before it is context for `^` and `\b`.
    pub fn find_from(&self, text: &str, start: usize) -> Option<usize> {
        self.0.find_at(text, start).map(|found| found.start())
    }

    /// Returns the compiled expression.
    pub fn regex(&self) -> &Regex {
        &self.0
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// A rule in Rust. The error says why the text is denied; only the guardrail's message is shown.
pub type GuardrailFunction = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// The rules in Rust, by name.
#[derive(Clone, Default)]
pub struct GuardrailFunctions(BTreeMap<String, Arc<GuardrailFunction>>);

impl fmt::Debug for GuardrailFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl GuardrailFunctions {
    /// Adds a function under a name.
    pub fn add(&mut self, name: String, function: Arc<GuardrailFunction>) {
        self.0.insert(name, function);
    }

    /// Returns `true` if there is a function with this name.
    pub fn knows(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn get(&self, name: &str) -> Option<&GuardrailFunction> {
        self.0.get(name).map(|function| &**function)
    }
}

impl Guardrail {
    /// Checks that the rule has exactly one condition, and a valid one.
    ///
    /// # Errors
    /// One sentence about the rule.
    pub fn check(&self) -> Result<(), String> {
        let given = [
            self.deny.is_some(),
            self.schema.is_some(),
            self.verdict.is_some(),
            self.check.is_some(),
        ];
        if given.into_iter().filter(|given| *given).count() != 1 {
            return Err("a guardrail has exactly one of deny, schema, verdict and check".to_owned());
        }
        match &self.schema {
            Some(schema) => Parameters::compile(schema).map(drop).map_err(|why| {
                format!("the schema of a guardrail is not a supported JSON Schema: {why}")
            }),
            None => Ok(()),
        }
    }

    /// Returns `true` if the rule denies a complete text. A rule that a model decides is not evaluated here. A rule
    /// that cannot be evaluated denies.
    pub fn denies(&self, functions: &GuardrailFunctions, text: &str) -> bool {
        if let Some(pattern) = &self.deny {
            return pattern.0.is_match(text);
        }
        if let Some(schema) = &self.schema {
            return !fits(schema, text);
        }
        match &self.check {
            Some(name) => functions.get(name).is_none_or(|function| function(text).is_err()),
            None => false,
        }
    }
}

fn fits(schema: &Value, text: &str) -> bool {
    let value = serde_json::from_str::<Value>(text.trim());
    let (Ok(value), Ok(schema)) = (value, Parameters::compile(schema)) else { return false };
    schema.wrong_with(&value).is_none()
}
