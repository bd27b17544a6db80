//! The delegation graph of agents. Cycles are refused: delegation in a cycle would stop only at a limit.

use std::collections::{BTreeMap, BTreeSet};

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

    /// The cycle that an agent is part of, as names in order with the first name repeated at the end; `None` if
    /// there is none.
    pub(crate) fn cycle_of(&self, name: &str) -> Option<Vec<&'a str>> {
        let (name, _) = self.0.get_key_value(name)?;
        let (mut before, mut open): (BTreeMap<&str, &str>, _) = (BTreeMap::new(), vec![*name]);
        while let Some(at) = open.pop() {
            for to in self.0.get(at).into_iter().flatten() {
                if to == name {
                    let mut path = vec![*name, at];
                    while let Some(earlier) = path.last().and_then(|last| before.get(last)) {
                        path.push(*earlier);
                    }
                    // An agent that delegates to itself is its own predecessor.
                    if at == *name {
                        path.truncate(2);
                    }
                    path.reverse();
                    return Some(path);
                }
                if !before.contains_key(to) {
                    before.insert(*to, at);
                    open.push(to);
                }
            }
        }
        None
    }

    /// The definitions sorted so that an agent comes after its subagents.
    pub(crate) fn sorted(&self, definitions: &'a [AgentDefinition]) -> Vec<&'a AgentDefinition> {
        let by_name: BTreeMap<&str, &AgentDefinition> =
            definitions.iter().map(|it| (it.name.as_str(), it)).collect();
        let (mut sorted, mut seen) = (Vec::new(), BTreeSet::new());
        for definition in definitions {
            // Each name is pushed twice: when it is first visited, and below its subagents to be emitted after
            // them.
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
