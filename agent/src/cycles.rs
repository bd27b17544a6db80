//! The delegation graph of agents. Cycles are refused: delegation in a cycle would stop only at a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use abide_client::delegation_cycle;

use crate::definition::{AgentDefinition, Subagent};

/// By agent, the agents that it may delegate to.
#[derive(Debug, Default)]
pub(crate) struct Delegations<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Delegations<'a> {
    pub(crate) fn of(
        definitions: impl IntoIterator<Item = &'a AgentDefinition>,
    ) -> Delegations<'a> {
        let mut delegations = Delegations::default();
        let mut open: Vec<&AgentDefinition> = definitions.into_iter().collect();
        while let Some(definition) = open.pop() {
            let names = definition.subagents.iter().map(Subagent::name);
            delegations.0.entry(&definition.name).or_default().extend(names);
            open.extend(definition.subagents.iter().filter_map(|subagent| match subagent {
                Subagent::Inline(inline) => Some(&**inline),
                Subagent::Named(_) => None,
            }));
        }
        delegations
    }

    /// The cycle that an agent is part of, as names in order with the first name repeated at the end.
    pub(crate) fn cycle_of(&self, name: &str) -> Option<Vec<String>> {
        let of = |name: &str| self.0.get(name).into_iter().flatten().map(|it| (*it).to_owned());
        let Ok(cycle) = delegation_cycle(name, |name| Ok::<_, Infallible>(of(name).collect()));
        cycle
    }

    /// The definitions in an order in which an agent comes after those that it delegates to.
    pub(crate) fn sorted(&self, definitions: &'a [AgentDefinition]) -> Vec<&'a AgentDefinition> {
        let by_name: BTreeMap<&str, &AgentDefinition> =
            definitions.iter().map(|it| (it.name.as_str(), it)).collect();
        let (mut sorted, mut seen) = (Vec::new(), BTreeSet::new());
        for definition in definitions {
            // Each name is on the stack twice: when it is first visited, and after all agents that it delegates to.
            let mut open = vec![(definition.name.as_str(), false)];
            while let Some((name, is_done)) = open.pop() {
                if is_done {
                    sorted.extend(by_name.get(name).copied());
                } else if seen.insert(name) {
                    open.push((name, true));
                    open.extend(self.0.get(name).into_iter().flatten().map(|to| (*to, false)));
                }
            }
        }
        sorted
    }
}
