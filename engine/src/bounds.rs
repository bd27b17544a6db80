//! The rows as the reducer of a bounded caller reaches them: what is out of the caller's scope is not
//! there. This is the one place where a scope bounds what is written, for built-in reducers and a user's
//! own alike; a rule need not think of it, and its refusals are those for what does not exist.
//!
//! Whose a row is follows from how its table is declared (see [`TableSpec::shared`]): by its own column
//! of a scope, or by the row it belongs to, as a message belongs to its session.

use std::collections::{BTreeMap, HashMap};

use abide_live::Owner as Named;
use abide_schema::reducer::{Caller, Guard, Transaction};
use abide_schema::{Abort, Code, Module, Refusal, Row, TableSpec, Value, canonical};
use abide_store::change_log;
use serde_json::json;

use crate::execute::{Executor, broken};

/// Whose the rows of a table are.
#[derive(Clone, Copy, Debug)]
enum Owner {
    /// That of the scope in this column.
    Itself(usize),
    /// Whoever owns the row of that table that this column names.
    Of(usize, &'static TableSpec),
}

/// What bounded callers may reach, by the declarations of all modules.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    owners: BTreeMap<&'static str, Owner>,
    pub(crate) guards: Vec<Guard>,
}

impl Bounds {
    pub(crate) fn new(modules: &[Module]) -> Bounds {
        let tables: Vec<&'static TableSpec> =
            modules.iter().flat_map(|module| module.tables.iter().copied()).collect();
        let mut owners = BTreeMap::new();
        for table in &tables {
            if let Some(at) = table.columns.iter().position(|column| column.scope) {
                owners.insert(table.name, Owner::Itself(at));
            }
        }
        // What belongs to a row of a table that is owned is owned; as often as it takes.
        while let Some((table, owner)) =
            tables.iter().find_map(|table| owned(table, &tables, &owners))
        {
            owners.insert(table, owner);
        }
        let guards = modules.iter().flat_map(|module| module.guards.iter().copied()).collect();
        Bounds { owners, guards }
    }

    /// By which rows those of a table belong to a scope, and the column of the last that holds it;
    /// nothing where nobody owns them.
    pub(crate) fn owners(&self, table: &TableSpec) -> Option<(Vec<Named>, &'static str)> {
        let (mut owners, mut name) = (Vec::new(), table.name);
        let mut columns = table.columns.iter().map(|column| column.name).collect::<Vec<_>>();
        loop {
            match self.owners.get(name)? {
                Owner::Itself(at) => return Some((owners, columns[*at])),
                Owner::Of(at, owner) => {
                    let key = owner.columns[owner.key[0]].name;
                    owners.push(Named { column: columns[*at], table: owner.name, key });
                    (name, columns) =
                        (owner.name, owner.columns.iter().map(|column| column.name).collect());
                }
            }
        }
    }

    /// The rows of a table that are within a scope, as a table for FROM; `?scope` is the parameter that
    /// holds the scope. Plain rows where nobody owns them.
    fn within(&self, table: &TableSpec, scope: usize) -> String {
        let name = table.name;
        let Some(condition) = self.condition(table, "t0", 0, scope) else { return name.to_owned() };
        let rowid = if table.without_rowid { "" } else { "t0.rowid AS rowid, " };
        format!("(SELECT {rowid}t0.* FROM {name} AS t0 WHERE {condition}) AS {name}")
    }

    /// That a row of `alias` is within the scope.
    fn condition(
        &self,
        table: &TableSpec,
        alias: &str,
        depth: usize,
        scope: usize,
    ) -> Option<String> {
        match self.owners.get(table.name)? {
            Owner::Itself(at) => {
                let column = table.columns[*at].name;
                Some(format!(
                    "NOT EXISTS (SELECT 1 FROM json_each(?{scope}) AS c WHERE NOT EXISTS (
                       SELECT 1 FROM json_each({alias}.{column}) AS m
                       WHERE m.key = c.key AND m.type = 'text' AND m.atom = c.atom))"
                ))
            }
            Owner::Of(at, owner) => {
                let (column, key) = (table.columns[*at].name, owner.columns[owner.key[0]].name);
                let (own, inner) = (owner.name, format!("t{}", depth + 1));
                let condition = self.condition(owner, &inner, depth + 1, scope)?;
                Some(format!(
                    "EXISTS (SELECT 1 FROM {own} AS {inner} \
                     WHERE {inner}.{key} = {alias}.{column} AND {condition})"
                ))
            }
        }
    }
}

/// A table that is not known to be owned yet, and is.
fn owned(
    table: &'static TableSpec,
    tables: &[&'static TableSpec],
    owners: &BTreeMap<&'static str, Owner>,
) -> Option<(&'static str, Owner)> {
    if owners.contains_key(table.name) {
        return None;
    }
    let owner_of = |at: usize| {
        let (name, column) = table.columns[at].references?.split_once('(')?;
        let owner = tables.iter().copied().find(|owner| owner.name == name)?;
        let is_key =
            matches!(owner.key, [key] if column == format!("{})", owner.columns[*key].name));
        (is_key && owners.contains_key(name)).then_some((table.name, Owner::Of(at, owner)))
    };
    (0..table.columns.len()).find_map(owner_of)
}

/// The rows within the bounds of a caller, for the length of one call.
pub(crate) struct Bounded<'a> {
    rows: &'a mut Executor,
    bounds: &'a Bounds,
    caller: &'a Caller,
    /// The scope as JSON, for statements.
    scope: Value,
    /// The owners that were looked at: whether the caller reaches them.
    seen: HashMap<Vec<u8>, bool>,
}

impl<'a> Bounded<'a> {
    pub(crate) fn new(
        rows: &'a mut Executor,
        bounds: &'a Bounds,
        caller: &'a Caller,
    ) -> Bounded<'a> {
        let scope = Value::Text(canonical::to_text(&json!(caller.scope())));
        Bounded { rows, bounds, caller, scope, seen: HashMap::new() }
    }

    fn owner(&self, table: &TableSpec) -> Option<Owner> {
        let bounded = !self.caller.scope().is_empty();
        if bounded { self.bounds.owners.get(table.name).copied() } else { None }
    }

    /// Whether the caller reaches a row.
    fn reaches(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<bool, Abort> {
        match self.owner(table) {
            None => Ok(true),
            Some(Owner::Itself(at)) => {
                let Value::Text(scope) = &row[at] else { return Ok(false) };
                let scope = serde_json::from_str(scope).ok();
                Ok(self.caller.reaches(scope.as_ref()))
            }
            Some(Owner::Of(at, owner)) => self.reaches_owner(owner, &row[at]),
        }
    }

    fn reaches_owner(&mut self, owner: &'static TableSpec, key: &Value) -> Result<bool, Abort> {
        if *key == Value::Null {
            return Ok(false);
        }
        let mut place = owner.name.as_bytes().to_vec();
        change_log::encode_cells(0, [key], &mut place);
        if let Some(seen) = self.seen.get(&place) {
            return Ok(*seen);
        }
        let row = self.rows.known(owner, std::slice::from_ref(key))?;
        let reached = row.map_or(Ok(false), |row| self.reaches(owner, &row))?;
        self.seen.insert(place, reached);
        Ok(reached)
    }

    /// Refuses to write a row that would not be the caller's.
    fn check_new(&mut self, table: &'static TableSpec, row: &[Value]) -> Result<(), Abort> {
        match self.owner(table) {
            None if table.shared || self.caller.scope().is_empty() => Ok(()),
            None => Err(of_all(table).into()),
            Some(_) if self.reaches(table, row)? => Ok(()),
            Some(Owner::Itself(_)) => {
                let detail = format!("a row of {} would be outside of your scope", table.name);
                Err(Refusal::new(Code::Denied, detail).into())
            }
            Some(Owner::Of(at, _)) if row[at] == Value::Null => {
                let (table, column) = (table.name, table.columns[at].name);
                let detail =
                    format!("a row of {table} has no {column}, so it would be in no scope");
                Err(Refusal::new(Code::Denied, detail).hint(format!("give {column}")).into())
            }
            Some(Owner::Of(at, owner)) => Err(missing(owner, &row[at]).into()),
        }
    }

    /// Refuses to change a row that is not the caller's.
    fn check_old(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<(), Abort> {
        match self.rows.known(table, key)? {
            Some(row) if !self.reaches(table, &row)? => {
                Err(missing(table, key.first().unwrap_or(&Value::Null)).into())
            }
            _ => Ok(()),
        }
    }
}

fn of_all(table: &TableSpec) -> Refusal {
    let detail =
        format!("{} are shared by all, and a caller with a scope changes none", table.name);
    Refusal::new(Code::Denied, detail).hint("an identity without a scope may")
}

fn missing(table: &TableSpec, key: &Value) -> Refusal {
    let key = match key {
        Value::Text(text) => text.clone(),
        key => key.to_json().to_string(),
    };
    Refusal::new(Code::NotFound, format!("there is no {key} in {}", table.name))
}

impl Transaction for Bounded<'_> {
    fn get(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<Option<Row>, Abort> {
        let Some(row) = self.rows.get(table, key)? else { return Ok(None) };
        Ok(self.reaches(table, &row)?.then_some(row))
    }

    fn find(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<Vec<Row>, Abort> {
        if self.owner(table).is_none() {
            return self.rows.find(table, clause, params);
        }
        self.rows.flush().map_err(broken)?;
        let columns: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
        let within = self.bounds.within(table, params.len() + 1);
        let sql = format!("SELECT {} FROM {within} {clause}", columns.join(", "));
        let params = [params, std::slice::from_ref(&self.scope)].concat();
        let mut found = Vec::new();
        let run = self.rows.store.run(&sql, &params, &mut |row| found.push(Row::from(row)));
        run.map_err(broken)?;
        Ok(found)
    }

    fn count(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        if self.owner(table).is_none() {
            return self.rows.count(table, clause, params);
        }
        let within = self.bounds.within(table, params.len() + 1);
        let params = [params, std::slice::from_ref(&self.scope)].concat();
        self.rows.count_in(&within, clause, &params)
    }

    fn count_everywhere(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        self.rows.count(table, clause, params)
    }

    fn judge_policy(
        &mut self,
        table: &str,
        condition: Option<&str>,
        hidden: &[String],
    ) -> Result<(), Abort> {
        self.rows.judge_policy(table, condition, hidden)
    }

    fn insert(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<Row, Abort> {
        self.check_new(table, &row)?;
        if self.owner(table).is_some() && !table.numbered() {
            let key = table.key_of(&row);
            if self.rows.known(table, &key)?.is_some() && self.get(table, &key)?.is_none() {
                // Ids are one room for all, so that much cannot be kept from whoever picks one.
                let detail = format!("this id cannot be used in {}", table.name);
                let hint = "ids are shared by all: leave it out to be given one, or make it unique";
                return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
            }
        }
        self.rows.insert(table, row)
    }

    fn update(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort> {
        self.check_old(table, &table.key_of(&row))?;
        self.check_new(table, &row)?;
        self.rows.update(table, row)
    }

    fn touch(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort> {
        self.check_old(table, &table.key_of(&row))?;
        self.check_new(table, &row)?;
        self.rows.touch(table, row)
    }

    fn delete(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<(), Abort> {
        self.check_old(table, key)?;
        if self.owner(table).is_none() && !table.shared && !self.caller.scope().is_empty() {
            return Err(of_all(table).into());
        }
        self.rows.delete(table, key)
    }
}
