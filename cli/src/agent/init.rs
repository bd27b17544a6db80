//! `abide init` and `abide agent init`: a folder with a model, a tool, a sandbox and one agent, to be edited. Nothing is
//! written over.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use abide_agent::{Environment, unreadable_on_path};
use abide_schema::{Code, Refusal};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::hint::{agents_option, quote};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};

/// What a new project has.
#[derive(Args, Debug)]
pub(crate) struct ProjectOptions {
    /// The provider of the model: anthropic, openai, gemini, ollama or script; without it, the first whose key is in
    /// the environment, or else script
    #[arg(long, value_name = "PROVIDER", hide_possible_values = true)]
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
/// The files of a database, the copies that migrations make of it, and results of calls.
const IGNORED: (&str, &str) = (".gitignore", "*.db\n*.db-*\n*.db.backup-*\ncalls/\n");

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
            .find(|it| it.settings().key_env.is_some_and(|key| has_key(environment, key)))
            .unwrap_or(Provider::Script)
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

/// Whether the environment has the key of a provider. An empty variable is not set.
fn has_key(environment: &Environment, name: &str) -> bool {
    environment.value(name).is_some_and(|key| !key.trim().is_empty())
}

/// Writes the folder of a project. `project` is the folder that contains it, if it is not the current one.
///
/// # Errors
/// There is a project already, or a file cannot be written.
pub(crate) fn create_project(
    options: &Options,
    folder: &Path,
    project: Option<&Path>,
    args: ProjectOptions,
) -> Result<(), Failure> {
    let provider = args.provider.unwrap_or_else(|| Provider::detect(&options.environment));
    let config = folder.join(CONFIG.0);
    // Also a symbolic link without a target.
    if config.symlink_metadata().is_ok() {
        return Err(existing_project_refusal(folder, &config, args.provider).into());
    }
    let unreadable = unreadable_on_path(&options.environment, &[]);
    let config = CONFIG
        .1
        .replace("MODELS", &provider.models_section())
        .replace("OTHERS", &other_models(provider))
        .replace("READABLE", &format_readable_paths(&unreadable));
    // The configuration comes last: without it the folder is no project, and the command can be repeated.
    let mut files = vec![(AGENT.0, AGENT.1.to_owned()), (IGNORED.0, IGNORED.1.to_owned())];
    if provider == Provider::Script {
        files.push((SCRIPT.0, SCRIPT.1.to_owned()));
    }
    files.push((CONFIG.0, config));
    let mut created = Vec::new();
    let mut kept = Vec::new();
    for (name, text) in files {
        let path = folder.join(name);
        let is_new = create_file(&path, &text).map_err(|why| {
            Refusal::new(Code::BadRequest, format!("{} cannot be written: {why}", path.display()))
                .hint("check the path, and the permissions of its folders")
                .explain_exhaustion(&why)
        })?;
        if is_new { created.push(path) } else { kept.push(path) }
    }
    let report = Report { folder, project, provider, created: &created, kept: &kept };
    report.print(options)
}

fn existing_project_refusal(folder: &Path, config: &Path, provider: Option<Provider>) -> Refusal {
    let detail = format!("{} exists already; nothing was written", config.display());
    let of_folder = agents_option(folder);
    let hint = match provider {
        Some(provider) => {
            let lines = provider.models_section().replace('\n', "\n    ");
            format!("the lines of this provider are:\n    models:\n    {lines}")
        }
        None => format!(
            "`abide agent check{of_folder}` checks it; `abide init FOLDER` makes another project"
        ),
    };
    Refusal::new(Code::Conflict, detail).hint(hint)
}

/// The sections `models` of the other providers, as comments.
fn other_models(provider: Provider) -> String {
    let all = Provider::value_variants().iter().filter(|other| **other != provider);
    let lines = all.flat_map(|other| {
        let section = other.models_section();
        section.lines().map(|line| format!("# {line}")).collect::<Vec<_>>()
    });
    lines.collect::<Vec<_>>().join("\n")
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

/// Creates a file. Returns `false` if it exists.
fn create_file(path: &Path, text: &str) -> io::Result<bool> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // A file that another process creates at the same time is kept, too, and a symbolic link is not followed.
    let mut file = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => file,
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        Err(why) => return Err(why),
    };
    if let Err(why) = file.write_all(text.as_bytes()) {
        // The disk is full. The next attempt would keep a part of the file.
        let _ = fs::remove_file(path);
        return Err(why);
    }
    Ok(true)
}

fn path_names(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

/// What was written, and what to type next.
struct Report<'a> {
    folder: &'a Path,
    /// The folder that contains it, if it is not the current one.
    project: Option<&'a Path>,
    provider: Provider,
    created: &'a [PathBuf],
    kept: &'a [PathBuf],
}

impl Report<'_> {
    fn print(&self, options: &Options) -> Result<(), Failure> {
        let Report { folder, project, provider, created, kept } = *self;
        if options.json {
            return print_json(&json!({"created": path_names(created), "kept": path_names(kept)}));
        }
        for path in created {
            print_line(format!("created  {}", path.display()))?;
        }
        for path in kept {
            print_line(format!("exists   {}", path.display()))?;
        }
        print_line("\nnext:")?;
        if let Some(project) = project {
            print_line(format!("  cd {}", quote(&project.display().to_string())))?;
        }
        let of_folder = if project.is_some() { String::new() } else { agents_option(folder) };
        match provider.settings().key_env {
            Some(key) if !has_key(&options.environment, key) => {
                print_line(format!("  export {key}=…"))?;
            }
            _ => {}
        }
        print_line(format!(
            "  abide agent chat{of_folder} default   # it asks before it writes a note"
        ))?;
        print_line(format!(
            "  abide dev{of_folder}                  # a server that follows changes of the files"
        ))?;
        let config = folder.join(CONFIG.0);
        let config = config.display();
        print_line(if provider == Provider::Script {
            format!(
                "\nIt answers from a script. For a real model, see the section models of {config}."
            )
        } else {
            format!("\nFor another model, or none, see the section models of {config}.")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Provider {
        let variables = variables.iter().map(|(name, key)| (name.to_string(), key.to_string()));
        Provider::detect(&variables.collect())
    }

    /// A project began with a provider whose variable was empty, and its first answer failed.
    #[test]
    fn an_empty_key_chooses_no_provider() {
        assert_eq!(detect(&[]), Provider::Script);
        assert_eq!(detect(&[("ANTHROPIC_API_KEY", "")]), Provider::Script);
        let openai = ("OPENAI_API_KEY", "sk-1");
        assert_eq!(detect(&[("ANTHROPIC_API_KEY", " "), openai]), Provider::Openai);
        assert_eq!(detect(&[("ANTHROPIC_API_KEY", "sk-2"), openai]), Provider::Anthropic);
    }

    /// Whether git ignores a file, because of a pattern that begins with `*`.
    fn is_ignored(name: &str) -> bool {
        let mut patterns = IGNORED.1.lines().filter_map(|pattern| pattern.strip_prefix('*'));
        patterns.any(|pattern| match pattern.strip_suffix('*') {
            Some(middle) => name.contains(middle),
            None => name.ends_with(pattern),
        })
    }

    /// The copy that a migration makes has the data of all tenants, and was committed with the project.
    #[test]
    fn files_with_data_are_ignored_by_git() {
        for (name, expected) in [
            ("agents.db", true),
            ("agents.db-wal", true),
            ("agents.db-lock", true),
            ("agents.db.backup-120412-9f3c21ab", true),
            ("abide.yaml", false),
            ("answers.yaml", false),
        ] {
            assert_eq!(is_ignored(name), expected, "{name}");
        }
    }
}
