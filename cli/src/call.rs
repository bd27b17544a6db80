//! `abide call`: one call of a reducer.

use std::io::Read as _;
use std::{fs, io};

use abide_client::{Committed, Seq};
use abide_schema::reducer::Arguments;
use abide_schema::{CallArguments, Code, Refusal, integers};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value as JsonValue, json};

use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};
use crate::pairs::{self, Guess, Pairs};
use crate::table;
use crate::terminal::Terminal;

/// Arguments of `abide call`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Call {
    /// The name of the reducer; without it the command lists the reducers
    reducer: Option<String>,

    /// Arguments as key=value, or one file with a JSON object (`-` is stdin)
    #[arg(value_name = "KEY=VALUE|-|FILE")]
    arguments: Vec<String>,

    /// Makes retries safe: a call with the same id runs once and gets the first answer again
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

const EXAMPLES: &str = "\
Arguments:
  key=value    JSON if the value parses as JSON (42, true, null, [1,2], '{\"a\":1}'), else text
  key@=value   always text: title@=42
  key:=value   always JSON; anything else is an error

Examples:
  abide call create_session agent=support title='A lost parcel'
  abide call append_message session_id=s_01J… role=user content='Where is it?'
  abide call claim_handoff id=ho_01J… && abide call resolve_handoff id=ho_01J… resolution=approved
  echo '{\"agent\": \"support\"}' | abide call create_session --json -
  abide call                              # lists the reducers

`curl http://127.0.0.1:7341/v1/schema` also lists the arguments of each reducer.";

/// The result in the form of the server's response.
#[derive(Serialize)]
struct CallOutput<'a> {
    seq: Seq,
    result: &'a JsonValue,
    duplicate: bool,
}

/// Calls the reducer, and shows the result.
///
/// # Errors
/// The arguments are invalid, or the call is refused.
pub(crate) async fn run(options: &Options, args: Call) -> Result<(), Failure> {
    let Some(reducer) = &args.reducer else { return list(options) };
    let pairs = parse_arguments(&args.arguments)?;
    let abide = connect(options, Access::Write).await?;
    let mut request = abide.call_by_name(reducer, &pairs.values);
    if let Some(id) = args.request_id {
        request = request.request_id(id);
    }
    let called = request.await;
    // Closes an engine in this process gracefully, even after a refusal.
    abide.close().await;
    let called = called.map_err(|error| suggest_text_form(options, reducer, error.into(), &pairs));
    print_committed(options, &called?)
}

/// Lists the reducers of the built-in modules and of the program's own, with the first sentence about each.
///
/// # Errors
/// The output cannot be written.
fn list(options: &Options) -> Result<(), Failure> {
    let built_in = abide_reducers::modules();
    let modules = built_in.iter().chain(&options.modules);
    let reducers = modules.flat_map(|module| &module.reducers);
    let mut listed: Vec<(&str, String)> =
        reducers.map(|reducer| (reducer.name, first_sentence(reducer.doc))).collect();
    listed.sort_unstable();
    if options.json {
        let objects = listed.iter().map(|(name, doc)| json!({"name": name, "doc": doc}));
        return print_json(&objects.collect::<Vec<_>>());
    }
    let width = listed.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    listed.iter().try_for_each(|(name, doc)| print_line(format!("{name:width$}  {doc}")))
}

fn first_sentence(doc: &str) -> String {
    let words: Vec<&str> = doc.split_whitespace().collect();
    let ends = words.iter().position(|word| word.ends_with('.'));
    words[..ends.map_or(words.len(), |at| at + 1)].join(" ")
}

/// Makes a call whose reducer is known, and shows the result.
///
/// # Errors
/// The call is refused.
pub(crate) async fn call_and_print(
    options: &Options,
    arguments: impl Arguments,
) -> Result<(), Failure> {
    let abide = connect(options, Access::Write).await?;
    let called = abide.call(arguments).returning().await;
    abide.close().await;
    print_committed(options, &called?)
}

/// Shows the result of a call.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn print_committed(
    options: &Options,
    called: &Committed<JsonValue>,
) -> Result<(), Failure> {
    let Committed { seq, duplicate, value } = called;
    if options.json {
        let answer = CallOutput { seq: *seq, result: value, duplicate: *duplicate };
        return print_json(&answer);
    }
    let terminal = Terminal::from_stdout();
    let again = if *duplicate { "  ·  duplicate, nothing was written" } else { "" };
    print_line(terminal.dim(format!("seq {seq}{again}")))?;
    match value {
        JsonValue::Object(row) => print_line(table::format_fields(terminal, row)),
        other => print_line(format!("  {other}")),
    }
}

/// The arguments, from the command line or from a file.
fn parse_arguments(texts: &[String]) -> Result<Pairs, Failure> {
    match texts {
        [file] if !pairs::is_pair(file) => {
            Ok(Pairs { values: read_object(file)?, guesses: Vec::new() })
        }
        texts => pairs::parse(texts),
    }
}

fn read_object(file: &str) -> Result<Map<String, JsonValue>, Failure> {
    let mut text = String::new();
    let (name, read) = match file {
        "-" => ("stdin", io::stdin().read_to_string(&mut text).map(drop)),
        file => (file, fs::read_to_string(file).map(|read| text = read)),
    };
    let hint = "give arguments as key=value, or as one JSON object in a file or on stdin";
    read.map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => {
            Failure::usage(format!("{name:?} is neither key=value nor a file"), hint)
        }
        _ => Failure::usage(format!("{name} cannot be read: {why}"), hint),
    })?;
    let object = serde_json::from_str(&text)
        .map_err(|why| Failure::usage(format!("{name} is not a JSON object: {why}"), hint))?;
    integers::check(&text)
        .map_err(|found| Failure::usage(format!("{name}: {found}"), integers::HINT))?;
    Ok(object)
}

/// If a value was parsed as JSON and the reducer expects text, adds a hint.
fn suggest_text_form(options: &Options, reducer: &str, failure: Failure, pairs: &Pairs) -> Failure {
    let Failure::Refused(refusal) = failure else { return failure };
    if refusal.code != Code::BadArguments {
        return refusal.into();
    }
    let Some(Guess { key, text }) = find_meant_as_text(options, reducer, pairs) else {
        return refusal.into();
    };
    let hint = format!("{key}={text} was read as JSON; to send the text:  '{key}@={text}'");
    Failure::Refused(Refusal { hint: Some(hint), ..refusal })
}

/// The first value that was parsed as JSON and has to be text, if the reducer then takes the arguments.
fn find_meant_as_text<'a>(options: &Options, reducer: &str, pairs: &'a Pairs) -> Option<&'a Guess> {
    let built_in = abide_reducers::modules();
    let reducers = built_in.iter().chain(&options.modules).flat_map(|module| &module.reducers);
    let decode = reducers.into_iter().find(|known| known.name == reducer)?.decode;
    let mut values = pairs.values.clone();
    let mut first = None;
    for guess in &pairs.guesses {
        let before = decode(&CallArguments::from_members(&values)).err()?;
        let json = values.insert(guess.key.clone(), guess.text.clone().into());
        match decode(&CallArguments::from_members(&values)) {
            Ok(_) => return first.or(Some(guess)),
            // Another value is wrong, too.
            Err(after) if after.detail != before.detail => first = first.or(Some(guess)),
            Err(_) => drop(json.map(|json| values.insert(guess.key.clone(), json))),
        }
    }
    None
}
