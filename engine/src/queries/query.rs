//! One read-only statement of a caller, on the current or a past state.

use std::collections::BTreeMap;

use abide_schema::{Code, Listing, Refusal, Seq, Value, limits, nearest};
use abide_store::{Layout, Reader};
use serde_json::{Map, Value as JsonValue};

use crate::queries::output::Output;
use crate::queries::statement_limits::limits_of;

/// Parameters by name, without the sigil.
pub(crate) type Params = BTreeMap<String, Value>;

/// Checks everything that does not need a connection.
pub(crate) fn prepare(
    sql: &str,
    params: &Map<String, JsonValue>,
) -> Result<(String, Params), Refusal> {
    if sql.len() > limits::SQL_BYTES {
        let bytes = sql.len();
        let max = limits::SQL_BYTES;
        let detail = format!("the statement has {bytes} bytes; the limit is {max}");
        return Err(
            Refusal::new(Code::LimitExceeded, detail).hint("use parameters for long values")
        );
    }
    abide_live::check_no_nul(sql)?;
    let params = params
        .iter()
        .map(|(name, value)| Ok((bare_name(name).to_owned(), parameter(name, value)?)))
        .collect::<Result<Params, Refusal>>()?;
    Ok((sql.to_owned(), params))
}

/// The name of a parameter without the sigil of SQL.
pub(crate) fn bare_name(name: &str) -> &str {
    name.trim_start_matches([':', '@', '$', '?'])
}

/// A parameter's value from its JSON form.
fn parameter(name: &str, value: &JsonValue) -> Result<Value, Refusal> {
    Value::from_json(value).map_err(|why| {
        Refusal::new(Code::BadArguments, format!("parameter {name} is {why}"))
            .hint("a parameter is null, a number, a string or {\"$blob\": \"<base64>\"}")
    })
}

fn of_the_present() -> Refusal {
    Refusal::new(Code::BadSql, "a query with as_of reads a table that has no history")
        .hint(format!("use table names without `main.`; {}", Listing::Tables.hint()))
}

/// If a parameter is missing and a given one is not in the statement, that one is probably misspelled.
pub(crate) fn with_unused_parameter<'a>(
    refusal: Refusal,
    sql: &str,
    given: impl IntoIterator<Item = &'a String>,
) -> Refusal {
    let named =
        refusal.detail.strip_prefix("parameter ").and_then(|rest| rest.strip_suffix(" is missing"));
    let Some(missing) = named.filter(|_| refusal.code == Code::BadArguments) else {
        return refusal;
    };
    let unused: Vec<&str> =
        given.into_iter().map(|name| bare_name(name)).filter(|name| !may_name(sql, name)).collect();
    let bare = bare_name(missing);
    let Some(name) = nearest(bare, unused.iter().copied()).or(unused.first().copied()) else {
        return refusal;
    };
    let sigil = if bare.starts_with(|c: char| c.is_ascii_digit()) { "?" } else { ":" };
    let missing = if bare == missing { format!("{sigil}{bare}") } else { missing.to_owned() };
    refusal.hint(format!("did you mean {missing}? the statement has no parameter {name}"))
}

/// Whether a statement may have a parameter of this name: also if a string or a comment contains it.
fn may_name(sql: &str, name: &str) -> bool {
    sql.match_indices(name).any(|(at, _)| {
        let before = &sql[..at];
        let after = &sql[at + name.len()..];
        let goes_on = after.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$');
        before.ends_with([':', '@', '$', '?']) && !goes_on
    })
}

/// The hint for a misspelled table is its name.
pub(crate) fn with_nearest_table(refusal: Refusal, layout: &Layout) -> Refusal {
    let tables = layout.live_tables();
    let names = tables.iter().map(|table| table.name);
    let wanted = refusal.detail.strip_prefix("no such table: ");
    match wanted.and_then(|wanted| nearest(wanted, names)) {
        // It exists and is hidden from the caller.
        Some(name) if Some(name) == wanted => refusal,
        Some(name) => refusal.hint(format!("did you mean {name}?")),
        None => refusal,
    }
}

/// Runs it. Returns the state that it read.
pub(crate) fn run(
    reader: &mut Reader,
    layout: &Layout,
    sql: &str,
    params: &Params,
    as_of: Option<Seq>,
    output: &mut Output<'_>,
) -> Result<Seq, Refusal> {
    let mut state = reader.snapshot().map_err(|error| error.to_refusal())?;
    let seq = match as_of {
        None => state.seq(),
        // The current tables still exist behind the views, for the views' own use. SQLite's authorizer cannot
        // distinguish a view's access from that of a caller's CTE.
        Some(_) if abide_live::names_main(sql) => return Err(of_the_present()),
        Some(past) => crate::queries::as_of::travel(&mut state, layout, sql, past)?,
    };
    let mut unused: Vec<&str> = params.keys().map(String::as_str).collect();
    let mut bind = |name: Option<&str>, number: usize| {
        let bare = name.map_or_else(|| number.to_string(), |name| bare_name(name).to_owned());
        unused.retain(|name| *name != bare);
        params.get(&bare).cloned().ok_or_else(|| {
            let name = name.map_or_else(|| format!("?{number}"), str::to_owned);
            Refusal::new(Code::BadArguments, format!("parameter {name} is missing"))
                .hint(format!("\"params\": {{\"{bare}\": …}}"))
        })
    };
    let limits = output.limits(limits_of(abide_live::operations(sql)));
    let query = state.prepare(sql, &mut bind, limits).map_err(|refusal| {
        with_unused_parameter(with_nearest_table(refusal, layout), sql, params.keys())
    })?;
    if let Some(name) = unused.first() {
        return Err(Refusal::new(
            Code::BadArguments,
            format!("the statement has no parameter {name}"),
        )
        .hint("omit it, or use it as :name"));
    }
    output.write(seq, query.columns(), query)?;
    Ok(seq)
}
