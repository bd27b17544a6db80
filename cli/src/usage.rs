//! Invalid command lines: the parser's errors as failures with a code and a hint, like all others.

use std::num::{IntErrorKind, ParseIntError};

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::configuration::{CORRECT_TEXT, NOT_TEXT, is_path, variable_name};
use crate::failure::Failure;

/// Whether an error is an answer for people: help or the version.
pub(crate) fn is_help(error: &Error) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(error.kind(), DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion)
}

/// The error in the command line of a program.
pub(crate) fn to_failure(error: &Error, program: &Command) -> Failure {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let wrong = first_word(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            let detail = format!("there is no command {wrong:?}");
            // The parser prefers common beginnings to common letters.
            let own = nearest_command(program, &wrong);
            let nearest = own.or_else(|| best_suggestion(error, ContextKind::SuggestedSubcommand));
            Failure::usage(
                detail,
                format_suggestion(nearest).unwrap_or_else(|| command_form(error, program)),
            )
        }
        ErrorKind::UnknownArgument => {
            let argument = first_word(error, ContextKind::InvalidArg).unwrap_or_default();
            let detail = if argument.starts_with('-') {
                format!("there is no option {argument}")
            } else {
                format!("{argument:?} is an argument too many")
            };
            let nearest = best_suggestion(error, ContextKind::SuggestedArg);
            Failure::usage(
                detail,
                format_suggestion(nearest).unwrap_or_else(|| command_form(error, program)),
            )
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            explain_invalid_value(error, program)
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = context_words(error, ContextKind::InvalidArg);
            if missing.iter().any(|argument| argument == "<FILE>")
                && let Some(hint) = name_file_hint(&command_name(program, typed_words()))
                && is_database_typed(typed_words())
            {
                return Failure::usage(FILE_IS_ARGUMENT, hint);
            }
            let missing = missing.join(" ");
            Failure::usage(format!("{missing} is missing"), command_form(error, program))
        }
        ErrorKind::ArgumentConflict => {
            let argument = first_word(error, ContextKind::InvalidArg).unwrap_or_default();
            let others = context_words(error, ContextKind::PriorArg);
            let detail = if others.iter().all(|other| *other == argument) {
                format!("{argument} is given twice")
            } else {
                format!("{argument} cannot be combined with {}", others.join(", "))
            };
            Failure::usage(detail, command_form(error, program))
        }
        ErrorKind::InvalidUtf8 => match variable_without_text(program) {
            Some(variable) => Failure::usage(format!("{variable}: {NOT_TEXT}"), CORRECT_TEXT),
            None => Failure::usage("an argument is not UTF-8", command_form(error, program)),
        },
        _ => Failure::usage(first_line(error), command_form(error, program)),
    }
}

/// The error of a command whose file is an argument, and which is given the option --db.
pub(crate) const FILE_IS_ARGUMENT: &str =
    "the file is an argument of the command, not the option --db";

// How to name the file of a command whose file is an argument.
pub(crate) const CREATE_FILE: &str = "name the file: `abide db create FILE`";
pub(crate) const OPEN_FILE: &str = "name the file: `abide open FILE`";
pub(crate) const VERIFY_FILE: &str = "name the file: `abide verify FILE`";
pub(crate) const REPLAY_FILE: &str = "name the file: `abide replay FILE --into COPY`";
pub(crate) const UPGRADE_FILE: &str = "name the file: `abide upgrade FILE`";

/// Returns how to name the file of a command, if it is an argument.
fn name_file_hint(command: &str) -> Option<&'static str> {
    match command {
        "abide db create" => Some(CREATE_FILE),
        "abide open" => Some(OPEN_FILE),
        "abide verify" => Some(VERIFY_FILE),
        "abide replay" => Some(REPLAY_FILE),
        "abide upgrade" => Some(UPGRADE_FILE),
        _ => None,
    }
}

/// Returns `true` if the option --db is among the arguments.
fn is_database_typed(words: impl Iterator<Item = String>) -> bool {
    words.take_while(|word| word != "--").any(|word| word == "--db" || word.starts_with("--db="))
}

fn explain_invalid_value(error: &Error, program: &Command) -> Failure {
    let argument = context_words(error, ContextKind::InvalidArg).join(" ");
    let value = context_words(error, ContextKind::InvalidValue).concat();
    let argument = variable_of(&argument, &value, program).unwrap_or(argument);
    let valid = context_words(error, ContextKind::ValidValue);
    if value.is_empty() {
        let hint =
            if valid.is_empty() { command_form(error, program) } else { list_values(&valid) };
        return Failure::usage(format!("{argument} has no value"), hint);
    }
    let reason = value_reason(error);
    let detail = format!("{value:?} is not a valid value of {argument}{reason}");
    Failure::usage(detail, value_hint(error).unwrap_or_else(|| command_form(error, program)))
}

/// Why a value is not valid, with a colon before it, and the fix.
pub(crate) fn explain_value(error: &Error) -> (String, String) {
    (value_reason(error), value_hint(error).unwrap_or_else(|| "correct the value".to_owned()))
}

fn value_reason(error: &Error) -> String {
    let Some(why) = std::error::Error::source(error) else { return String::new() };
    match why.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => ": the number is too large".to_owned(),
        Some(_) => ": expected a whole number".to_owned(),
        None => format!(": {why}"),
    }
}

fn value_hint(error: &Error) -> Option<String> {
    let valid = context_words(error, ContextKind::ValidValue);
    let nearest = best_suggestion(error, ContextKind::SuggestedValue);
    format_suggestion(nearest).or_else(|| (!valid.is_empty()).then(|| list_values(&valid)))
}

/// The environment variable that has a wrong value of an option which was not typed.
fn variable_of(argument: &str, value: &str, program: &Command) -> Option<String> {
    let long = argument.split([' ', '=']).next()?.strip_prefix("--")?;
    let option = format!("--{long}");
    if typed_words().any(|word| word.split('=').next() == Some(option.as_str())) {
        return None;
    }
    let name = command_name(program, typed_words());
    let section: Vec<String> = name.split(' ').skip(1).map(str::to_owned).collect();
    // An option can be that of a command above.
    (0..=section.len())
        .rev()
        .map(|depth| variable_name(&section[..depth], long))
        .find(|variable| std::env::var(variable).is_ok_and(|text| text.contains(value)))
}

/// The first environment variable whose value is not UTF-8, of the options of the command. The parser does not name it.
fn variable_without_text(program: &Command) -> Option<String> {
    let name = command_name(program, typed_words());
    let section: Vec<String> = name.split(' ').skip(1).map(str::to_owned).collect();
    let mut command = program;
    for depth in 0..=section.len() {
        if depth > 0 {
            command = command.find_subcommand(&section[depth - 1])?;
        }
        for option in command.get_arguments().filter(|option| !is_path(option)) {
            let Some(long) = option.get_long() else { continue };
            let declared = option.get_env().and_then(|name| name.to_str()).map(str::to_owned);
            let variable = declared.unwrap_or_else(|| variable_name(&section[..depth], long));
            if std::env::var_os(&variable).is_some_and(|value| value.to_str().is_none()) {
                return Some(variable);
            }
        }
    }
    None
}

/// The texts that the parser attaches to an error.
fn context_words(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

fn first_word(error: &Error, kind: ContextKind) -> Option<String> {
    context_words(error, kind).into_iter().next()
}

/// Returns the last one: the parser sorts its suggestions by how near they are.
fn best_suggestion(error: &Error, kind: ContextKind) -> Option<String> {
    context_words(error, kind).into_iter().next_back()
}

fn format_suggestion(nearest: Option<String>) -> Option<String> {
    nearest.map(|nearest| format!("did you mean {nearest}?"))
}

fn list_values(valid: &[String]) -> String {
    format!("the values are {}", valid.join(", "))
}

/// The form of the command in one line, and where its description is.
fn command_form(error: &Error, program: &Command) -> String {
    // An error about a value does not say which command it is of.
    let command = command_name(program, typed_words());
    let help = format!("`{command} --help` describes the options");
    if command == program.get_name() {
        return format!("`{command} --help` lists the commands and options");
    }
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return help };
    let usage = usage.to_string();
    let form: Vec<&str> = usage.trim_start_matches("Usage:").split_whitespace().collect();
    format!("`{}`; {help}", form.join(" "))
}

/// The command that a misspelled one probably means: one with an edit of at most a third of its letters.
fn nearest_command(program: &Command, wrong: &str) -> Option<String> {
    let mut command = program;
    for word in typed_words().take_while(|word| word != wrong && word != "--") {
        command = command.find_subcommand(&word).unwrap_or(command);
    }
    let names = command.get_subcommands().map(Command::get_name);
    abide_schema::nearest(wrong, names).map(str::to_owned)
}

/// The arguments of this process. What is not UTF-8 is replaced.
fn typed_words() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())
}

/// The command that words name, such as `abide token create`.
fn command_name(program: &Command, words: impl Iterator<Item = String>) -> String {
    let mut command = program;
    let mut name = program.get_name().to_owned();
    for word in words.take_while(|word| word != "--") {
        if let Some(found) = command.find_subcommand(&word) {
            command = found;
            name = format!("{name} {word}");
        }
    }
    name
}

/// The parser's own message.
fn first_line(error: &Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_named_by_its_words() {
        let token = Command::new("token").subcommand(Command::new("create"));
        let program = Command::new("abide").subcommand(token).subcommand(Command::new("sql"));
        let check = |line: &str, expected: &str| {
            assert_eq!(command_name(&program, line.split(' ').map(str::to_owned)), expected);
        };
        check("--json token create ann --role x", "abide token create");
        check("frobnicate", "abide");
        check("sql x -- token", "abide sql");
    }
}
