//! `abide prompt`: stores prompts, their versions and labels.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use abide_client::Value;
use abide_client::arguments::{LabelPrompt, PutPrompt, UnlabelPrompt};
use abide_client::rules::{PROMPT_VERSION_AT, prompt_version, template};
use abide_schema::{Code, Refusal};
use clap::{Args, Subcommand};
use serde_json::{Map, Value as JsonValue};

use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};
use crate::printable::{Printable, one_line};
use crate::terminal::Terminal;
use crate::{call, sql};

/// Arguments of `abide prompt`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Prompt {
    #[command(subcommand)]
    what: PromptCommand,
}

#[derive(Debug, Subcommand)]
enum PromptCommand {
    /// Add a version of a prompt; an unchanged text adds none
    Put(Put),
    /// List the prompts with their newest versions and labels
    List,
    /// Show a version of a prompt
    Show(Show),
    /// Print a version of a prompt with values for its variables
    Render(Render),
    /// Point a label, such as production, to a version
    Label(Label),
    /// Remove a label
    Unlabel(Unlabel),
}

#[derive(Args, Debug)]
struct Put {
    /// The name of the prompt
    name: String,

    /// The file with the text; stdin if omitted
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// The text
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    text: Option<String>,

    /// A label that points to this version from now on
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,

    /// The purpose of the prompt
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

#[derive(Args, Debug)]
struct Show {
    /// The prompt: NAME, NAME@VERSION or NAME@LABEL
    prompt: String,
}

#[derive(Args, Debug)]
struct Render {
    /// The prompt: NAME, NAME@VERSION or NAME@LABEL
    prompt: String,

    /// The values of its variables
    #[arg(value_name = "NAME=VALUE")]
    values: Vec<String>,
}

#[derive(Args, Debug)]
struct Label {
    /// The version: NAME@VERSION
    prompt: String,

    /// The label
    label: String,
}

#[derive(Args, Debug)]
struct Unlabel {
    /// The name of the prompt
    name: String,

    /// The label
    label: String,
}

const EXAMPLES: &str = "\
Examples:
  abide prompt put clerk prompts/clerk.md --label staging
  abide prompt put clerk --text 'You help the customers of {{firm}}.'
  abide prompt list
  abide prompt show clerk@staging
  abide prompt render clerk@1 firm=Acme
  abide prompt label clerk@2 production

A definition uses it: `system_prompt: { store: clerk@production, variables: { firm: Acme } }`";

/// Runs the command.
///
/// # Errors
/// The call is refused, or there is no such prompt.
pub(crate) async fn run(options: &Options, args: Prompt) -> Result<(), Failure> {
    match args.what {
        PromptCommand::Put(args) => put(options, args).await,
        PromptCommand::List => list(options).await,
        PromptCommand::Show(args) => show(options, &args.prompt).await,
        PromptCommand::Render(args) => render(options, &args).await,
        PromptCommand::Label(args) => label(options, args).await,
        PromptCommand::Unlabel(args) => {
            call::call_and_print(options, UnlabelPrompt::new(args.name, args.label)).await
        }
    }
}

async fn put(options: &Options, args: Put) -> Result<(), Failure> {
    let Put { name, file, text, labels, description } = args;
    let text = match text {
        Some(text) => text,
        None => read_text(file.as_deref())?,
    };
    let labels = (!labels.is_empty()).then_some(labels);
    call::call_and_print(options, PutPrompt { labels, description, ..PutPrompt::new(name, text) })
        .await
}

fn read_text(file: Option<&Path>) -> Result<String, Failure> {
    let mut text = String::new();
    let (name, read) = match file {
        None => ("stdin".into(), io::stdin().read_to_string(&mut text).map(drop)),
        Some(file) => (file.to_string_lossy(), fs::read_to_string(file).map(|read| text = read)),
    };
    read.map_err(|why| {
        let hint = "name a file with the text, or give it with --text or on stdin";
        Failure::usage(format!("{name} cannot be read: {why}"), hint)
    })?;
    Ok(text)
}

async fn list(options: &Options) -> Result<(), Failure> {
    let labels = "(SELECT group_concat(label || ' → ' || version, ', ') FROM prompt_labels l \
        WHERE l.prompt = p.name)";
    let query = format!(
        "SELECT p.name, p.version, {labels} AS labels, p.scope, p.description, p.updated_at \
         FROM prompts p ORDER BY p.name"
    );
    sql::list(options, &query, "no prompts").await
}

/// The name without the version or the label.
fn prompt_name(named: &str) -> &str {
    named.rsplit_once('@').map_or(named, |(name, _)| name)
}

/// A version of a prompt, by its columns, and the labels of the prompt.
async fn find_version(options: &Options, named: &str) -> Result<Map<String, JsonValue>, Failure> {
    let (name, at) = named.rsplit_once('@').unwrap_or((named, "latest"));
    let abide = connect(options, Access::Read).await?;
    let version_of = async |name: &str| {
        let query = abide.sql(PROMPT_VERSION_AT).param("name", name).param("at", at);
        query.param("version", prompt_version(at)).rows().await
    };
    let mut name = name.to_owned();
    let mut found = version_of(&name).await;
    // The prompts of a caller with a scope are stored with the namespace of the scope.
    if let Some(namespace) = abide.namespace().filter(|it| !it.is_empty())
        && found.as_ref().is_ok_and(|found| found.rows.is_empty())
    {
        name.insert_str(0, &namespace);
        found = version_of(&name).await;
    }
    let sql = "SELECT label, version FROM prompt_labels WHERE prompt = :name ORDER BY label";
    let labels: Result<Vec<(String, i64)>, _> = abide.sql(sql).param("name", &name).fetch().await;
    let sql = "SELECT count(*) FROM prompts WHERE name = :name";
    let known: Result<Vec<(i64,)>, _> = abide.sql(sql).param("name", &name).fetch().await;
    abide.close().await;
    let found = found?;
    let labels = labels?;
    let known = known?;
    let Some(row) = found.rows.first() else {
        if at != "latest" && known.first().is_some_and(|(count,)| *count > 0) {
            let detail = format!("the prompt {} has no version or label {at}", prompt_name(named));
            let labels: Vec<String> =
                labels.iter().map(|(label, version)| format!("{label} ({version})")).collect();
            let hint = if labels.is_empty() {
                "it has no labels; `abide prompt label` sets one".to_owned()
            } else {
                format!("its labels are {}", labels.join(", "))
            };
            return Err(Refusal::new(Code::NotFound, detail).hint(hint).into());
        }
        let detail = format!("there is no prompt {named}");
        return Err(Refusal::new(Code::NotFound, detail)
            .hint("`abide prompt list` shows the prompts")
            .into());
    };
    let cells = found.columns.iter().cloned().zip(row.iter().map(Value::to_json));
    let mut prompt: Map<String, JsonValue> = cells.collect();
    for name in ["variables", "scope"] {
        let text = prompt.get(name).and_then(JsonValue::as_str).unwrap_or_default();
        let value = serde_json::from_str(text).unwrap_or_default();
        prompt.insert(name.to_owned(), value);
    }
    let labels = labels.into_iter().map(|(label, version)| (label, version.into())).collect();
    prompt.insert("labels".to_owned(), JsonValue::Object(labels));
    Ok(prompt)
}

async fn show(options: &Options, named: &str) -> Result<(), Failure> {
    let prompt = find_version(options, named).await?;
    if options.json {
        return print_json(&prompt);
    }
    let labels = prompt["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(label, version)| format!("  ·  {label} → {version}"));
    let name = prompt["name"].as_str().unwrap_or_default();
    let mut head = format!("{name}  ·  version {} of {}", prompt["version"], prompt["newest"]);
    head.extend(labels);
    let variables: Vec<&str> = prompt["variables"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(JsonValue::as_str)
        .collect();
    if !variables.is_empty() {
        head.push_str(&format!("  ·  variables {}", variables.join(", ")));
    }
    print_line(Terminal::from_stdout().dim(one_line(&head)))?;
    print_line(prompt_text(&prompt))
}

async fn render(options: &Options, args: &Render) -> Result<(), Failure> {
    let mut values = template::Values::new();
    for pair in &args.values {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(Failure::usage(
                format!("{pair:?} is not NAME=VALUE"),
                "write each value as NAME=VALUE, such as firm=Acme",
            ));
        };
        values.insert(name.to_owned(), value.to_owned());
    }
    let prompt = find_version(options, &args.prompt).await?;
    let rendered = template::render(prompt_text(&prompt), &values).map_err(|why| {
        Refusal::new(Code::BadArguments, why.to_string())
            .hint(format!("abide prompt render {} NAME=VALUE", args.prompt))
    })?;
    if options.json {
        return print_json(
            &serde_json::json!({"name": prompt["name"], "version": prompt["version"],
            "text": rendered}),
        );
    }
    print_line(Printable::from(rendered))
}

fn prompt_text(prompt: &Map<String, JsonValue>) -> &str {
    prompt["text"].as_str().unwrap_or_default()
}

async fn label(options: &Options, args: Label) -> Result<(), Failure> {
    let named = args.prompt.rsplit_once('@');
    let version = named.map_or(0, |(_, at)| prompt_version(at));
    let Some((name, _)) = named.filter(|_| version > 0) else {
        let detail = format!("{:?} is not NAME@VERSION", args.prompt);
        return Err(Failure::usage(detail, "abide prompt label clerk@2 production"));
    };
    call::call_and_print(options, LabelPrompt::new(name, args.label, version)).await
}
