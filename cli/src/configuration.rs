//! The configuration: every option of every command is also a key of the file `abide.toml` and an environment variable.
//! Keys and variables follow from the parser, so there is no second list of options. The command line comes first, then
//! the environment, then the file, then the default.
//!
//! The option `--listen` of `abide serve` is the key `listen` in the table `serve` and the variable `ABIDE_SERVE_LISTEN`.
//! A global option has no table: `db`, `ABIDE_DB`.

mod file;

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::iter::once;
use std::path::{Path, PathBuf};

use abide_schema::nearest;
use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};

use self::file::{ConfigFile, Entry, Value, join};
use crate::failure::Failure;
use crate::{environment, usage};

/// What the configuration of this process is, for the commands that explain it.
#[derive(Debug, Default)]
pub(crate) struct Configuration {
    /// The file, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// The mistakes in the file, in its order.
    pub(crate) problems: Vec<Problem>,
    /// The mistakes in variables. The parser reports one only to a command that has the option.
    pub(crate) variable_problems: Vec<Problem>,
    /// All options, in the order of the commands.
    pub(crate) settings: Vec<Setting>,
    /// The global options that the command line has, with their values.
    pub(crate) typed: BTreeMap<String, String>,
}

/// An option and its value.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Its key in the file, such as `serve.listen`.
    pub(crate) key: String,
    /// Its environment variable.
    pub(crate) variable: String,
    /// Its value. A secret has none here.
    pub(crate) value: Option<String>,
    /// Where the value is from.
    pub(crate) origin: Origin,
    /// Whether it is a secret, of which only a file or the environment has the value.
    pub(crate) is_secret: bool,
    /// The name without the tables.
    long: String,
}

/// Where the value of an option is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The program.
    Default,
    /// This line of the file.
    File(usize),
    /// The environment.
    Variable,
    /// The command line.
    CommandLine,
}

impl Origin {
    /// The order in which places decide, the last one first.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Origin::Default => 0,
            Origin::File(_) => 1,
            Origin::Variable => 2,
            Origin::CommandLine => 3,
        }
    }
}

/// A mistake in the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// The file with the line, or the variable.
    place: String,
    detail: String,
    hint: String,
}

impl Problem {
    fn new(
        place: impl Into<String>,
        detail: impl Into<String>,
        hint: impl Into<String>,
    ) -> Problem {
        Problem { place: place.into(), detail: detail.into(), hint: hint.into() }
    }

    /// Returns the failure of a command whose configuration has this mistake and others.
    pub(crate) fn to_failure(&self, others: usize) -> Failure {
        let more = if others == 0 { "" } else { "; `abide config check` lists more mistakes" };
        Failure::usage(format!("{}: {}", self.place, self.detail), format!("{}{more}", self.hint))
    }
}

impl Configuration {
    /// Adds the configuration to the options of a program: the variables, and the values of the file as defaults.
    pub(crate) fn apply(program: Command, words: &[OsString]) -> (Command, Configuration) {
        let mut configuration = Configuration::default();
        let file = ConfigFile::find(words).unwrap_or_else(|problem| {
            configuration.problems.push(problem);
            None
        });
        if let Some(file) = &file {
            configuration.file = Some(file.path.clone());
        }
        let mut application =
            Application { file, configuration, used: BTreeSet::new(), sections: BTreeSet::new() };
        let program = application.extend(program, &[]);
        application.report_unknown();
        (program, application.configuration)
    }

    /// Returns where the value of a global option is from.
    pub(crate) fn origin(&self, key: &str) -> Origin {
        if self.typed.contains_key(key) {
            return Origin::CommandLine;
        }
        let found = self.settings.iter().find(|setting| setting.key == key);
        found.map_or(Origin::Default, |setting| setting.origin)
    }

    /// Returns the variables of options that have a value and no secret. A process that starts tools keeps them.
    pub(crate) fn public_variables(&self) -> BTreeSet<String> {
        self.settings
            .iter()
            .filter(|setting| setting.origin == Origin::Variable && !setting.is_secret)
            .map(|setting| setting.variable.clone())
            .collect()
    }

    /// Returns the variables of the environment that look like those of options and are not, with the variables that are
    /// probably meant.
    pub(crate) fn misspelled_variables(&self) -> Vec<(String, String)> {
        let known: Vec<&str> = self.settings.iter().map(|it| it.variable.as_str()).collect();
        env::vars_os()
            .filter_map(|(name, _)| name.into_string().ok())
            .filter(|name| name.starts_with(PREFIX) && !known.contains(&name.as_str()))
            .filter(|name| !OTHER_VARIABLES.contains(&name.as_str()))
            .filter_map(|name| {
                let same_options: Vec<&str> = self
                    .settings
                    .iter()
                    .filter(|setting| variable_name(&[], &setting.long) == name)
                    .map(|setting| setting.variable.as_str())
                    .collect();
                let meant = if same_options.is_empty() {
                    nearest(&name, known.iter().copied())?.to_owned()
                } else {
                    same_options.join(" or ")
                };
                Some((name, meant))
            })
            .collect()
    }
}

/// What the variables of options begin with.
const PREFIX: &str = "ABIDE_";

/// Variables that are not those of options: the levels and the format of the log, the program that SDKs start, the context of a
/// tool, and the hidden environment.
const OTHER_VARIABLES: [&str; 5] =
    ["ABIDE_LOG", "ABIDE_LOG_FORMAT", "ABIDE_BINARY", "ABIDE_CONTEXT", environment::HANDLE];

/// Returns the variable of an option of the command with this path.
pub(crate) fn variable_name(section: &[String], long: &str) -> String {
    let words: Vec<&str> = section.iter().map(String::as_str).chain([long]).collect();
    format!("{PREFIX}{}", words.join("_").replace('-', "_").to_ascii_uppercase())
}

/// The walk over the commands of a program.
struct Application {
    file: Option<ConfigFile>,
    configuration: Configuration,
    /// The entries of the file that are options.
    used: BTreeSet<usize>,
    /// The paths of all commands.
    sections: BTreeSet<Vec<String>>,
}

impl Application {
    fn extend(&mut self, command: Command, section: &[String]) -> Command {
        self.sections.insert(section.to_vec());
        let command = command.mut_args(|arg| self.configure(arg, section));
        command.mut_subcommands(|below| {
            let name = below.get_name().to_owned();
            let section: Vec<String> = section.iter().cloned().chain(once(name)).collect();
            self.extend(below, &section)
        })
    }

    fn configure(&mut self, arg: Arg, section: &[String]) -> Arg {
        let Some(long) = arg.get_long().map(str::to_owned) else { return arg };
        let declared = arg.get_env().and_then(|name| name.to_str());
        let variable = declared.map_or_else(|| variable_name(section, &long), str::to_owned);
        let is_secret = arg.is_hide_env_values_set();
        let defaults: Vec<String> = arg
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy().into_owned())
            .collect();
        let mut setting = Setting {
            key: join(section, &long),
            variable: variable.clone(),
            value: (!defaults.is_empty()).then(|| defaults.join(",")),
            origin: Origin::Default,
            is_secret,
            long,
        };
        // `yes`, `on` and `1` are values of variables, too.
        let mut arg = if is_flag(&arg) { arg.value_parser(BoolishValueParser::new()) } else { arg };
        if let Some((line, values)) = self.values_of_file(&arg, section, &setting) {
            setting.value = Some(values.join(","));
            setting.origin = Origin::File(line);
            arg = arg.required(false).default_values(values).hide_default_value(true);
        }
        if let Some(value) = env::var_os(&variable).filter(|value| !value.is_empty()) {
            setting.origin = Origin::Variable;
            setting.value = None;
            if value.to_str().is_none() && !is_path(&arg) {
                let problem = Problem::new(&variable, NOT_TEXT, CORRECT_TEXT);
                self.configuration.variable_problems.push(problem);
            }
            if !is_secret {
                setting.value = Some(value.to_string_lossy().into_owned());
                self.check_variable(&arg, &variable, &value);
            }
            // A variable has one text: the values of an option that can be repeated are separated by commas.
            if matches!(arg.get_action(), ArgAction::Append) && arg.get_value_delimiter().is_none()
            {
                arg = arg.value_delimiter(',');
            }
            if arg.get_env().is_none() {
                arg = arg.env(variable).hide_env(true);
            }
        } else if arg.get_env().is_some() {
            // The parser would take the empty text of a variable as its value.
            arg = arg.env(None::<&'static str>);
        }
        self.configuration.settings.push(setting);
        arg
    }

    /// The values that the file has for an option, with the line.
    fn values_of_file(
        &mut self,
        arg: &Arg,
        section: &[String],
        setting: &Setting,
    ) -> Option<(usize, Vec<String>)> {
        let file = self.file.as_ref()?;
        let mut entries = file.entries.iter().enumerate();
        let (nth, entry) =
            entries.find(|(_, entry)| entry.section == section && entry.key == setting.long)?;
        self.used.insert(nth);
        let place = file.place(entry.line);
        let folder = file.path.parent().unwrap_or(Path::new(""));
        match read_values(arg, entry, setting, folder) {
            Ok(values) => Some((entry.line, values)),
            Err((detail, hint)) => {
                self.configuration.problems.push(Problem::new(place, detail, hint));
                None
            }
        }
    }

    fn check_variable(&mut self, arg: &Arg, variable: &str, value: &std::ffi::OsStr) {
        let Some(text) = value.to_str() else { return };
        let values: Vec<String> = match arg.get_action() {
            ArgAction::Append => text.split(',').map(str::to_owned).collect(),
            _ => vec![text.to_owned()],
        };
        if let Err((reason, hint)) = check_values(arg, &values) {
            let detail = format!("{text:?} is not a valid value{reason}");
            self.configuration.variable_problems.push(Problem::new(variable, detail, hint));
        }
    }

    /// Reports the keys and tables that no option or command has.
    fn report_unknown(&mut self) {
        let Some(file) = &self.file else { return };
        let mut found: Vec<(usize, Problem)> = Vec::new();
        for (nth, entry) in file.entries.iter().enumerate() {
            if !self.used.contains(&nth) {
                let detail = format!("there is no key {}", entry.name());
                let hint = self.key_hint(entry);
                found.push((entry.line, Problem::new(file.place(entry.line), detail, hint)));
            }
        }
        for section in &file.sections {
            let has_keys = file.entries.iter().any(|it| it.section.starts_with(&section.path));
            if !has_keys && !self.sections.contains(&section.path) {
                let name = section.path.join(".");
                let detail = format!("there is no command {name:?} for the table [{name}]");
                let hint = "a table has the name of a command: [serve], [agent.run]";
                found.push((section.line, Problem::new(file.place(section.line), detail, hint)));
            }
        }
        found.sort_by_key(|(line, _)| *line);
        self.configuration.problems.extend(found.into_iter().map(|(_, problem)| problem));
    }

    /// The key that is probably meant.
    fn key_hint(&self, entry: &Entry) -> String {
        let settings = &self.configuration.settings;
        if settings.iter().any(|it| it.key == entry.key) {
            return format!("write {} above the first table", entry.key);
        }
        let others: Vec<&str> = settings
            .iter()
            .filter(|setting| setting.long == entry.key)
            .map(|setting| setting.key.as_str())
            .collect();
        if !others.is_empty() {
            return format!("did you mean {}?", others.join(" or "));
        }
        let table = entry.section.join(".");
        let keys = || settings.iter().map(|it| it.key.as_str());
        let of_table = keys().filter_map(|key| {
            let (its_table, last) = key.rsplit_once('.').unwrap_or(("", key));
            (its_table == table).then_some(last)
        });
        if let Some(meant) = nearest(&entry.key, of_table) {
            return format!("did you mean {}?", join(&entry.section, meant));
        }
        match nearest(&entry.name(), keys()) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "`abide config show --json` lists all keys".to_owned(),
        }
    }
}

/// What is wrong with a value that is not UTF-8, and how to correct it.
pub(crate) const NOT_TEXT: &str = "the value is not UTF-8";
pub(crate) const CORRECT_TEXT: &str = "correct the value of the variable, or unset it";

/// Returns `true` if the value of an option is a path, which need not be UTF-8.
pub(crate) fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

fn is_flag(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// The values of an option in the file, as words of a command line. A path is relative to the folder of the file.
///
/// # Errors
/// What is wrong, and a hint.
fn read_values(
    arg: &Arg,
    entry: &Entry,
    setting: &Setting,
    folder: &Path,
) -> Result<Vec<String>, (String, String)> {
    let name = &setting.key;
    if setting.is_secret {
        let detail = format!("{name} is a secret, and this file is not for secrets");
        let hint = format!("name a file that has it: {name}-file = \"PATH\"");
        return Err((detail, hint));
    }
    if name == CONFIG_KEY {
        let detail = "the file cannot name another one".to_owned();
        return Err((detail, "name it with --config or ABIDE_CONFIG".to_owned()));
    }
    let is_list =
        matches!(arg.get_action(), ArgAction::Append) || arg.get_value_delimiter().is_some();
    let (values, expected) = match &entry.value {
        Value::Flag(flag) if is_flag(arg) => return Ok(vec![flag.to_string()]),
        _ if is_flag(arg) => (None, "true or false"),
        Value::One(text) => (Some(vec![text.clone()]), ""),
        Value::Many(texts) if is_list => (Some(texts.clone()), ""),
        _ if is_list => (None, "a text or a list of texts"),
        _ => (None, "a text in quotes, or a whole number"),
    };
    let Some(values) = values else {
        let found = match &entry.value {
            Value::Flag(_) => "boolean",
            Value::One(_) => "text or a number",
            Value::Many(_) => "list",
            Value::Other(kind) => *kind,
        };
        return Err((
            format!("{name} has a value of another type: {found}"),
            format!("the value is {expected}"),
        ));
    };
    check_values(arg, &values).map_err(|(reason, hint)| {
        let value = values.join(",");
        (format!("{value:?} is not a valid value of {name}{reason}"), hint)
    })?;
    if !is_path(arg) || folder == Path::new("") {
        return Ok(values);
    }
    let paths = values.iter().map(|path| folder.join(path).to_string_lossy().into_owned());
    Ok(paths.collect())
}

/// The option that names the file.
const CONFIG_KEY: &str = "config";

/// Checks values with the parser of their option.
///
/// # Errors
/// The reason, beginning with a colon unless it is empty, and a hint.
fn check_values(arg: &Arg, values: &[String]) -> Result<(), (String, String)> {
    const NAME: &str = "value";
    let probe = Arg::new(NAME)
        .long(NAME)
        .value_parser(arg.get_value_parser().clone())
        .value_delimiter(arg.get_value_delimiter())
        .action(ArgAction::Append);
    let options = values.iter().map(|value| format!("--{NAME}={value}"));
    let words = once("abide".to_owned()).chain(options);
    match Command::new("abide").arg(probe).try_get_matches_from(words) {
        Ok(_) => Ok(()),
        Err(error) => Err(usage::explain_value(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with an option of each kind.
    fn program() -> Command {
        let serve = Command::new("serve")
            .arg(Arg::new("listen").long("listen").default_value("127.0.0.1:7341"))
            .arg(Arg::new("host").long("host").action(ArgAction::Append))
            .arg(Arg::new("jwt").long("jwt").value_parser(clap::value_parser!(PathBuf)))
            .arg(Arg::new("count").long("count").value_parser(clap::value_parser!(u64)));
        Command::new("abide")
            .arg(Arg::new("db").long("db").global(true).value_parser(clap::value_parser!(PathBuf)))
            .arg(Arg::new("json").long("json").global(true).action(ArgAction::SetTrue))
            .arg(Arg::new("config").long("config").global(true))
            .arg(Arg::new("secret").long("secret").global(true).hide_env_values(true))
            .subcommand(serve)
            .subcommand(Command::new("sql"))
    }

    fn configured(text: &str) -> (Command, Configuration) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.toml");
        std::fs::write(&file, text).expect("it is written");
        let words = ["abide".into(), "--config".into(), file.into_os_string()];
        Configuration::apply(program(), &words)
    }

    fn values(text: &str, id: &str) -> Vec<String> {
        let (program, configuration) = configured(text);
        assert!(configuration.problems.is_empty(), "{:?}", configuration.problems);
        let matches = program.try_get_matches_from(["abide", "serve"]).expect("it is parsed");
        let (_, serve) = matches.subcommand().expect("a command");
        serve
            .get_raw(id)
            .into_iter()
            .flatten()
            .map(|value| value.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn the_file_has_the_defaults_of_options() {
        assert_eq!(values("", "listen"), ["127.0.0.1:7341"]);
        assert_eq!(values("[serve]\nlisten = \"[::1]:1\"", "listen"), ["[::1]:1"]);
        assert_eq!(values("[serve]\nhost = [\"a\", \"b\"]", "host"), ["a", "b"]);
        assert_eq!(values("[serve]\ncount = 0x10", "count"), ["16"]);
        assert_eq!(values("json = true", "json"), ["true"]);
        assert_eq!(values("[serve]\njwt = \"/x.json\"", "jwt"), ["/x.json"]);
        let beside = values("[serve]\njwt = \"x.json\"", "jwt");
        assert!(beside[0].ends_with("/x.json"), "{beside:?}");
    }

    #[test]
    fn a_mistake_is_one_sentence_with_its_line_and_the_fix() {
        for (text, expected) in [
            ("\njsn = true", "2: there is no key jsn — did you mean json?"),
            ("listen = \"a\"", "1: there is no key listen — did you mean serve.listen?"),
            (
                "[serve]\nlistn = \"a\"",
                "2: there is no key serve.listn — did you mean serve.listen?",
            ),
            ("[serve]\ndb = \"a\"", "2: there is no key serve.db — write db above the first table"),
            (
                "[srv]",
                "1: there is no command \"srv\" for the table [srv] — a table has the name of a \
                      command: [serve], [agent.run]",
            ),
            (
                "json = \"yes\"",
                "1: json has a value of another type: text or a number — the value is \
                               true or false",
            ),
            (
                "db = 1.5",
                "1: db has a value of another type: float — the value is a text in quotes, \
                          or a whole number",
            ),
            (
                "[serve]\nhost = [1, \"a\"]",
                "2: serve.host has a value of another type: a list of other values — the value is \
                 a text or a list of texts",
            ),
            (
                "[serve]\ncount = \"x\"",
                "2: \"x\" is not a valid value of serve.count: expected a whole number — \
                 correct the value",
            ),
            (
                "secret = \"s3cret\"",
                "1: secret is a secret, and this file is not for secrets — name a \
                                    file that has it: secret-file = \"PATH\"",
            ),
            (
                "config = \"a\"",
                "1: the file cannot name another one — name it with --config or \
                               ABIDE_CONFIG",
            ),
        ] {
            let (_, configuration) = configured(text);
            let problems = configuration.problems.iter().map(|problem| {
                let (_, line) = problem.place.rsplit_once(':').expect("it has a line");
                format!("{line}: {} — {}", problem.detail, problem.hint)
            });
            assert_eq!(problems.collect::<Vec<_>>(), [expected], "{text}");
        }
    }

    #[test]
    fn a_variable_has_the_path_of_its_command() {
        assert_eq!(variable_name(&[], "db"), "ABIDE_DB");
        let section = ["agent".to_owned(), "run".to_owned()];
        assert_eq!(variable_name(&section, "any-definition"), "ABIDE_AGENT_RUN_ANY_DEFINITION");
    }
}
