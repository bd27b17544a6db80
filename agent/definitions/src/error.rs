//! Why a definition is refused, or cannot work.

use abide_client::rules::nearest;
use abide_tools::ToolsError;
use abide_yaml::{Document, ErrorKind, Expected};
use serde::de::DeserializeOwned;

pub use abide_yaml::Position;

/// Maximum length of a name, in characters.
pub const NAME_CHARS: usize = 100;

/// A setting whose value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} {why}")]
pub struct InvalidSetting {
    /// Its path in the definition, such as `profile.context.chunk_tokens`.
    pub setting: String,
    /// The rest of the sentence that begins with the path.
    pub why: String,
}

impl InvalidSetting {
    /// Returns the error of a setting.
    pub fn new(setting: &str, why: impl Into<String>) -> InvalidSetting {
        InvalidSetting { setting: setting.to_owned(), why: why.into() }
    }
}

/// Why a definition is refused, or cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// Unknown field, or a value of the wrong type.
    #[error("{why}")]
    Malformed {
        /// The reason.
        why: String,
        /// The place in the file, if it is known.
        at: Option<Position>,
        /// How to correct it, if that is known.
        hint: Option<String>,
    },
    /// A part of `abide.yaml` cannot be used.
    #[error("{why}")]
    Config {
        /// The stable code.
        code: &'static str,
        /// The reason.
        why: String,
        /// The name of the part.
        subject: String,
    },
    /// Invalid name.
    #[error("invalid agent name {0:?}: letters, digits, . _ and -, at most {NAME_CHARS}")]
    Name(String),
    /// The file of a prompt, an instruction file or a skill cannot be read.
    #[error("{what} cannot be read: {why}")]
    Missing {
        /// The text that is missing.
        what: String,
        /// The reason.
        why: String,
        /// How to correct it.
        hint: &'static str,
    },
    /// A prompt cannot be read from its store.
    #[error("prompt {name} cannot be read: {why}")]
    Prompt {
        /// The name, as the definition has it.
        name: String,
        /// The reason.
        why: String,
        /// How to correct it.
        hint: &'static str,
    },
    /// The variables of its prompt and the given values do not match.
    #[error("{why}")]
    Variables {
        /// The reason.
        why: String,
        /// The prompt, as the definition names it.
        prompt: String,
    },
    /// Unknown or duplicate tool names.
    #[error("{0}")]
    Tools(#[from] ToolsError),
    /// It delegates to itself, directly or through other agents: their names in order, with the first one at the end.
    #[error("delegation cycle: {}", .0.join(" → "))]
    Cycle(Vec<String>),
    /// It needs a sandbox that is not configured.
    #[error(
        "sandbox {wanted} is not configured; this runtime has {}",
        .there.map_or("no sandbox".to_owned(), |there| format!("the sandbox {there}"))
    )]
    Sandbox {
        /// The sandbox that it needs.
        wanted: &'static str,
        /// The configured one.
        there: Option<&'static str>,
    },
    /// Two parts of it contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// A setting has a value that cannot be used.
    #[error("{0}")]
    Setting(#[from] InvalidSetting),
    /// It names middleware that does not exist.
    #[error("unknown middleware {name}; available: {}", listed(.known))]
    Middleware {
        /// The name.
        name: String,
        /// The names that it can use.
        known: Vec<String>,
    },
    /// It names a parser that does not exist.
    #[error("unknown parser {name}; available: {}", listed(.known))]
    Parser {
        /// The name.
        name: String,
        /// The registered parsers.
        known: Vec<String>,
    },
    /// It names a loop that does not exist.
    #[error("unknown loop {name}; available: {}", listed(.known))]
    Loop {
        /// The name.
        name: String,
        /// The registered loops.
        known: Vec<String>,
    },
    /// `mcp.reducers` names a reducer that does not exist.
    #[error("mcp.reducers: there is no reducer {name}")]
    Reducer {
        /// The name.
        name: String,
        /// The reducers of the program.
        known: Vec<String>,
    },
    /// It delegates to an agent that does not exist.
    #[error("unknown subagent {name}; available: {}", listed(.known))]
    Subagent {
        /// The name.
        name: String,
        /// The agents that can be subagents.
        known: Vec<String>,
    },
    /// It delegates to an agent that accepts no tasks.
    #[error("agent {0} is primary and cannot be a subagent")]
    Mode(String),
    /// Its model cannot be used.
    #[error("{why}")]
    Model {
        /// The stable code.
        code: &'static str,
        /// The reason.
        why: String,
        /// The unknown name.
        wanted: Option<String>,
        /// The known names.
        known: Vec<String>,
    },
    /// A secret is written in the file, where everyone who may read the definition sees it.
    #[error("{setting} is a secret in plain text")]
    LiteralSecret {
        /// Its path, such as `cli.env.API_KEY`.
        setting: String,
    },
    /// Its program cannot run, or its runs cannot end.
    #[error("{why}")]
    Program {
        /// The stable code.
        code: &'static str,
        /// The reason.
        why: String,
        /// The part of the definition that is wrong.
        subject: String,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl DefinitionError {
    /// Returns a text that is not a definition, with a reason of which only the sentence is known.
    pub fn malformed(why: impl Into<String>, at: Option<Position>) -> DefinitionError {
        let why = plain(&why.into());
        let hint = sentence_hint(&why);
        DefinitionError::Malformed { why, at, hint }
    }

    /// Returns the error of the file of a definition without content.
    pub(crate) fn empty_file() -> DefinitionError {
        DefinitionError::Malformed {
            why: "the file is empty".to_owned(),
            at: None,
            hint: Some("write the definition, or remove the file".to_owned()),
        }
    }

    /// Returns the error as that of the file of a definition, if it says that this file cannot be read. Other messages about the
    /// file name it already.
    #[must_use]
    pub fn of_own_file(self) -> DefinitionError {
        match self {
            DefinitionError::Missing { why, hint, .. } => DefinitionError::Malformed {
                why: format!("the file cannot be read: {why}"),
                at: None,
                hint: Some(hint.to_owned()),
            },
            other => other,
        }
    }

    /// Returns the error of a file with a field that only stored revisions have ([`STORED`]).
    pub(crate) fn stored_field(name: &str, at: Option<Position>) -> DefinitionError {
        let hint = match name {
            "instructions" => "the prompt of an agent is its system_prompt",
            "settings" => "limits, planning, context, memory and watchdog are set in profile",
            _ => "remove it",
        };
        let why = format!("unknown field `{name}`");
        DefinitionError::Malformed { why, at, hint: Some(hint.to_owned()) }
    }

    /// Returns a stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            DefinitionError::Malformed { .. } => "malformed_definition",
            DefinitionError::Name(_) => "bad_agent_name",
            DefinitionError::Missing { .. } | DefinitionError::Prompt { .. } => "missing_text",
            DefinitionError::Variables { .. } => "prompt_variables",
            DefinitionError::Tools(error) => error.code(),
            DefinitionError::Cycle(_) => "delegation_cycle",
            DefinitionError::Contradiction(_) | DefinitionError::Setting(_) => "contradiction",
            DefinitionError::Sandbox { .. } => "sandbox_unavailable",
            DefinitionError::Subagent { .. } => "unknown_subagent",
            DefinitionError::Middleware { .. } => "unknown_middleware",
            DefinitionError::Parser { .. } => "unknown_parser",
            DefinitionError::Loop { .. } => "unknown_loop",
            DefinitionError::Reducer { .. } => "unknown_reducer",
            DefinitionError::Mode(_) => "wrong_mode",
            DefinitionError::LiteralSecret { .. } => "literal_secret",
            DefinitionError::Config { code, .. }
            | DefinitionError::Model { code, .. }
            | DefinitionError::Program { code, .. } => code,
        }
    }

    /// Returns how to correct it, in one sentence, if that is known.
    #[must_use]
    pub fn suggestion(&self) -> Option<String> {
        let text = match self {
            DefinitionError::Malformed { hint, .. } => return hint.clone(),
            DefinitionError::Parser { name, known } => {
                return suggest_name(Some(name), known, "Catalog::parser adds one in Rust");
            }
            DefinitionError::Loop { name, known } => {
                return suggest_name(Some(name), known, "Program::agent_loop adds one in Rust");
            }
            DefinitionError::Reducer { name, known } => {
                return suggest_name(Some(name), known, "`abide call` lists the reducers");
            }
            DefinitionError::Tools(ToolsError::Unknown { names, known }) => {
                let otherwise = "add the tool to abide.yaml, or remove its name";
                return suggest_name(names.first(), known, otherwise);
            }
            DefinitionError::Subagent { name, known } => {
                let otherwise = "create the agent with `mode: subagent`, or remove its name";
                return suggest_name(Some(name), known, otherwise);
            }
            DefinitionError::Middleware { name, known } => {
                return suggest_name(Some(name), known, "Catalog::middleware adds one in Rust");
            }
            DefinitionError::Model { code: "key_missing", why, .. } => key_missing(why),
            DefinitionError::Model { code: "price_unknown", .. } => PRICE_UNKNOWN,
            DefinitionError::Model { wanted: Some(wanted), known, .. } => {
                return suggest_name(
                    Some(wanted),
                    known,
                    "add it to models in abide.yaml, or name another",
                );
            }
            DefinitionError::Model { code: "no_model", .. } => {
                "name a provider and a model as models.default in abide.yaml"
            }
            DefinitionError::Setting(InvalidSetting { setting, .. }) => setting_hint(setting)?,
            DefinitionError::Cycle(_) => "remove one of these names from subagents",
            DefinitionError::Config { code, why, .. } => {
                return config_hint(code, why).map(str::to_owned);
            }
            DefinitionError::Sandbox { .. } => {
                "configure it in abide.yaml, or remove sandbox from the definition"
            }
            DefinitionError::Mode(_) => "set its mode to subagent or all",
            DefinitionError::LiteralSecret { setting } if setting.starts_with("models.") => {
                "write `key_env: NAME` or `key_file: PATH`, and remove the secret from the file"
            }
            DefinitionError::LiteralSecret { .. } => {
                "write `{env: NAME}` as the value, and set the environment variable NAME"
            }
            DefinitionError::Name(name) => {
                let (parent, _) = name.split_once('/')?;
                return Some(format!("an inline subagent is changed with its agent {parent}"));
            }
            DefinitionError::Prompt { hint, .. } => hint,
            DefinitionError::Variables { .. } => {
                "give each variable a value in `system_prompt: { …, variables: { NAME: VALUE } }`"
            }
            DefinitionError::Missing { hint, .. } => hint,
            DefinitionError::Program { code, why, .. } => program_hint(code, why),
            _ => return None,
        };
        Some(text.to_owned())
    }

    /// Returns `true` if the definition works: the error depends on the environment of the process, or is a risk.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(self.code(), "key_missing" | "private_address" | "literal_secret")
    }

    /// Returns the place of the error, if the parser reported it.
    pub fn position(&self) -> Option<Position> {
        match self {
            DefinitionError::Malformed { at, .. } => *at,
            _ => None,
        }
    }

    /// Returns the words of the definition that are wrong, in the order in which they are searched in the file.
    pub(crate) fn subjects(&self) -> Vec<&str> {
        let word = match self {
            DefinitionError::Missing { what, .. } => {
                let file = what.rsplit(['/', ' ']).next().unwrap_or(what);
                return vec![file, file.strip_suffix(".md").unwrap_or(file)];
            }
            DefinitionError::Name(name)
            | DefinitionError::Subagent { name, .. }
            | DefinitionError::Middleware { name, .. }
            | DefinitionError::Parser { name, .. }
            | DefinitionError::Loop { name, .. }
            | DefinitionError::Reducer { name, .. }
            | DefinitionError::Prompt { name, .. }
            | DefinitionError::Mode(name) => Some(name.as_str()),
            DefinitionError::Variables { prompt, .. } => Some(prompt.as_str()),
            DefinitionError::Tools(error) => match error {
                ToolsError::Unknown { names, .. } => names.first().map(String::as_str),
                ToolsError::Duplicate { name }
                | ToolsError::Name { name }
                | ToolsError::Schema { name, .. }
                | ToolsError::Terms { name, .. }
                | ToolsError::Source { name } => Some(name.as_str()),
                _ => None,
            },
            DefinitionError::Model { wanted, .. } => wanted.as_deref(),
            DefinitionError::Sandbox { wanted, .. } => Some(*wanted),
            DefinitionError::LiteralSecret { setting } => {
                let last = setting.rsplit('.').next().unwrap_or(setting);
                Some(last.split('[').next().unwrap_or(last))
            }
            DefinitionError::Config { subject, .. } | DefinitionError::Program { subject, .. } => {
                Some(subject.as_str())
            }
            _ => None,
        };
        word.into_iter().collect()
    }
}

/// Returns how to continue with a run that ended with this code and message, if that is known.
#[must_use]
pub fn suggestion_for_run(code: &str, message: &str) -> Option<&'static str> {
    match code {
        "key_missing" => Some(key_missing(message)),
        "price_unknown" => Some(PRICE_UNKNOWN),
        "no_recording" if message.contains("script") => {
            Some("add an answer to the script, or set `repeat: true` in it")
        }
        _ => None,
    }
}

const PRICE_UNKNOWN: &str =
    "give the provider a `price` in abide.yaml (docs/models.md), or remove cost_usd";

const SET_VARIABLE: &str = "set the environment variable before you start the program";

/// Returns `true` if an environment variable is missing.
fn needs_variable(why: &str) -> bool {
    why.contains("environment variable")
}

/// Returns how to provide the key of a model.
fn key_missing(why: &str) -> &'static str {
    if needs_variable(why) {
        SET_VARIABLE
    } else {
        "create the file with the key, or correct key_file in abide.yaml"
    }
}

/// Suggests the known name that is nearest to a name; otherwise the text.
fn suggest_name(name: Option<&String>, known: &[String], otherwise: &str) -> Option<String> {
    let meant = name.and_then(|name| nearest(name, known.iter().map(String::as_str)));
    Some(meant.map_or_else(|| otherwise.to_owned(), did_you_mean))
}

/// Returns how to correct a setting of a definition.
fn setting_hint(setting: &str) -> Option<&'static str> {
    let text = match setting.split('.').next()? {
        "profile" => {
            "a setting that the profile does not change is that of its preset: docs/agent-context.md lists them"
        }
        "limits" | "config" => "correct the number, or remove the setting",
        "model" => "name a provider and a model of abide.yaml, such as openai/gpt-4.1",
        "response_format" => "write a JSON Schema, such as `{ type: object, properties: { … } }`",
        "pause" => "docs/agent-runs.md describes the conditions of a pause",
        _ => return None,
    };
    Some(text)
}

/// Returns how to write a value of the expected type.
fn type_hint(expected: Expected) -> Option<&'static str> {
    let way = match expected {
        Expected::List => "write a list, such as `[NAME]`",
        Expected::Map => "write a map, such as `{ NAME: VALUE }`",
        Expected::Integer | Expected::UnsignedInteger => "write a whole number, such as 10",
        Expected::Number => "write a number, such as 0.5",
        Expected::Boolean => "write true or false: yes, no, on and off are texts",
        Expected::Text => "write a text, or remove the field",
        _ => return None,
    };
    Some(way)
}

/// Returns how to correct a part of `abide.yaml`.
fn config_hint(code: &str, why: &str) -> Option<&'static str> {
    let text = match code {
        _ if needs_variable(why) => SET_VARIABLE,
        code if code.contains("sandbox") => {
            "docs/sandboxes.md describes the backends and their settings"
        }
        "bad_provider_config" => "docs/models.md describes the settings of providers",
        "mcp_unavailable" => "start the server, or set `required: false`",
        "bad_tool_config" => "docs/tools.md describes the settings of tools",
        _ => return None,
    };
    Some(text)
}

/// Returns how to correct the program of an agent.
fn program_hint(code: &str, why: &str) -> &'static str {
    match code {
        _ if needs_variable(why) => SET_VARIABLE,
        "contradiction" => "docs/a2a.md describes the settings of a remote agent",
        "no_terminal_rule" => {
            "set terminal to exit_zero or to a line, parser to rules with terminal, or program to the program's format"
        }
        "bad_parser" => "docs/programs.md describes the rules of a parser",
        "missing_folder" => "create the folder",
        "private_address" => "name its host in a2a.allow_private",
        _ => "install it, or name it with its path",
    }
}

/// Fields that only stored revisions have, and the mode that only agents of the program have.
const STORED: [&str; 4] = ["instructions", "settings", "deployment_middleware", "native"];

/// Parses YAML 1.2, of which JSON is a subset.
pub(crate) fn parse_yaml(text: &str) -> Result<Document, DefinitionError> {
    Document::parse(text).map_err(|error| DefinitionError::Malformed {
        why: error.to_string(),
        at: error.position(),
        hint: None,
    })
}

/// Reads a document as a value of a type.
pub(crate) fn from_document<T: DeserializeOwned>(
    document: &Document,
) -> Result<T, DefinitionError> {
    document.decode().map_err(|error| {
        let error = error.without_known(&STORED);
        let at = error.position();
        let hint = match error.kind() {
            ErrorKind::UnknownField { name, known } | ErrorKind::UnknownValue { name, known } => {
                meant_name(name, known).map(did_you_mean)
            }
            ErrorKind::WrongType(expected) => type_hint(*expected).map(str::to_owned),
            // A value of a definition that gives its own reason.
            ErrorKind::Sentence(why) => {
                let name = quoted_name(why).zip(at);
                let of_name = name.and_then(|(name, at)| document.position_of(name, at));
                return DefinitionError::malformed(why, of_name.or(at));
            }
            _ => None,
        };
        DefinitionError::Malformed { why: error.to_string(), at, hint }
    })
}

/// Returns a reason of serde for JSON, or of a value of a definition, in the terms of YAML and JSON.
fn plain(why: &str) -> String {
    let mut why = why.replace("unknown variant", "unknown value");
    for stored in STORED {
        why = why.replace(&format!(", `{stored}`"), "").replace(&format!("`{stored}`, "), "");
    }
    why
}

/// Returns the hint of a sentence that quotes an unknown name and lists the known ones. Reasons that values of
/// definitions and the reader of JSON give are only sentences.
fn sentence_hint(why: &str) -> Option<String> {
    let (wrong, known) = match why.split_once(" is not one of ") {
        Some((wrong, known)) => (wrong.trim_matches('"'), known),
        None => {
            let (_, rest) = why.split_once("unknown ")?;
            let lists = ["expected one of ", "available: ", "expected "];
            let (_, known) = lists.iter().find_map(|before| rest.split_once(before))?;
            (quoted_name(why)?, known)
        }
    };
    let known: Vec<&str> = known.split(", ").map(|name| name.trim().trim_matches('`')).collect();
    meant_name(wrong, &known).map(did_you_mean)
}

/// Returns the unknown name that a sentence quotes.
fn quoted_name(why: &str) -> Option<&str> {
    why.split_once("unknown ")?.1.split('`').nth(1)
}

/// Returns the known name that a misspelled one probably means.
fn meant_name<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    nearest(wrong, known.iter().copied())
        .or_else(|| known.iter().copied().find(|name| wrong.len() > 2 && name.starts_with(wrong)))
}

fn did_you_mean(name: &str) -> String {
    format!("did you mean {name}?")
}
