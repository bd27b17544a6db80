//! The tables that can be queried live.

use abide_schema::TableSpec;
use abide_schema::reducer::PolicyTables;
use abide_store::Layout;

/// The tables that can be queried live, and those that decide what restricted callers see.
#[derive(Debug)]
pub(crate) struct LiveTables {
    all: Vec<&'static TableSpec>,
    /// `None` if no module stores policies.
    pub(crate) policies: Option<PolicyTables>,
}

impl LiveTables {
    pub(crate) fn new(layout: &Layout) -> LiveTables {
        let policies = layout.modules.iter().find_map(|module| module.policy_tables);
        LiveTables { all: layout.live_tables(), policies }
    }

    /// The table of a name.
    pub(crate) fn named(&self, name: &str) -> Option<&'static TableSpec> {
        self.all.iter().copied().find(|table| table.name == name)
    }
}
