//! The tools of a configuration file, which can change while the registry is used. One step replaces all of them, so no
//! call sees a half of the change.

use super::{RegistryState, SourceState, Tools, ToolsError, view};

/// The source of the tools that come from a configuration.
const SOURCE: &str = "abide.yaml";

/// The tools of a configuration, in place of those of an earlier one.
#[derive(Clone, Default)]
pub struct ConfiguredTools {
    /// Its tools; `None` keeps those of the earlier one.
    pub tools: Option<Tools>,
    /// Names and patterns whose calls are denied to all agents.
    pub blocked: Vec<String>,
    /// The sources that leave, with their tools.
    pub leaving: Vec<String>,
    /// The sources that come, with the prefixes of their tools' names. They are announced.
    pub coming: Vec<(String, String)>,
}

impl Tools {
    /// Replaces what an earlier configuration said. Tools that were added by code, and the sources that stay, are not
    /// changed.
    ///
    /// # Errors
    /// Two tools or two sources have the same name, or a blocked name is unknown and no source that has not listed its
    /// tools yet could provide it. Then nothing changes.
    pub fn configure(&self, configured: ConfiguredTools) -> Result<(), ToolsError> {
        // The staged registry is another one, and its lock is released before this one is locked.
        let staged = configured.tools.as_ref().map(|tools| tools.read(Clone::clone));
        let mut outcome = Ok(());
        self.change(|registry| match registry.configured(staged, configured) {
            Ok(next) => *registry = next,
            Err(why) => outcome = Err(why),
        });
        outcome
    }
}

impl RegistryState {
    /// Returns the state after a change.
    fn configured(
        &self,
        staged: Option<RegistryState>,
        configured: ConfiguredTools,
    ) -> Result<RegistryState, ToolsError> {
        let ConfiguredTools { blocked, leaving, coming, .. } = configured;
        let mut next = self.clone();
        for source in &leaving {
            next.entries.retain(|_, entry| entry.source.as_ref() != Some(source));
            next.sources.remove(source);
        }
        for (name, prefix) in coming {
            if name == SOURCE || next.sources.contains_key(&name) {
                return Err(ToolsError::Source { name });
            }
            next.sources.insert(name, SourceState { prefix, ..SourceState::default() });
        }
        if let Some(staged) = staged {
            next.entries.retain(|_, entry| entry.source.as_deref() != Some(SOURCE));
            for mut entry in staged.entries.into_values() {
                entry.source = Some(SOURCE.to_owned());
                next.insert(entry)?;
            }
        }
        let names: Vec<String> =
            blocked.iter().filter(|name| !view::is_known(&next, name)).cloned().collect();
        if !names.is_empty() {
            let known = next.names().into_iter().map(str::to_owned).collect();
            return Err(ToolsError::Unknown { names, known });
        }
        next.configured_blocked = blocked;
        Ok(next)
    }
}
