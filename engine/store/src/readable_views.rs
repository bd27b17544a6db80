//! Which views a caller can read, given the columns that it sees.

use rusqlite::Connection;

use crate::connect::forbid_quoted_texts;
use crate::error::StoreError;
use crate::functions;
use crate::layout::Layout;
use crate::memory;

/// The views of a layout that read only these columns of these tables, each with its own columns. SQLite resolves the
/// names, in an empty database that has nothing else.
///
/// # Errors
/// [`StoreError`].
pub fn readable_views(
    layout: &Layout,
    tables: &[(String, Vec<String>)],
) -> Result<Vec<(&'static str, Vec<String>)>, StoreError> {
    memory::start_counting();
    let mut connection = Connection::open_in_memory()?;
    functions::install(&mut connection, abide_schema::limits::QUERY_VALUE_BYTES)?;
    forbid_quoted_texts(&connection)?;
    for (table, columns) in tables {
        let columns = columns.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
        connection.execute_batch(&format!("CREATE TABLE {} ({columns})", quoted(table)))?;
    }
    let mut views = Vec::new();
    for (name, select) in layout.views() {
        let Ok(statement) = connection.prepare(select) else { continue };
        let columns = statement.column_names().map(str::to_owned).collect();
        views.push((name, columns));
        drop(statement);
        // Another view can read it.
        connection.execute_batch(&format!("CREATE VIEW {} AS {select}", quoted(name)))?;
    }
    Ok(views)
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
