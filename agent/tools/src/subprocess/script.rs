//! Permitted positions of placeholders in a command. A model's text must be data and never code.
//!
//! A placeholder must be a whole argument, or the whole value of `--name={place}`. For programs that run code, the
//! rule is an allowlist: placeholders of an interpreter must follow a literal program text (a script, or the name
//! of its file); those of a program that starts another one must follow that program. After options that this
//! module does not know, placeholders are refused. The tables of programs are in `programs.rs`. A list of programs
//! is never complete, so commands of unknown programs are also searched for interpreters.

mod programs;

use serde_json::Map;

use self::programs::{INTERPRETERS, Interpreter, NO_PLACEHOLDERS, Options, WRAPPERS};
use super::Stdin;
use crate::template::Template;

/// A word of a command.
enum Word {
    /// A literal.
    Literal(String),
    /// A placeholder.
    Place(String),
    /// `--name={place}`: the option and the placeholder.
    Value(String, String),
}

/// Checks a command.
///
/// # Errors
/// A placeholder could be code, or the program would read code on stdin.
pub(super) fn check(argv: &[Template], written: &[String], stdin: Stdin) -> Result<(), String> {
    let words: Result<Vec<Word>, String> =
        argv.iter().zip(written).map(|(template, text)| Word::parse(template, text)).collect();
    check_command(&words?, stdin)
}

impl Word {
    fn parse(template: &Template, written: &str) -> Result<Word, String> {
        let Some(name) = template.names().next().map(str::to_owned) else {
            let text = template.fill(&Map::new(), str::to_owned).unwrap_or_default();
            return Ok(Word::Literal(text));
        };
        if template.only_place().is_some() {
            return Ok(Word::Place(name));
        }
        match written.split_once('=') {
            Some((option, place)) if is_long(option) && place == format!("{{{name}}}") => {
                Ok(Word::Value(option.to_owned(), name))
            }
            _ => Err(format!(
                "{{{name}}} is only part of an argument: a placeholder must be a whole argument, or the value of --name={{{name}}}"
            )),
        }
    }

    fn place(&self) -> Option<&str> {
        match self {
            Word::Literal(_) => None,
            Word::Place(name) | Word::Value(_, name) => Some(name),
        }
    }

    fn literal(&self) -> Option<&str> {
        match self {
            Word::Literal(text) => Some(text),
            _ => None,
        }
    }
}

/// Returns `true` if the text is `--name`.
fn is_long(option: &str) -> bool {
    let name = option.strip_prefix("--").unwrap_or_default();
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// Checks a program and its arguments.
fn check_command(words: &[Word], stdin: Stdin) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let Some(program) = program.literal() else {
        return Err("the program must not be a placeholder".to_owned());
    };
    let name = programs::name(program);
    if let Some(interpreter) = INTERPRETERS.iter().find(|it| it.names.contains(&name)) {
        return check_interpreter(name, interpreter, arguments, stdin);
    }
    if let Some(wrapper) = WRAPPERS.iter().find(|it| it.names.contains(&name)) {
        return check_wrapper(name, &wrapper.options, wrapper.operands, arguments, stdin);
    }
    if let (true, Some(place)) = (NO_PLACEHOLDERS.contains(&name), first_place(arguments)) {
        return Err(format!(
            "{{{place}}} would be code, because {name} executes its arguments; {WITH_A_FILE}"
        ));
    }
    if name == "find" {
        return check_find(arguments);
    }
    check_options(name, arguments)
}

const WITH_A_FILE: &str = "put the script into an executable file and name that as the command";

fn first_place(words: &[Word]) -> Option<&str> {
    words.iter().find_map(Word::place)
}

/// The result of parsing the options before an operand.
enum Parsed {
    /// This word is the first operand.
    Operand(usize),
    /// An option has literal code; its arguments start at this word.
    Code(usize),
    /// A placeholder or an unknown option.
    Unclear,
    /// There is no operand. An interpreter would read its program from stdin.
    Nothing,
}

fn check_interpreter(
    name: &str,
    interpreter: &Interpreter,
    words: &[Word],
    stdin: Stdin,
) -> Result<(), String> {
    let arguments = match interpreter.options.parse(words) {
        Parsed::Operand(at) => &words[at + 1..],
        Parsed::Code(at) => &words[at..],
        Parsed::Nothing if stdin == Stdin::Arguments => {
            return Err(format!(
                "{name} would read its program from stdin, where the arguments are; {WITH_A_FILE}, or say `stdin: empty`"
            ));
        }
        Parsed::Unclear | Parsed::Nothing => {
            return match first_place(words) {
                Some(place) => Err(format!(
                    "{{{place}}} could be code of {name}: it must follow a literal script, \
                     which receives it as an argument (in sh: \"$1\", after the script sh \"{{{place}}}\")"
                )),
                None => Ok(()),
            };
        }
    };
    if !interpreter.permutes {
        return Ok(());
    }
    // A program that accepts options after its operand could be given a second one.
    match arguments.windows(2).find_map(place_after_option) {
        Some(place) => {
            Err(format!("{{{place}}} follows an option of {name}, where it could be code"))
        }
        None => Ok(()),
    }
}

/// Returns the placeholder of a pair of words if it follows an option.
fn place_after_option(pair: &[Word]) -> Option<&str> {
    let is_option = pair[0].literal().is_some_and(|word| word.starts_with('-') && word != "--");
    pair[1].place().filter(|_| is_option)
}

fn check_wrapper(
    name: &str,
    options: &Options,
    operands: usize,
    words: &[Word],
    stdin: Stdin,
) -> Result<(), String> {
    if let Parsed::Operand(first) = options.parse(words)
        && let Some((own, command_words)) = words[first..].split_at_checked(operands)
        && first_place(own).is_none()
    {
        return check_command(command_words, stdin);
    }
    match first_place(words) {
        Some(place) => Err(format!(
            "{{{place}}} could be the program that {name} starts, or an unknown option of {name}"
        )),
        None => Ok(()),
    }
}

/// The options of `find` that start a program.
const STARTING_OPTIONS: [&str; 4] = ["-exec", "-execdir", "-ok", "-okdir"];

/// `find` starts programs with `-exec` and similar options, and does not support `--` as the end of its
/// expressions.
fn check_find(words: &[Word]) -> Result<(), String> {
    let started = words
        .iter()
        .position(|word| word.literal().is_some_and(|word| STARTING_OPTIONS.contains(&word)));
    let (own, behind) = words.split_at(started.map_or(words.len(), |at| at + 1));
    let dashes = own.iter().position(|word| word.literal() == Some("--")).unwrap_or(own.len());
    if let Some(place) = first_place(&own[dashes..]) {
        return Err(format!("{{{place}}} after -- would still be an expression of find"));
    }
    check_command(behind, Stdin::Empty)
}

/// Options that take code or a command, for any program.
const CODE_OPTIONS: &[&str] = &[
    "--checkpoint-action",
    "--command",
    "--compress-program",
    "--eval",
    "--exec",
    "--execute",
    "--init-command",
    "--pager",
    "--rsh",
    "--rsync-path",
    "--shell",
    "--to-command",
    "--use-compress-program",
];

/// Options that take code or a command, for specific programs.
const CODE_OPTIONS_OF: &[(&str, &[&str])] =
    &[("git", &["-c"]), ("rsync", &["-e"]), ("tar", &["-F", "-I"])];

fn check_options(name: &str, words: &[Word]) -> Result<(), String> {
    let own = CODE_OPTIONS_OF.iter().find(|(program, _)| *program == name);
    let takes_code = |option: &str| {
        CODE_OPTIONS.contains(&option) || own.is_some_and(|(_, options)| options.contains(&option))
    };
    let mut before = "";
    for (at, word) in words.iter().enumerate() {
        let (option, place) = match word {
            Word::Literal(text) => {
                before = text;
                let is_interpreter =
                    INTERPRETERS.iter().any(|it| it.names.contains(&programs::name(text)));
                if is_interpreter && first_place(&words[at..]).is_some() {
                    return check_command(&words[at..], Stdin::Empty);
                } else {
                    continue;
                }
            }
            Word::Place(place) => (std::mem::take(&mut before), place),
            Word::Value(option, place) => (option.as_str(), place),
        };
        if takes_code(option) {
            return Err(format!(
                "{{{place}}} would be code, because {name} executes the value of {option}"
            ));
        }
    }
    Ok(())
}

impl Options {
    fn parse(&self, words: &[Word]) -> Parsed {
        let mut at = 0;
        while let Some(word) = words.get(at) {
            let Some(text) = word.literal() else { return Parsed::Unclear };
            at += 1;
            if text == "--" {
                return match words.get(at) {
                    Some(Word::Literal(_)) => Parsed::Operand(at),
                    Some(_) => Parsed::Unclear,
                    None => Parsed::Nothing,
                };
            }
            if text == "-" {
                return Parsed::Nothing;
            }
            let next = match (text.strip_prefix("--"), text.strip_prefix(['-', '+'])) {
                (Some(long), _) => self.long(long),
                (None, Some(cluster)) => self.cluster(cluster),
                (None, None) if self.assignments && text.contains('=') => Next::Word,
                (None, None) => return Parsed::Operand(at - 1),
            };
            match next {
                Next::Word => {}
                Next::Unknown => return Parsed::Unclear,
                Next::ProgramFromStdin => return Parsed::Nothing,
                Next::Arguments => return Parsed::Code(at),
                Next::Value | Next::Code => match words.get(at) {
                    Some(Word::Literal(_)) if matches!(next, Next::Code) => {
                        return Parsed::Code(at + 1);
                    }
                    Some(Word::Literal(_)) => at += 1,
                    _ => return Parsed::Unclear,
                },
            }
        }
        Parsed::Nothing
    }

    fn long(&self, option: &str) -> Next {
        let (name, has_value) =
            option.split_once('=').map_or((option, false), |(name, _)| (name, true));
        let is_of = |list: &[&str]| list.contains(&name);
        match has_value {
            true if is_of(self.long_code) => Next::Arguments,
            true if is_of(self.long_valued) => Next::Word,
            false if is_of(self.long_code) => Next::Code,
            false if is_of(self.long_valued) => Next::Value,
            false if is_of(self.long_flags) => Next::Word,
            _ => Next::Unknown,
        }
    }

    /// Parses a group of short options, such as `-eu`.
    fn cluster(&self, cluster: &str) -> Next {
        for (at, letter) in cluster.char_indices() {
            let ends = at + letter.len_utf8() == cluster.len();
            match letter {
                _ if self.stdin.contains(letter) => return Next::ProgramFromStdin,
                _ if self.flags.contains(letter) => {}
                _ if self.optional.contains(letter) => return Next::Word,
                _ if self.valued.contains(letter) => {
                    return if ends { Next::Value } else { Next::Word };
                }
                _ if self.code.contains(letter) => {
                    let attached = !ends && !self.code_is_next_word;
                    return if attached { Next::Arguments } else { Next::Code };
                }
                _ => return Next::Unknown,
            }
        }
        Next::Word
    }
}

/// The value after an option.
#[derive(Clone, Copy)]
enum Next {
    /// Another word.
    Word,
    /// Its value.
    Value,
    /// Its code.
    Code,
    /// The arguments of its attached code.
    Arguments,
    /// The program comes from stdin, so the rest is irrelevant.
    ProgramFromStdin,
    /// The option is unknown.
    Unknown,
}

#[cfg(test)]
mod tests;
