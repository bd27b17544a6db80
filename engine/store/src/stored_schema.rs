//! The statements of a file's schema, and their comparison with the declared ones.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use rusqlite::Connection;

use crate::error::OpenError;
use crate::layout::{Layout, create_view};
use crate::system;

/// Tables that SQLite itself makes, for example on ANALYZE.
const OF_SQLITE: [&str; 3] = [
    "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
    "CREATE TABLE sqlite_sequence(name,seq)",
];

/// The statements of a schema.
pub(crate) struct StoredSchema(Vec<StoredObject>);

struct StoredObject {
    /// `table`, `index`, `trigger` or `view`.
    kind: String,
    name: String,
    /// The table of an index or a trigger.
    table: String,
    sql: String,
}

impl fmt::Display for StoredObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoredObject { kind, name, sql, .. } = self;
        let mut words = sql.split_whitespace();
        let is_virtual = words.nth(1).is_some_and(|word| word.eq_ignore_ascii_case("VIRTUAL"));
        write!(f, "{}{kind} {name}", if is_virtual { "virtual " } else { "" })
    }
}

impl StoredSchema {
    /// Reads the schema in an order in which its statements can run.
    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<StoredSchema> {
        let mut statement = connection.prepare(
            "SELECT type, name, tbl_name, sql FROM main.sqlite_schema WHERE sql IS NOT NULL
             ORDER BY type <> 'table', type <> 'view', rowid",
        )?;
        let objects = statement.query_map([], |row| {
            Ok(StoredObject {
                kind: row.get(0)?,
                name: row.get(1)?,
                table: row.get(2)?,
                sql: row.get(3)?,
            })
        })?;
        let mut objects = objects.collect::<rusqlite::Result<Vec<_>>>()?;
        objects.retain(|object| !OF_SQLITE.contains(&object.sql.as_str()));
        Ok(StoredSchema(objects))
    }

    /// Refuses a declared statement that is missing, and any other statement that can be evaluated.
    pub(crate) fn check(&self, path: &Path, layout: &Layout) -> Result<(), OpenError> {
        let differs = |table: &str, difference: Option<String>| {
            let table = table.to_owned();
            Err(OpenError::TableDiffers { path: path.to_owned(), table, difference })
        };
        let mut stored: BTreeSet<String> =
            self.0.iter().map(|object| without_layout(&object.sql)).collect();
        let mut declared_names = BTreeSet::new();
        for table in system::tables().into_iter().chain(layout.tables()) {
            declared_names.insert(table.name);
            for statement in table.ddl() {
                if !stored.remove(&without_layout(&statement)) {
                    return differs(table.name, self.find_difference(&statement));
                }
            }
        }
        for (name, select) in layout.views() {
            declared_names.insert(name);
            if !stored.remove(&without_layout(&create_view(name, select))) {
                return differs(name, None);
            }
        }
        for object in &self.0 {
            if !stored.contains(&without_layout(&object.sql)) {
                continue;
            }
            if declared_names.contains(object.table.as_str()) {
                return differs(&object.table, Some(format!("{object} was added")));
            }
            if object.kind == "trigger" || object.kind == "view" {
                return Err(OpenError::Undeclared {
                    path: path.to_owned(),
                    kind: object.kind.clone(),
                    name: object.name.clone(),
                });
            }
        }
        Ok(())
    }

    /// Returns how the schema differs from a declared statement that it does not have; `None` for the statement of a table,
    /// whose name is known.
    fn find_difference(&self, declared: &str) -> Option<String> {
        let mut words =
            declared.split_whitespace().skip_while(|word| ["CREATE", "UNIQUE"].contains(word));
        let kind = words.next().filter(|kind| ["INDEX", "TRIGGER"].contains(kind))?.to_lowercase();
        let name = words.next()?;
        let is_there = self.0.iter().any(|object| object.kind == kind && object.name == name);
        Some(format!("{kind} {name} is {}", if is_there { "another one" } else { "missing" }))
    }

    /// Returns the objects that belong to no declared table and are no declared view: nothing of Abide reads them.
    pub(crate) fn undeclared(&self, layout: &Layout) -> Vec<String> {
        let tables = system::tables().into_iter().chain(layout.tables()).map(|table| table.name);
        let views = layout.views().into_iter().map(|(name, _)| name);
        let declared: BTreeSet<&str> = tables.chain(views).collect();
        let others = self.0.iter().filter(|object| !declared.contains(object.table.as_str()));
        others.map(StoredObject::to_string).collect()
    }

    /// The statements, in an order in which they can run.
    pub(crate) fn statements(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|object| object.sql.as_str())
    }
}

/// A statement without the white space that has no meaning: SQLite stores the text as given, and `ALTER TABLE` breaks
/// lines elsewhere.
fn without_layout(sql: &str) -> String {
    if sql.contains("--") || sql.contains("/*") {
        // The end of a line is the end of a comment.
        return sql.to_owned();
    }
    let mut text = String::with_capacity(sql.len());
    let mut quote = None;
    let mut was_space = false;
    for c in sql.chars() {
        if quote.is_none() && c.is_ascii_whitespace() {
            was_space = true;
            continue;
        }
        if std::mem::take(&mut was_space) && is_word(c) && text.ends_with(is_word) {
            text.push(' ');
        }
        text.push(c);
        quote = match (quote, c) {
            (Some(end), c) if c == end => None,
            (None, '\'' | '"' | '`') => Some(c),
            (None, '[') => Some(']'),
            (quote, _) => quote,
        };
    }
    text
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$' || !c.is_ascii()
}
