//! The command of a configured program, and the parser of its output.

use crate::config::{CliConfig, InputFormat, OutputFormat};
use crate::dialogue::Dialogue;
use crate::dialogue::acp::AcpDialogue;
use crate::dialogue::app_server::AppServer;
use crate::dialogue::claude_control::ClaudeControl;
use crate::dialogue::text_prompt::TextPrompt;
use crate::parser::{CustomParser, Parser, ParserChoice, TextParser};
use crate::program::Program;

/// A flag and its value.
struct Flag {
    words: &'static [&'static str],
    also: Option<&'static str>,
}

impl Flag {
    fn stands_in(&self, arguments: &[String]) -> bool {
        let [name, ..] = self.words else { return true };
        arguments.iter().any(|word| {
            let word = word.split_once('=').map_or(word.as_str(), |(name, _)| name);
            word == *name || Some(word) == self.also
        })
    }
}

/// Returns the parser for a configuration: the configured one, else of the configured program, else of the detected
/// one. An error if it is one in Rust: the caller has to pass it.
fn parser(config: &CliConfig) -> Result<Box<dyn Parser>, String> {
    match (&config.parser, config.output_format) {
        (Some(ParserChoice::Rules(rules)), _) => Ok(Box::new(CustomParser::new((**rules).clone()))),
        (Some(ParserChoice::Named(name)), _) => Err(format!("there is no parser {name}")),
        (None, OutputFormat::Text) => Ok(Box::new(TextParser)),
        (None, OutputFormat::StreamJson) => Ok(config.kind().parser()),
    }
}

/// Returns the conversation of a run: the protocol of the program if it has one, else the prompt as text or as JSON
/// lines, with the given parser or that of the configuration.
pub(crate) fn dialogue(
    config: &CliConfig,
    given: Option<Box<dyn Parser>>,
) -> Result<Box<dyn Dialogue>, String> {
    if given.is_none() && config.kind().has_protocol() {
        let current = std::env::current_dir()
            .map_err(|why| format!("there is no working directory: {why}"))?;
        let path = current.join(config.working_dir.clone().unwrap_or_default());
        let folder = path.to_string_lossy().into_owned();
        let session = config.session.clone();
        return Ok(match config.kind() {
            Program::CodexAppServer => Box::new(AppServer::new(folder, session)),
            _ => Box::new(AcpDialogue::new(folder, session)),
        });
    }
    let parser = given.map_or_else(|| parser(config), Ok)?;
    Ok(match config.input_format {
        InputFormat::Text => Box::new(TextPrompt(parser)),
        InputFormat::StreamJson => Box::new(ClaudeControl::new(parser)),
    })
}

/// Returns the complete command: the configured one, missing flags, the session to resume, extra arguments, and a final
/// `-` if the command has one. An error if the session cannot be resumed.
pub(crate) fn command(config: &CliConfig) -> Result<Vec<String>, &'static str> {
    let program = config.kind();
    let mut words = config.command.clone();
    let dash = words.pop_if(|word| word == "-" && config.command.len() > 1).is_some();
    // A command whose program is configured may have any name: a link, or a wrapper that passes its arguments on.
    let missing: Vec<Flag> = program.flags(config);
    for flag in missing.iter().filter(|flag| !flag.stands_in(&config.command)) {
        words.extend(flag.words.iter().map(|word| (*word).to_owned()));
    }
    // A protocol has a request for that.
    if let Some(session) = config.session.as_ref().filter(|_| !program.has_protocol()) {
        let template: Vec<String> = config
            .resume_args
            .clone()
            .or_else(|| program.resume().map(|words| words.iter().map(|w| (*w).into()).collect()))
            .ok_or("resume_args are missing")?;
        check_session(session)?;
        words.extend(template.into_iter().map(|word| word.replace("{session}", session)));
    }
    words.extend(config.extra_args.iter().cloned());
    // In this mode, Claude Code reads JSON lines from stdin by default and would use the dash as a prompt.
    let streamed = config.input_format == InputFormat::StreamJson;
    words.extend((dash && !streamed).then(|| "-".to_owned()));
    Ok(words)
}

/// Maximum number of bytes of a session id that becomes an argument.
const SESSION_BYTES: usize = 256;

/// Checks the id of a session before it becomes an argument. A program has reported it: as `--some-flag` it would change what the
/// next process may do, and as a path which session it resumes.
fn check_session(id: &str) -> Result<(), &'static str> {
    let begins_well = id.starts_with(|c: char| c.is_ascii_alphanumeric());
    let has_others = id.contains(|c: char| !(c.is_ascii_alphanumeric() || "._:+=@-".contains(c)));
    if id.len() > SESSION_BYTES || !begins_well || has_others {
        return Err("its id may have letters, digits and ._:+=@- only, begins with a letter or a \
                    digit, and has at most 256 bytes");
    }
    Ok(())
}

impl Program {
    /// Returns the flags that the parser needs, each with an alternative spelling.
    fn flags(self, config: &CliConfig) -> Vec<Flag> {
        let input = config.input_format == InputFormat::StreamJson;
        match self {
            _ if config.output_format == OutputFormat::Text => Vec::new(),
            Self::Claude => {
                let mut flags = vec![
                    Flag { also: Some("-p"), words: &["--print"] },
                    Flag { also: None, words: &["--output-format", "stream-json"] },
                    Flag { also: Some("-v"), words: &["--verbose"] },
                ];
                if input {
                    flags.push(Flag { also: None, words: &["--input-format", "stream-json"] });
                    flags.push(Flag { also: None, words: &["--permission-prompt-tool", "stdio"] });
                }
                flags
            }
            Self::Codex => vec![
                Flag { also: Some("e"), words: &["exec"] },
                Flag { also: Some("--experimental-json"), words: &["--json"] },
            ],
            Self::Gemini => {
                vec![Flag { also: Some("-o"), words: &["--output-format", "stream-json"] }]
            }
            Self::OpenCode => vec![
                Flag { also: None, words: &["run"] },
                Flag { also: None, words: &["--format", "json"] },
            ],
            Self::Acp | Self::CodexAppServer | Self::Generic => Vec::new(),
        }
    }

    /// Returns the arguments that resume a session; `None` if unknown.
    const fn resume(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Claude | Self::Gemini => Some(&["--resume", "{session}"]),
            Self::Codex => Some(&["resume", "{session}"]),
            Self::OpenCode => Some(&["--session", "{session}"]),
            Self::Acp | Self::CodexAppServer | Self::Generic => None,
        }
    }
}

#[cfg(test)]
mod tests;
