//! `abide agent init`: a folder with models, a sandbox and one agent, to be edited. Existing files are kept.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use abide_agent::{Environment, unreadable_on_path};
use abide_schema::{Code, Refusal};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::hint::agents_option;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{note, print_json, print_line};

/// Arguments of `abide agent init`.
#[derive(Args, Debug)]
pub(super) struct Init {
    /// The provider of the model; without it, the first whose key is in the environment, or else openai
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<Provider>,
}

/// The providers that the folder can begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Provider {
    /// Claude; the key is ANTHROPIC_API_KEY
    Anthropic,
    /// GPT; the key is OPENAI_API_KEY
    Openai,
    /// Gemini; the key is GEMINI_API_KEY
    Gemini,
    /// A model on this machine
    Ollama,
    /// Answers from a file, without a network
    Script,
}

/// The files in the folder, with what they contain.
const CONFIG: (&str, &str) = ("abide.yaml", include_str!("init/abide.yaml"));
const AGENT: (&str, &str) = ("agents/default.yaml", include_str!("init/default.yaml"));
const SCRIPT: (&str, &str) = ("answers.yaml", include_str!("init/answers.yaml"));
const IGNORED: (&str, &str) = (".gitignore", "*.db\n*.db-*\ncalls/\n");

/// What `abide.yaml` says of a provider.
struct ProviderSettings {
    id: &'static str,
    /// The environment variable of its key.
    key_env: Option<&'static str>,
    model: &'static str,
}

impl Provider {
    fn settings(self) -> ProviderSettings {
        let (id, key_env, model) = match self {
            Provider::Anthropic => ("anthropic", Some("ANTHROPIC_API_KEY"), "claude-sonnet-5"),
            Provider::Openai => ("openai", Some("OPENAI_API_KEY"), "gpt-4.1"),
            Provider::Gemini => ("gemini", Some("GEMINI_API_KEY"), "gemini-2.5-pro"),
            Provider::Ollama => ("ollama", None, "qwen3"),
            Provider::Script => ("script", None, "scripted"),
        };
        ProviderSettings { id, key_env, model }
    }

    /// The first whose key is in the environment.
    fn detect(environment: &Environment) -> Provider {
        let all = [Provider::Anthropic, Provider::Openai, Provider::Gemini];
        all.into_iter()
            .find(|it| it.settings().key_env.is_some_and(|key| environment.value(key).is_some()))
            .unwrap_or(Provider::Openai)
    }

    /// The section `models` of `abide.yaml`.
    fn models_section(self) -> String {
        let ProviderSettings { id, key_env, model } = self.settings();
        let key = match (self, key_env) {
            (Provider::Script, _) => ", script: answers.yaml".to_owned(),
            (_, Some(key)) => format!(", key_env: {key}"),
            (_, None) => String::new(),
        };
        format!(
            "  default: {{ provider: {id}, model: {model} }}\n  providers:\n    \
             - {{ id: {id}, kind: {id}{key}, models: [{model}] }}"
        )
    }
}

/// Writes the folder.
///
/// # Errors
/// A file cannot be written.
pub(super) fn init(options: &Options, folder: &Path, args: Init) -> Result<(), Failure> {
    let provider = args.provider.unwrap_or_else(|| Provider::detect(&options.environment));
    let unreadable = unreadable_on_path(&options.environment, &[]);
    let config = CONFIG
        .1
        .replace("MODELS", &provider.models_section())
        .replace("READABLE", &format_readable_paths(&unreadable));
    let mut files = vec![(CONFIG.0, config)];
    if provider == Provider::Script {
        files.push((SCRIPT.0, SCRIPT.1.to_owned()));
    }
    for (name, text) in [AGENT, IGNORED] {
        files.push((name, text.to_owned()));
    }
    let mut created = Vec::new();
    let mut kept = Vec::new();
    for (name, text) in files {
        let path = folder.join(name);
        let is_new = create_file(&path, &text).map_err(|why| {
            Refusal::new(Code::BadRequest, format!("{} cannot be written: {why}", path.display()))
        })?;
        if is_new { created.push(path) } else { kept.push(path) }
    }
    print_report(options, folder, provider, &created, &kept)?;
    let config = folder.join(CONFIG.0);
    let models = provider.models_section();
    let has_models = fs::read_to_string(&config).is_ok_and(|text| text.contains(&models));
    if args.provider.is_some() && kept.contains(&config) && !has_models {
        let config = config.display();
        note(format!(
            "note: {config} exists and was not changed. The lines of this provider are:\n\nmodels:\n{models}"
        ));
    }
    Ok(())
}

/// The paths as a list of YAML; an example if there are none.
fn format_readable_paths(paths: &[PathBuf]) -> String {
    // JSON is YAML, too.
    match paths {
        [] => "/opt/toolchain".to_owned(),
        paths => paths
            .iter()
            .map(|path| json!(path.display().to_string()).to_string())
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Creates a file. Returns whether it did not exist.
fn create_file(path: &Path, text: &str) -> io::Result<bool> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // A file that another process creates at the same time is kept, too, and a symbolic link is not followed.
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut file) => file.write_all(text.as_bytes()).map(|()| true),
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(why) => Err(why),
    }
}

fn path_names(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

fn print_report(
    options: &Options,
    folder: &Path,
    provider: Provider,
    created: &[PathBuf],
    kept: &[PathBuf],
) -> Result<(), Failure> {
    if options.json {
        return print_json(&json!({"created": path_names(created), "kept": path_names(kept)}));
    }
    for path in created {
        print_line(format!("created  {}", path.display()))?;
    }
    for path in kept {
        print_line(format!("exists   {}", path.display()))?;
    }
    let of_folder = agents_option(folder);
    print_line("\nnext:")?;
    let config = folder.join(CONFIG.0);
    if !kept.contains(&config) {
        match provider.settings().key_env {
            Some(key) if options.environment.value(key).is_none() => {
                print_line(format!(
                    "  export {key}=…   # or another provider in {}",
                    config.display()
                ))?;
            }
            _ => {}
        }
    }
    print_line(format!("  abide agent check{of_folder}"))?;
    print_line(format!("  abide agent chat{of_folder} default"))
}
