//! SQL identifiers: with quotes, without them, and the schema that may qualify them.

use abide_schema::{Code, Refusal};

/// Returns an identifier in double quotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A name or text without its quotes: `"a""b"` is `a"b`, `[a]` is `a`.
pub(crate) fn unquote(raw: &str) -> String {
    let Some(quote @ ('"' | '\'' | '`' | '[')) = raw.chars().next() else { return raw.to_owned() };
    let inner = raw.get(1..raw.len() - 1).unwrap_or_default();
    if quote == '[' {
        return inner.to_owned();
    }
    inner.replace(&format!("{quote}{quote}"), &quote.to_string())
}

/// The only schema name allowed is that of the main database.
pub(crate) fn require_main(schema: &str) -> Result<(), Refusal> {
    let schema = unquote(schema);
    if schema.eq_ignore_ascii_case("main") {
        return Ok(());
    }
    Err(Refusal::new(Code::BadSql, format!("unknown database {schema}")))
}
