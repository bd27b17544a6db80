//! The prompts of a database, for definitions: `{store: NAME@VERSION}`.

use abide_client::rules::{PROMPT_VERSION_AT, prompt_version};
use abide_client::{Abide, Value};
use abide_definitions::prompt_source::PromptStore;
use tokio::runtime::Handle;

/// The prompts of a database. Agents are shared by all tenants, so these are the prompts without a scope: a tenant
/// cannot change the instructions of an agent.
pub(crate) struct StoredPrompts {
    abide: Abide,
}

impl StoredPrompts {
    pub(crate) fn new(abide: &Abide) -> StoredPrompts {
        StoredPrompts { abide: abide.clone() }
    }

    async fn text(&self, name: &str, at: &str) -> Result<String, String> {
        let query = self.abide.sql(PROMPT_VERSION_AT).param("name", name).param("at", at);
        let found = query.param("version", prompt_version(at)).rows().await;
        let found = found.map_err(|error| error.to_string())?;
        let column = |name: &str| {
            let at = found.columns.iter().position(|found| found == name)?;
            match found.rows.first()?.get(at)? {
                Value::Text(text) => Some(text.to_string()),
                _ => None,
            }
        };
        match (column("text"), column("scope").as_deref()) {
            (Some(text), Some("{}")) => Ok(text),
            (Some(_), _) => Err(format!(
                "prompt {name} belongs to a scope, and agents are shared by all scopes"
            )),
            (None, _) => {
                Err(format!("there is no prompt {name} with the version or the label {at}"))
            }
        }
    }
}

impl PromptStore for StoredPrompts {
    fn prompt(&self, name: &str) -> Result<String, String> {
        let (name, at) = split(name)?;
        let handle = Handle::try_current().map_err(|why| why.to_string())?;
        // A thread of its own, because a thread that runs tasks must not wait for one.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| handle.block_on(self.text(name, at)));
            waits.join().unwrap_or_else(|_| Err("the query panicked".to_owned()))
        })
    }
}

/// Splits `NAME@VERSION`.
///
/// # Errors
/// There is no version.
pub(crate) fn split(name: &str) -> Result<(&str, &str), String> {
    match name.rsplit_once('@') {
        Some((name, at)) if !name.is_empty() && !at.is_empty() => Ok((name, at)),
        _ => Err(format!("the version is missing: write {name}@1, or {name}@ and a label")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_has_a_version() {
        assert_eq!(split("a/b@v3"), Ok(("a/b", "v3")));
        for wrong in ["a", "a@", "@3", ""] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }
}
