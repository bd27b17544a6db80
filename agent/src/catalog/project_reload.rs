//! Reloads `abide.yaml` while a runtime uses it: a changed file replaces models, tools, MCP servers, the sandbox, the
//! deny list and the middleware of all agents. It is checked as a whole first, so a file that cannot work changes
//! nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use abide_definitions::project_config::ProjectConfig;
use abide_models::Models;
use abide_tools::{
    BackendName, ConfiguredTools, McpError, McpServer, McpServerConfig, McpStatus,
    PreparedMcpServer, Sandbox, Tools, ToolsError,
};
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use crate::catalog::agents::{CONFIG, Catalog, Problem};
use crate::catalog::folder_check;
use crate::catalog::project::{self, ProjectError, ProjectSource};
use crate::catalog::shared_setting::SharedSetting;

/// The sections whose changes a runtime cannot take over: what they configure is used by parts that live as long as the
/// process.
const FIXED_SECTIONS: [&str; 4] = ["mcp", "traces", "prompts", "runs"];

/// The sections that configure tools, except `mcp_servers`, whose servers are compared one by one.
const TOOL_SECTIONS: [&str; 4] = ["sandbox", "builtin_tools", "http_tools", "programs"];

/// The changes of one part of a folder, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderChange {
    /// The part: `agents`, or a section of `abide.yaml`.
    pub part: String,
    /// The new names.
    pub added: Vec<String>,
    /// The names whose content has changed.
    pub changed: Vec<String>,
    /// The names that are gone.
    pub removed: Vec<String>,
}

/// The result of reading a changed folder again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderChanges {
    /// The changes that are in effect.
    pub changes: Vec<FolderChange>,
    /// The changes that take effect later, and what does not work although the file is valid. One sentence each.
    pub notes: Vec<String>,
    /// The problems. The former configuration and definitions stay.
    pub problems: Vec<Problem>,
}

impl FolderChange {
    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    /// Returns the difference between two sets of named values.
    pub(crate) fn between<T: PartialEq>(
        part: &str,
        before: &BTreeMap<String, T>,
        after: &BTreeMap<String, T>,
    ) -> Option<FolderChange> {
        let names = |of: &BTreeMap<String, T>, is_wanted: &dyn Fn(&String, &T) -> bool| {
            let found = of.iter().filter(|(name, value)| is_wanted(name, value));
            found.map(|(name, _)| name.clone()).collect()
        };
        let change = FolderChange {
            part: part.to_owned(),
            added: names(after, &|name, _| !before.contains_key(name)),
            changed: names(after, &|name, value| before.get(name).is_some_and(|it| it != value)),
            removed: names(before, &|name, _| !after.contains_key(name)),
        };
        (!change.is_empty()).then_some(change)
    }
}

impl FolderChanges {
    /// Returns `true` if there is nothing to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == FolderChanges::default()
    }
}

/// The parts of a running project that a configuration replaces.
pub(crate) struct LiveProject {
    pub(crate) tools: Tools,
    pub(crate) models: SharedSetting<Models>,
    pub(crate) sandbox: SharedSetting<Option<BackendName>>,
    /// It has the middleware of all agents, and checks a new one.
    pub(crate) catalog: Arc<Catalog>,
}

/// The configuration that a runtime uses, and what was started for it.
pub(crate) struct ProjectReload {
    /// Its `text` is the text that was read last, also if it is invalid. Its `sections` are those in effect.
    source: ProjectSource,
    servers: Vec<McpServer>,
    sandbox: Option<Sandbox>,
    /// The sections of the last text that could be parsed, whether they took effect or not. Changes of the scripts that
    /// they name are watched.
    last_sections: Map<String, Value>,
    /// The scripts that were read last.
    last_scripts: Scripts,
    /// The scripts in effect.
    active_scripts: Scripts,
    /// Whether the text that was read last was refused.
    is_broken: bool,
}

/// The texts of the scripts of providers of the kind `script`, by the id of the provider; `None` if a file cannot be
/// read.
type Scripts = BTreeMap<String, Option<String>>;

/// A configuration that was checked and can take effect.
struct StagedConfig {
    /// `None` if the section has not changed.
    models: Option<Models>,
    sandbox: Option<Sandbox>,
    tools: ConfiguredTools,
    /// New MCP servers, and those that have changed.
    servers: Vec<PreparedMcpServer>,
}

impl ProjectReload {
    pub(crate) fn new(
        source: ProjectSource,
        servers: Vec<McpServer>,
        sandbox: Option<Sandbox>,
    ) -> ProjectReload {
        let scripts = read_scripts(&source.folder, &source.sections);
        ProjectReload {
            last_sections: source.sections.clone(),
            last_scripts: scripts.clone(),
            active_scripts: scripts,
            source,
            servers,
            sandbox,
            is_broken: false,
        }
    }

    /// Reads `abide.yaml`, and puts it into effect if it or a script has changed. Returns what to report; `None` if
    /// nothing has changed, or if the file cannot be read now.
    pub(crate) async fn refresh(&mut self, live: &LiveProject) -> Option<FolderChanges> {
        let path = self.source.folder.join(CONFIG);
        let text = match project::read(&path) {
            Ok(text) => text,
            // An editor may be replacing the file: the next refresh reads it.
            Err(error) => {
                tracing::debug!(%error, "the configuration cannot be read now");
                return None;
            }
        };
        let scripts = read_scripts(&self.source.folder, &self.last_sections);
        if text == self.source.text && scripts == self.last_scripts {
            return None;
        }
        // Remembered even if the text is refused below, so that a problem is reported once.
        self.last_scripts = scripts;
        self.source.text.clone_from(&text);
        let was_broken = std::mem::take(&mut self.is_broken);
        Some(match self.apply(text.as_deref(), live).await {
            Ok(mut changes) => {
                if was_broken && changes.is_empty() {
                    changes
                        .notes
                        .push(format!("{CONFIG} is valid again, with the former settings"));
                }
                changes
            }
            Err(error) => {
                self.is_broken = true;
                let problems = vec![error.to_problem(&self.source.folder)];
                FolderChanges { problems, ..FolderChanges::default() }
            }
        })
    }

    /// Returns the programs of the configuration in effect that do not exist on this machine.
    pub(crate) fn missing_programs(&self, catalog: &Catalog) -> Vec<Problem> {
        folder_check::missing_programs(&self.source, self.sandbox.as_ref(), catalog)
    }

    /// Checks a text, and puts it into effect.
    ///
    /// # Errors
    /// The text is not a configuration that can work. Nothing has changed.
    async fn apply(
        &mut self,
        text: Option<&str>,
        live: &LiveProject,
    ) -> Result<FolderChanges, ProjectError> {
        let Some(text) = text else {
            let path = self.source.folder.join(CONFIG);
            return Err(ProjectError::malformed(path, "the file is gone".to_owned()));
        };
        let (config, sections) = project::parse(&self.source.folder, Some(text))?;
        let scripts = read_scripts(&self.source.folder, &sections);
        self.last_sections.clone_from(&sections);
        self.last_scripts.clone_from(&scripts);
        let mut changes = differences(&self.source.sections, &sections);
        if sections == self.source.sections {
            // Only the text of a script can have changed. A provider that is new or gone is a change of the sections.
            changes.extend(FolderChange::between("models", &self.active_scripts, &scripts));
        }
        // A change of a fixed section is not among `changes`, but needs a note.
        if changes.is_empty() && sections == self.source.sections {
            return Ok(FolderChanges::default());
        }
        live.catalog.check_deployment(&config.middleware).map_err(ProjectError::Middleware)?;
        let deployment = config.middleware.clone();
        let has_new_scripts = self.active_scripts != scripts;
        let staged = self.stage(config, &sections, has_new_scripts, live).await?;
        let StagedConfig { models, sandbox, tools, servers } = staged;
        let leaving = tools.leaving.clone();
        live.tools.configure(tools)?;
        if let Some(models) = models {
            live.models.set(models);
        }
        live.catalog.shared_deployment().set(deployment);
        live.sandbox.set(sandbox.as_ref().map(Sandbox::backend));
        self.sandbox = sandbox;
        let (left, kept): (Vec<McpServer>, Vec<McpServer>) = std::mem::take(&mut self.servers)
            .into_iter()
            .partition(|server| leaving.iter().any(|name| name == server.name()));
        left.into_iter().for_each(McpServer::leave);
        self.servers = kept;
        let mut notes = restart_warnings(&self.source.sections, &sections);
        for server in join_all(servers.into_iter().map(PreparedMcpServer::connect)).await {
            if let McpStatus::Down { why } = server.status().await {
                let name = server.name();
                notes.push(format!("MCP server {name} is unavailable and is tried again: {why}"));
            }
            self.servers.push(server);
        }
        self.source.sections = sections;
        self.active_scripts = scripts;
        Ok(FolderChanges { changes, notes, ..FolderChanges::default() })
    }

    /// Checks a configuration. It starts nothing that outlives the check.
    async fn stage(
        &self,
        config: ProjectConfig,
        sections: &Map<String, Value>,
        has_new_scripts: bool,
        live: &LiveProject,
    ) -> Result<StagedConfig, ProjectError> {
        let ProjectSource { folder, environment, launcher, sections: before, database, .. } =
            self.source.clone();
        let is_new = |part: &str| before.get(part) != sections.get(part);
        let models = if is_new("models") || has_new_scripts {
            let mut models = project::models(config.models.clone(), &folder, &environment)?;
            models.copy_custom_providers(&live.models.get())?;
            Some(models)
        } else {
            None
        };
        let (leaving, changed) = changed_servers(&before, sections, &config.mcp_servers)?;
        let servers = changed
            .into_iter()
            .map(|server| PreparedMcpServer::new(server, &environment, &live.tools))
            .collect::<Result<Vec<_>, _>>();
        let servers = servers.map_err(McpError::from)?;
        let coming = servers.iter().map(PreparedMcpServer::source).collect();
        let blocked = config.blocked_tools();
        let mut tools = ConfiguredTools { tools: None, blocked, leaving, coming };
        let mut sandbox = self.sandbox.clone();
        if TOOL_SECTIONS.into_iter().any(is_new) {
            let is_new_sandbox = is_new("sandbox");
            // A backend such as `docker` may take seconds to say whether it works.
            let staging = tokio::task::spawn_blocking(move || {
                if is_new_sandbox {
                    let open = |config| Sandbox::open(config, &folder, launcher, &environment);
                    sandbox = config.sandbox.clone().map(open).transpose()?;
                    if let (Some(sandbox), Some(database)) = (&sandbox, &database) {
                        sandbox.protect(database);
                    }
                }
                let tools = project::configured_tools(&config, &environment, sandbox.as_ref())?;
                Ok::<_, ProjectError>((tools, sandbox))
            });
            let staged = staging.await.map_err(|why| {
                let path = self.source.folder.join(CONFIG);
                ProjectError::malformed(path, format!("it cannot be used: {why}"))
            })?;
            let (staged, opened) = staged?;
            tools.tools = Some(staged);
            sandbox = opened;
        }
        Ok(StagedConfig { models, sandbox, tools, servers })
    }
}

/// Reads the scripts that a configuration names.
fn read_scripts(folder: &Path, sections: &Map<String, Value>) -> Scripts {
    let models = sections.get("models").cloned().unwrap_or_default();
    let providers = models["providers"].as_array().cloned().unwrap_or_default();
    let script = |provider: &Value| {
        let id = provider["id"].as_str()?;
        let file = provider["script"].as_str()?;
        Some((id.to_owned(), std::fs::read_to_string(folder.join(file)).ok()))
    };
    providers.iter().filter_map(script).collect()
}

/// Returns the MCP servers that leave: those that are gone or have changed; and the definitions of those that come.
fn changed_servers(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    servers: &[McpServerConfig],
) -> Result<(Vec<String>, Vec<McpServerConfig>), ProjectError> {
    let mut names = std::collections::BTreeSet::new();
    if let Some(twice) = servers.iter().find(|server| !names.insert(&server.name)) {
        return Err(ToolsError::Source { name: twice.name.clone() }.into());
    }
    let before = parts_by_name(before, "mcp_servers");
    let after = parts_by_name(after, "mcp_servers");
    let leaving = before
        .iter()
        .filter(|(name, value)| after.get(*name) != Some(*value))
        .map(|(name, _)| name.clone())
        .collect();
    Ok((
        leaving,
        servers
            .iter()
            .filter(|server| before.get(&server.name) != after.get(&server.name))
            .cloned()
            .collect(),
    ))
}

/// Returns the differences between two configurations, by section and name.
fn differences(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<FolderChange> {
    let mut parts: Vec<&String> = before.keys().chain(after.keys()).collect();
    parts.sort();
    parts.dedup();
    let differs = parts.into_iter().filter(|part| !FIXED_SECTIONS.contains(&part.as_str()));
    differs
        .filter_map(|part| {
            FolderChange::between(part, &parts_by_name(before, part), &parts_by_name(after, part))
        })
        .collect()
}

/// Returns the parts of a section by name: those of a list by their own names, those of a map by their keys.
fn parts_by_name(sections: &Map<String, Value>, part: &str) -> BTreeMap<String, Value> {
    match sections.get(part) {
        Some(Value::Array(values)) => values_by_name(values),
        Some(Value::Object(map)) => {
            let mut parts = BTreeMap::new();
            for (key, value) in map {
                match value {
                    // The providers of `models`, the tools of a deny list.
                    Value::Array(values) if ["models", "tool_security"].contains(&part) => {
                        parts.extend(values_by_name(values));
                    }
                    _ => drop(parts.insert(key.clone(), value.clone())),
                }
            }
            parts
        }
        None | Some(Value::Null) => BTreeMap::new(),
        Some(other) => BTreeMap::from([(part.to_owned(), json!(other))]),
    }
}

fn values_by_name(values: &[Value]) -> BTreeMap<String, Value> {
    values.iter().map(|value| (name_of(value), value.clone())).collect()
}

/// Returns the name of an entry of a list; an entry that is a text is its own name.
fn name_of(value: &Value) -> String {
    let name = ["name", "id"].iter().find_map(|key| value[*key].as_str());
    name.or_else(|| value.as_str()).unwrap_or_default().to_owned()
}

/// Returns the changes that need a restart.
fn restart_warnings(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<String> {
    let changed = FIXED_SECTIONS.into_iter().filter(|part| before.get(*part) != after.get(*part));
    changed
        .map(|part| format!("{part} in {CONFIG} has changed: restart the server to use it"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changes between two texts, one part a line.
    fn check(before: &str, after: &str, expected: &str) {
        let parse = |text| {
            let folder = Path::new("");
            project::parse(folder, Some(text)).expect("it is a configuration").1
        };
        let before = parse(before);
        let after = parse(after);
        let mut lines: Vec<String> = differences(&before, &after)
            .iter()
            .map(|it| format!("{}: +{:?} ~{:?} -{:?}", it.part, it.added, it.changed, it.removed))
            .collect();
        lines.extend(restart_warnings(&before, &after));
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn changes_are_listed_by_section_and_name() {
        let models = "models: { default: { provider: a }, providers: [{ id: a, kind: ollama }] }";
        check(models, models, "");
        check(
            models,
            "models: { default: { provider: b }, providers: [{ id: b, kind: ollama }] }",
            r#"models: +["b"] ~["default"] -["a"]"#,
        );
        check(
            "tool_security: { blocked_tools: [pay] }\nsandbox: { workspace: a }",
            "tool_security: { blocked_tools: [send] }\nsandbox: { workspace: b }",
            "sandbox: +[] ~[\"workspace\"] -[]\ntool_security: +[\"send\"] ~[] -[\"pay\"]",
        );
        check(
            "mcp_servers: [{ name: a, url: 'http://a' }, { name: b, url: 'http://b' }]",
            "mcp_servers: [{ name: b, url: 'http://c' }, { name: c, url: 'http://c' }]",
            r#"mcp_servers: +["c"] ~["b"] -["a"]"#,
        );
        // The tools that are left out are no parts of their own: "removed search" was said of a tool that never existed.
        check(
            "builtin_tools: { without: [browser, search] }",
            "builtin_tools: { without: [browser] }",
            r#"builtin_tools: +[] ~["without"] -[]"#,
        );
        check(
            "",
            "traces: { log_data: true }\nprompts: {}",
            "traces in abide.yaml has changed: restart the server to use it\n\
             prompts in abide.yaml has changed: restart the server to use it",
        );
    }
}
