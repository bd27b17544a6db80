//! Prompts: texts with a name, that definitions of agents and clients use. Each text is a **version**, which never
//! changes. A **label**, such as `production`, points to a version, and can be moved to another one.
//!
//! A prompt belongs to the scope of its creator. Definitions of agents are shared by all tenants, so they use the
//! prompts without a scope.

use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, limits, reducer, table, template,
};
use serde_json::Value as JsonValue;

use crate::session::scope;
use crate::{check, policy};

const VERSIONS_STAY: &str = "CREATE TRIGGER prompt_versions_stay BEFORE UPDATE ON prompt_versions
BEGIN SELECT RAISE(FAIL, 'conflict: a version of a prompt cannot be changed'); END";

/// A prompt, with its newest version.
#[table(name = "prompts", index(seq))]
pub struct Prompt {
    /// Its name.
    #[column(key)]
    pub name: String,
    /// Application-defined keys, such as a tenant, that decide who can see it.
    #[column(scope)]
    pub scope: Json,
    /// Its purpose.
    pub description: Option<String>,
    /// The number of its newest version; the first is 1.
    pub version: i64,
    /// When it was created.
    pub created_at: Micros,
    /// When it last changed, even by a label.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// One version of a prompt.
#[table(name = "prompt_versions", trigger = VERSIONS_STAY)]
pub struct PromptVersion {
    /// The prompt.
    #[column(key, references = "prompts(name)")]
    pub prompt: String,
    /// The version.
    #[column(key)]
    pub version: i64,
    /// The text, with variables as `{{name}}`.
    pub text: String,
    /// The variables in the order of their first use, a JSON array of texts.
    pub variables: Json,
    /// The caller that wrote it.
    pub created_by: String,
    /// When it was written.
    pub created_at: Micros,
    /// The event that wrote it.
    pub seq: Seq,
}

/// A label: a name for a version of a prompt.
#[table(name = "prompt_labels")]
pub struct PromptLabel {
    /// The prompt.
    #[column(key, references = "prompts(name)")]
    pub prompt: String,
    /// The label.
    #[column(key)]
    pub label: String,
    /// The version that it points to.
    pub version: i64,
    /// The caller that set it.
    pub set_by: String,
    /// When it was last set.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// One version of a prompt, with the parameters `name`, `at` and `version`: the version of this number ([`prompt_version`]), the newest one
/// for `latest`, or else the one that the label `at` points to.
pub const PROMPT_VERSION_AT: &str = "SELECT p.name, p.description, p.version AS newest, p.scope, \
      v.version, v.text, v.variables, v.created_by, v.created_at \
    FROM prompts p JOIN prompt_versions v ON v.prompt = p.name \
    WHERE p.name = :name AND v.version = CASE \
      WHEN :version > 0 THEN :version \
      WHEN :at = 'latest' THEN p.version \
      ELSE (SELECT l.version FROM prompt_labels l WHERE l.prompt = p.name AND l.label = :at) END";

/// Returns the number of a version: `3` or `v3`. Anything else is a label, and 0.
#[must_use]
pub fn prompt_version(at: &str) -> i64 {
    at.strip_prefix('v').unwrap_or(at).parse().unwrap_or(0)
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("prompt")
        .visible::<Prompt>(RowVisibility::InScope)
        .visible::<PromptVersion>(RowVisibility::InScope)
        .visible::<PromptLabel>(RowVisibility::InScope)
        // Definitions of agents have the texts of their prompts.
        .copied(("prompt_versions", "text"), &[("agent_revisions", "definition")])
        .reducer(put_prompt::definition())
        .reducer(label_prompt::definition())
        .reducer(unlabel_prompt::definition())
}

/// Adds a version to a prompt, and creates the prompt if there is none. A text that is equal to the newest version adds no version, if the
/// caller may read that version.
/// `labels` then point to the newest version.
#[reducer]
pub fn put_prompt(
    ctx: &mut Context<'_>,
    /// The name of the prompt: letters, digits, and . _ - /
    #[id(new, Prompt)]
    name: String,
    /// The text, with variables as `{{name}}`.
    text: String,
    /// The purpose of the prompt; unchanged if omitted.
    description: Option<String>,
    /// Labels that point to this version from now on.
    labels: Option<Vec<String>>,
    /// The newest version, or 0 for a new prompt: a conflict if it is another one.
    expected_version: Option<i64>,
    /// Keys that are added to the scope of a new prompt.
    scope: Option<serde_json::Map<String, JsonValue>>,
) -> Result<ReducerResult<Prompt>, Abort> {
    check_text(&text)?;
    check_description(description.as_deref())?;
    let labels = labels.unwrap_or_default();
    labels.iter().try_for_each(|label| check_label(label))?;
    let before = ctx.get::<Prompt>(&name)?;
    let version = before.as_ref().map_or(0, |before| before.version);
    if let Some(expected) = expected_version.filter(|expected| *expected != version) {
        let detail = format!("prompt {name} is at version {version}, not {expected}");
        let hint = "read it again and retry the change";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    let newest = newest_known(ctx, &name, version)?;
    let is_new_text = newest.is_none_or(|newest| newest.text != text);
    let prompt = match &before {
        Some(before) => Prompt {
            version: version + i64::from(is_new_text),
            description: description.or_else(|| before.description.clone()),
            ..before.clone()
        },
        None => new_prompt(ctx, name, description, scope)?,
    };
    let moved = moved_labels(ctx, &prompt, labels)?;
    if before.as_ref() == Some(&prompt) && moved.is_empty() {
        return Ok(ReducerResult::Duplicate(prompt.seq, prompt));
    }
    let prompt = Prompt { updated_at: ctx.now, seq: ctx.seq, ..prompt };
    match before {
        None => drop(ctx.insert(prompt.clone())?),
        Some(_) => ctx.update(&prompt)?,
    }
    if is_new_text {
        ctx.insert(PromptVersion {
            prompt: prompt.name.clone(),
            version: prompt.version,
            variables: Json::from(serde_json::json!(template::variables(&text))),
            text,
            created_by: ctx.caller.id().to_owned(),
            created_at: ctx.now,
            seq: ctx.seq,
        })?;
    }
    for label in moved {
        write_label(ctx, label)?;
    }
    Ok(ReducerResult::Fresh(prompt))
}

/// Points a label of a prompt to a version.
#[reducer]
pub fn label_prompt(
    ctx: &mut Context<'_>,
    #[id(Prompt)] name: String,
    /// The label. It begins with a letter; `latest` always is the newest version.
    label: String,
    /// The version.
    version: i64,
) -> Result<ReducerResult<PromptLabel>, Abort> {
    check_label(&label)?;
    let prompt = find(ctx, &name)?;
    if !(1..=prompt.version).contains(&version) {
        let newest = prompt.version;
        let detail = format!("prompt {name} has no version {version}");
        let hint = format!("its newest version is {newest}");
        return Err(Refusal::new(Code::NotFound, detail).hint(hint).into());
    }
    let at = Prompt { version, ..prompt.clone() };
    let Some(label) = moved_labels(ctx, &at, vec![label.clone()])?.pop() else {
        let there = find_label(ctx, &name, &label)?;
        return Ok(ReducerResult::Duplicate(there.seq, there));
    };
    write_label(ctx, label.clone())?;
    ctx.update(&Prompt { updated_at: ctx.now, seq: ctx.seq, ..prompt })?;
    Ok(ReducerResult::Fresh(label))
}

/// Removes a label of a prompt.
#[reducer]
pub fn unlabel_prompt(
    ctx: &mut Context<'_>,
    #[id(Prompt)] name: String,
    label: String,
) -> Result<PromptLabel, Abort> {
    let prompt = find(ctx, &name)?;
    let removed = find_label(ctx, &name, &label)?;
    ctx.delete::<PromptLabel>((name.as_str(), label.as_str()))?;
    ctx.update(&Prompt { updated_at: ctx.now, seq: ctx.seq, ..prompt })?;
    Ok(removed)
}

/// Returns the newest version, if the caller may read its text. Otherwise a comparison would confirm a guess of it.
fn newest_known(
    ctx: &mut Context<'_>,
    name: &str,
    version: i64,
) -> Result<Option<PromptVersion>, Abort> {
    if version == 0 || policy::hides(ctx, "prompt_versions", "text")? {
        return Ok(None);
    }
    ctx.get::<PromptVersion>((name, version))
}

/// Returns a prompt that does not exist yet.
fn new_prompt(
    ctx: &Context<'_>,
    name: String,
    description: Option<String>,
    scope: Option<serde_json::Map<String, JsonValue>>,
) -> Result<Prompt, Abort> {
    check_name(name.strip_prefix(ctx.caller.namespace()).unwrap_or(&name))?;
    check::name("name", &name)?;
    let mut scope = scope.unwrap_or_default();
    scope::confine(&mut scope, ctx.caller)?;
    let scope = Json::from(JsonValue::Object(scope));
    let created_at = ctx.now;
    let updated_at = ctx.now;
    Ok(Prompt { name, scope, description, version: 1, created_at, updated_at, seq: ctx.seq })
}

/// Returns the rows of the labels that do not point to the version of the prompt yet.
fn moved_labels(
    ctx: &mut Context<'_>,
    prompt: &Prompt,
    labels: Vec<String>,
) -> Result<Vec<PromptLabel>, Abort> {
    let name = prompt.name.as_str();
    let version = prompt.version;
    let mut moved: Vec<PromptLabel> = Vec::new();
    let mut new = 0;
    for label in labels {
        let before = ctx.without_policies(|ctx| ctx.get::<PromptLabel>((name, label.as_str())))?;
        let is_there = before.as_ref().is_some_and(|before| before.version == version);
        if is_there || moved.iter().any(|other| other.label == label) {
            continue;
        }
        new += i64::from(before.is_none());
        let prompt = name.to_owned();
        let set_by = ctx.caller.id().to_owned();
        let updated_at = ctx.now;
        let seq = ctx.seq;
        moved.push(PromptLabel { prompt, label, version, set_by, updated_at, seq });
    }
    if new > 0 {
        // A policy may hide some of them.
        let stored = ctx.count_everywhere::<PromptLabel>("WHERE prompt = ?1", &[name.into()])?;
        let count = stored + new;
        let max = limits::PROMPT_LABELS;
        if count > max {
            let detail = format!("prompt {name} would have {count} labels; the limit is {max}");
            let hint = "remove one with `abide prompt unlabel`";
            return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
        }
    }
    Ok(moved)
}

fn write_label(ctx: &mut Context<'_>, row: PromptLabel) -> Result<(), Abort> {
    let key = (row.prompt.as_str(), row.label.as_str());
    match ctx.without_policies(|ctx| ctx.get::<PromptLabel>(key))? {
        Some(_) => ctx.update(&row),
        None => ctx.insert(row).map(drop),
    }
}

fn find(ctx: &mut Context<'_>, name: &str) -> Result<Prompt, Abort> {
    Ok(ctx.get::<Prompt>(name)?.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no prompt {name}"))
            .hint("`abide prompt list` lists them")
    })?)
}

fn find_label(ctx: &mut Context<'_>, name: &str, label: &str) -> Result<PromptLabel, Abort> {
    Ok(ctx.get::<PromptLabel>((name, label))?.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("prompt {name} has no label {label}"))
            .hint(format!("`abide prompt show {name}` lists its labels"))
    })?)
}

/// A name without `@`, which separates the version, and without what only a scope has.
fn check_name(name: &str) -> Result<(), Refusal> {
    check::name("name", name)?;
    if name.chars().all(check::is_path_character) {
        return Ok(());
    }
    let detail = format!("name {name:?} is not valid");
    let hint = "letters, digits, . _ - and / are allowed";
    Err(Refusal::new(Code::BadArguments, detail).hint(hint))
}

/// A label that cannot be confused with the number of a version.
fn check_label(label: &str) -> Result<(), Refusal> {
    let number = label.strip_prefix('v').unwrap_or(label);
    let is_number = number.chars().all(|c| c.is_ascii_digit());
    if label.starts_with(|c: char| c.is_ascii_alphabetic())
        && label.chars().all(|c| c != '/' && check::is_path_character(c))
        && label.len() <= limits::PROMPT_LABEL_BYTES
        && label != LATEST
        && !is_number
    {
        return Ok(());
    }
    let detail = format!("label {label:?} is not valid");
    let max = limits::PROMPT_LABEL_BYTES;
    let hint = format!(
        "a label begins with a letter, has letters, digits, . _ and -, at most {max} bytes, and is neither \
         {LATEST} nor a number such as v3"
    );
    Err(Refusal::new(Code::BadArguments, detail).hint(hint))
}

/// Stands for the newest version.
const LATEST: &str = "latest";

fn check_text(text: &str) -> Result<(), Refusal> {
    if text.trim().is_empty() {
        return Err(
            Refusal::new(Code::BadArguments, "text is empty").hint("give the text of the prompt")
        );
    }
    let bytes = text.len();
    let max = limits::PROMPT_BYTES;
    if bytes > max {
        let detail = format!("text has {bytes} bytes; the limit is {max}");
        let hint = "shorten it, or move parts into skills";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint));
    }
    let count = template::variables(text).len();
    let max = limits::PROMPT_VARIABLES;
    if count > max {
        let detail = format!("text has {count} variables; the limit is {max}");
        return Err(
            Refusal::new(Code::LimitExceeded, detail).hint("combine some variables into one")
        );
    }
    Ok(())
}

fn check_description(description: Option<&str>) -> Result<(), Refusal> {
    let max = limits::PROMPT_DESCRIPTION_BYTES;
    match description.map(str::len).filter(|bytes| *bytes > max) {
        Some(bytes) => {
            let detail = format!("description has {bytes} bytes; the limit is {max}");
            Err(Refusal::new(Code::LimitExceeded, detail).hint("shorten the description"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_label_is_the_number_of_a_version() {
        for label in ["production", "v3b", "v-1", "a", "V2"] {
            assert!(check_label(label).is_ok(), "{label}");
            assert_eq!(prompt_version(label).max(0), 0, "{label}");
        }
        for wrong in ["v3", "3", "v", "", "latest", "a b", "a@b", "-a", "é", &"a".repeat(65)] {
            assert!(check_label(wrong).is_err(), "{wrong}");
        }
        assert_eq!((prompt_version("v3"), prompt_version("12")), (3, 12));
    }
}
