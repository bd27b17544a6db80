//! Hints for a statement that was refused, from its text: the engine does not know how it was typed.

use abide_schema::{Code, Refusal};

use crate::failure::Failure;
use crate::pairs;

/// Adds what the command line knows about a statement to its refusal.
pub(crate) fn explain(failure: Failure, sql: &str) -> Failure {
    let refusal = match pairs::explain_parameter(failure) {
        Failure::Refused(refusal) => refusal,
        other => return other,
    };
    if refusal.code != Code::BadSql {
        return refusal.into();
    }
    match translate_foreign_command(sql) {
        Some(hint) => refusal.hint(hint),
        None => name_table_in_hint(refusal, sql),
    }
    .into()
}

/// The statement that a command of another program stands for.
fn translate_foreign_command(sql: &str) -> Option<String> {
    let words: Vec<String> = sql
        .split(|c: char| c.is_whitespace() || "();'\"".contains(c))
        .map(str::to_lowercase)
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
    let (first, rest) = words.split_first()?;
    let columns_of =
        |table: &str| format!("`abide sql \"SELECT * FROM {table} LIMIT 1\"` shows the columns");
    let tables =
        "`abide sql \"SELECT name FROM sqlite_schema WHERE type = 'table'\"` lists the tables";
    match (*first, rest) {
        ("pragma", ["table_info" | "table_xinfo", table, ..]) => Some(columns_of(table)),
        ("pragma", [name, ..]) if name.chars().all(|c| c.is_ascii_lowercase() || c == '_') => {
            Some(format!(
                "a PRAGMA is not permitted; one that reads is a table: `abide sql \"SELECT * FROM pragma_{name}\"`"
            ))
        }
        (".schema" | "describe" | "desc", [table, ..]) => Some(columns_of(table)),
        (".tables" | ".schema" | "show", _) => Some(tables.to_owned()),
        _ => None,
    }
}

/// Names the table of the statement in the hint that lists columns, in place of an example.
fn name_table_in_hint(refusal: Refusal, sql: &str) -> Refusal {
    const EXAMPLE: &str = "SELECT * FROM sessions LIMIT 1";
    let mut words = sql.split_whitespace();
    words.find(|word| word.eq_ignore_ascii_case("from"));
    let table = words.next().unwrap_or_default().trim_end_matches([',', ';', ')']);
    match refusal.hint.as_deref() {
        Some(hint)
            if !table.is_empty() && table.chars().all(|c| c.is_alphanumeric() || c == '_') =>
        {
            let hint = hint.replace(EXAMPLE, &format!("SELECT * FROM {table} LIMIT 1"));
            refusal.hint(hint)
        }
        _ => refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(sql: &str, given: &str) -> String {
        let refusal = Refusal::new(Code::BadSql, "it is refused").hint(given);
        match explain(refusal.into(), sql) {
            Failure::Refused(refusal) => refusal.hint.unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_of_other_programs_have_a_statement() {
        let columns = "`abide sql \"SELECT * FROM sessions LIMIT 1\"` shows the columns";
        for sql in ["PRAGMA table_info(sessions)", ".schema sessions", "describe sessions;"] {
            assert_eq!(hint(sql, "x"), columns, "{sql}");
        }
        for sql in [".tables", "SHOW TABLES", ".schema"] {
            assert!(hint(sql, "x").ends_with("lists the tables"), "{sql}");
        }
        assert!(hint("pragma index_list('x')", "x").contains("pragma_index_list"));
        assert_eq!(hint("SELECT 1", "x"), "x");
    }

    #[test]
    fn the_hint_for_a_column_names_the_table_of_the_statement() {
        let given = "at byte 7; `abide sql \"SELECT * FROM sessions LIMIT 1\"` \
                     shows the columns of a table";
        let named = hint("SELECT call_id, result FROM tool_calls", given);
        assert!(named.contains("FROM tool_calls LIMIT 1"), "{named}");
        assert_eq!(hint("SELECT x FROM (SELECT 1)", given), given);
    }
}
