//! The delegation graph of agents. Cycles are refused: delegation in a cycle would stop only at a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use abide_client::rules::delegation_cycle;
use abide_definitions::agent::AgentDefinition;

/// By agent, the agents that it may delegate to.
#[derive(Debug, Default)]
pub(crate) struct Delegations(BTreeMap<String, Vec<String>>);

impl Delegations {
    /// Returns the graph of definitions and their inline subagents.
    pub(crate) fn from_definitions<'a>(
        definitions: impl IntoIterator<Item = &'a AgentDefinition>,
    ) -> Delegations {
        let all = definitions.into_iter().flat_map(AgentDefinition::with_inline);
        Delegations(all.map(|it| (it.name.clone(), it.delegates().collect())).collect())
    }

    /// Returns the cycle that an agent is part of, as names in order with the first name repeated at the end.
    pub(crate) fn cycle_of(&self, name: &str) -> Option<Vec<String>> {
        let Ok(cycle) = delegation_cycle(name, |name| {
            Ok::<_, Infallible>(self.0.get(name).cloned().unwrap_or_default())
        });
        cycle
    }

    /// Returns the definitions in an order in which an agent comes after those that it delegates to.
    pub(crate) fn sorted<'a>(
        &'a self,
        definitions: &'a [AgentDefinition],
    ) -> Vec<&'a AgentDefinition> {
        let by_name: BTreeMap<&str, &AgentDefinition> =
            definitions.iter().map(|it| (it.name.as_str(), it)).collect();
        let mut sorted = Vec::new();
        let mut seen = BTreeSet::new();
        for definition in definitions {
            // Each name is on the stack twice: when it is first visited, and after all agents that it delegates to.
            let mut open = vec![(definition.name.as_str(), false)];
            while let Some((name, is_done)) = open.pop() {
                if is_done {
                    sorted.extend(by_name.get(name).copied());
                } else if seen.insert(name) {
                    open.push((name, true));
                    open.extend(self.0.get(name).into_iter().flatten().map(|to| (&**to, false)));
                }
            }
        }
        sorted
    }
}
