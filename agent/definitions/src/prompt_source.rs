//! The source of a system prompt: a text, a file, or a store of prompts, with values for its variables.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use abide_client::rules::template;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::DefinitionError;
use crate::folder_texts;

/// The source of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PromptSource {
    /// The text itself, as it is.
    Inline(String),
    /// A template, and the values of its variables.
    Template {
        /// Where the template is.
        #[serde(flatten)]
        origin: PromptOrigin,
        /// A value for each variable `{{name}}` of the template.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        variables: BTreeMap<String, String>,
    },
}

/// Where a template is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptOrigin {
    /// The text in the definition.
    Text(String),
    /// The file `prompts/NAME.md`.
    File(String),
    /// The table `prompts`: `NAME@VERSION` or `NAME@LABEL`.
    Store(String),
    /// The prompt registry of an MLflow server: `NAME@VERSION` or `NAME@ALIAS`.
    Mlflow(String),
}

/// A store of prompts.
pub trait PromptStore: Send + Sync {
    /// Returns the template of a name, such as `greeting@3`. It is called on a thread that may wait.
    ///
    /// # Errors
    /// The reason why there is none, in one sentence.
    fn prompt(&self, name: &str) -> Result<String, String>;
}

/// The stores that definitions can refer to.
#[derive(Clone, Default)]
pub struct PromptStores {
    /// For `store`.
    pub store: Option<Arc<dyn PromptStore>>,
    /// For `mlflow`.
    pub mlflow: Option<Arc<dyn PromptStore>>,
}

impl PromptSource {
    /// Returns the text, with the values of the variables.
    ///
    /// # Errors
    /// The template cannot be read, or its variables and the values do not match.
    pub fn text(&self, folder: &Path, stores: &PromptStores) -> Result<String, DefinitionError> {
        let (origin, variables) = match self {
            PromptSource::Inline(text) => return Ok(text.clone()),
            PromptSource::Template { origin, variables } => (origin, variables),
        };
        let template = match origin {
            PromptOrigin::Text(text) => text.clone(),
            PromptOrigin::File(file) => folder_texts::read_named(folder, "prompts", file)?,
            PromptOrigin::Store(name) => stored(stores.store.as_deref(), name, &STORE)?,
            PromptOrigin::Mlflow(name) => stored(stores.mlflow.as_deref(), name, &MLFLOW)?,
        };
        template::render(&template, variables).map_err(|why| DefinitionError::Variables {
            why: why.to_string(),
            prompt: origin.name().to_owned(),
        })
    }

    /// Returns `true` if it is in the table `prompts`.
    pub fn is_stored(&self) -> bool {
        matches!(self, PromptSource::Template { origin: PromptOrigin::Store(_), .. })
    }

    /// Returns `true` if it is on another server.
    pub fn is_remote(&self) -> bool {
        matches!(self, PromptSource::Template { origin: PromptOrigin::Mlflow(_), .. })
    }

    /// Returns the part that only the folder of the runtime may use, in words.
    pub fn reach(&self) -> Option<&'static str> {
        match self {
            PromptSource::Template { origin: PromptOrigin::File(_), .. } => Some("a prompt file"),
            PromptSource::Template { origin: PromptOrigin::Mlflow(_), .. } => {
                Some("a prompt of MLflow")
            }
            _ => None,
        }
    }
}

/// Where prompts of an origin come from, and the hints for its failures.
struct StoreKind {
    /// Why there is no such store.
    without: &'static str,
    /// The hint if there is none.
    configure: &'static str,
    /// The hint if the store does not have the prompt.
    add: &'static str,
}

const STORE: StoreKind = StoreKind {
    without: "this command has no database",
    configure: "name the database with --db or --url",
    add: "store it with `abide prompt put`, or write it into a file in prompts/",
};

const MLFLOW: StoreKind = StoreKind {
    without: "abide.yaml has no `prompts: { mlflow: { url: … } }`",
    configure: "add the server to abide.yaml: docs/prompts.md describes it",
    add: "check the prompt on the MLflow server, and prompts.mlflow in abide.yaml",
};

impl PromptOrigin {
    /// Returns the name in the definition.
    fn name(&self) -> &str {
        match self {
            PromptOrigin::Text(_) => "variables",
            PromptOrigin::File(name) | PromptOrigin::Store(name) | PromptOrigin::Mlflow(name) => {
                name
            }
        }
    }
}

fn stored(
    store: Option<&dyn PromptStore>,
    name: &str,
    kind: &StoreKind,
) -> Result<String, DefinitionError> {
    let (found, hint) = match store {
        Some(store) => (store.prompt(name), kind.add),
        None => (Err(kind.without.to_owned()), kind.configure),
    };
    found.map_err(|why| DefinitionError::Prompt { name: name.to_owned(), why, hint })
}

/// The fields of the map form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    text: Option<String>,
    file: Option<String>,
    store: Option<String>,
    mlflow: Option<String>,
    #[serde(default)]
    variables: BTreeMap<String, String>,
}

impl Fields {
    fn source(self) -> Result<PromptSource, &'static str> {
        let Fields { text, file, store, mlflow, variables } = self;
        let mut origins = [
            text.map(PromptOrigin::Text),
            file.map(PromptOrigin::File),
            store.map(PromptOrigin::Store),
            mlflow.map(PromptOrigin::Mlflow),
        ]
        .into_iter()
        .flatten();
        match (origins.next(), origins.next()) {
            (Some(origin), None) => Ok(PromptSource::Template { origin, variables }),
            _ => Err("a prompt has exactly one of text, file, store and mlflow"),
        }
    }
}

/// Unlike a derived implementation, it reports errors of the map with their reason.
impl<'de> Deserialize<'de> for PromptSource {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<PromptSource, D::Error> {
        struct TextOrFields;
        impl<'de> Visitor<'de> for TextOrFields {
            type Value = PromptSource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a map with text, file, store or mlflow, and variables")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PromptSource, E> {
                Ok(PromptSource::Inline(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PromptSource, A::Error> {
                let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
                fields.source().map_err(serde::de::Error::custom)
            }
        }
        from.deserialize_any(TextOrFields)
    }
}
