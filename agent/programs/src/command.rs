//! What a configuration means for its program: the complete command, and the parser of the output.

use crate::config::{CliConfig, InputFormat, OutputFormat};
use crate::parser::{Parser, TextParser};
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

/// The parser for a configuration: of the configured program, else of the detected one.
pub(crate) fn parser(config: &CliConfig) -> Box<dyn Parser> {
    match config.output_format {
        OutputFormat::Text => Box::new(TextParser),
        OutputFormat::StreamJson => {
            config.program.unwrap_or_else(|| Program::of(&config.command)).parser()
        }
    }
}

/// The complete command: the configured one, missing flags, the session to resume, extra arguments, and a final `-`
/// if the command has one. An error if the session cannot be resumed.
pub(crate) fn command(config: &CliConfig) -> Result<Vec<String>, &'static str> {
    let program = config.program.unwrap_or_else(|| Program::of(&config.command));
    let mut words = config.command.clone();
    let dash = words.pop_if(|word| word == "-" && config.command.len() > 1).is_some();
    // If the program is configured explicitly, the command may be a wrapper, whose arguments are not the program's.
    if config.program.is_none() {
        let missing: Vec<Flag> = program.flags(config);
        for flag in missing.iter().filter(|flag| !flag.stands_in(&config.command)) {
            words.extend(flag.words.iter().map(|word| (*word).to_owned()));
        }
    }
    if let Some(session) = &config.session {
        let known = || program.resume().map(|words| words.iter().map(|w| (*w).into()).collect());
        let template: Vec<String> =
            config.resume_args.clone().or_else(known).ok_or("resume_args are missing")?;
        words.extend(template.into_iter().map(|word| word.replace("{session}", session)));
    }
    words.extend(config.extra_args.iter().cloned());
    // In this mode, Claude Code reads JSON lines from stdin by default and would use the dash as a prompt.
    let streamed = config.input_format == InputFormat::StreamJson;
    words.extend((dash && !streamed).then(|| "-".to_owned()));
    Ok(words)
}

impl Program {
    /// The flags that the parser needs, each with an alternative spelling.
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
            Self::Generic => Vec::new(),
        }
    }

    /// The arguments that resume a session; `None` if unknown.
    const fn resume(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Claude | Self::Gemini => Some(&["--resume", "{session}"]),
            Self::Codex => Some(&["resume", "{session}"]),
            Self::OpenCode => Some(&["--session", "{session}"]),
            Self::Generic => None,
        }
    }
}

#[cfg(test)]
mod tests;
