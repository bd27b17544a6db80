//! The functions of SQLite: which of them give the same result for the same arguments every time.
//!
//! A list of what is known rather than of what is forbidden: a function that is not here is `no such
//! function`, so that a new one in SQLite cannot make a live query wrong unseen.

use abide_schema::{Code, Refusal};

/// What a call is, by the function's name and number of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// One value for one row.
    Scalar,
    /// One value for a group of rows.
    Aggregate,
    /// Date and time: the position of the first time value among its arguments.
    Time(usize),
}

const SCALAR: &[&str] = &[
    "abs",
    "char",
    "coalesce",
    "concat",
    "concat_ws",
    "format",
    "glob",
    "hex",
    "if",
    "ifnull",
    "iif",
    "instr",
    "json",
    "json_array",
    "json_array_length",
    "json_error_position",
    "json_extract",
    "json_insert",
    "json_object",
    "json_patch",
    "json_pretty",
    "json_quote",
    "json_remove",
    "json_replace",
    "json_set",
    "json_type",
    "json_valid",
    "jsonb",
    "jsonb_array",
    "jsonb_extract",
    "jsonb_insert",
    "jsonb_object",
    "jsonb_patch",
    "jsonb_remove",
    "jsonb_replace",
    "jsonb_set",
    "length",
    "like",
    "likelihood",
    "likely",
    "lower",
    "ltrim",
    "nullif",
    "octet_length",
    "printf",
    "quote",
    "replace",
    "round",
    "rtrim",
    "sign",
    "soundex",
    "substr",
    "substring",
    "trim",
    "typeof",
    "unhex",
    "unicode",
    "unistr",
    "unistr_quote",
    "unlikely",
    "upper",
    "zeroblob",
];

const AGGREGATE: &[&str] = &["avg", "count", "max", "min", "sum", "total"];

/// Aggregates whose value depends on the order in which rows are met, and window functions.
const ORDERED: &[&str] = &[
    "cume_dist",
    "dense_rank",
    "first_value",
    "group_concat",
    "json_group_array",
    "json_group_object",
    "jsonb_group_array",
    "jsonb_group_object",
    "lag",
    "last_value",
    "lead",
    "nth_value",
    "ntile",
    "percent_rank",
    "rank",
    "row_number",
    "string_agg",
];

/// Different from one call, connection or build to the next.
const FICKLE: &[&str] = &[
    "changes",
    "last_insert_rowid",
    "load_extension",
    "random",
    "randomblob",
    "sqlite_compileoption_get",
    "sqlite_compileoption_used",
    "sqlite_offset",
    "sqlite_source_id",
    "sqlite_version",
    "total_changes",
];

/// What the function of this name is.
///
/// # Errors
/// A refusal where there is none, or where it can have no place in a live query.
pub(crate) fn classify(name: &str, arguments: usize) -> Result<Function, Refusal> {
    let lower = name.to_ascii_lowercase();
    let known = |list: &[&str]| list.contains(&lower.as_str());
    match lower.as_str() {
        "min" | "max" if arguments > 1 => Ok(Function::Scalar),
        "date" | "time" | "datetime" | "julianday" | "unixepoch" => Ok(Function::Time(0)),
        "strftime" => Ok(Function::Time(1)),
        "timediff" => Ok(Function::Time(0)),
        _ if known(AGGREGATE) => Ok(Function::Aggregate),
        _ if known(SCALAR) => Ok(Function::Scalar),
        _ if known(FICKLE) => Err(not_deterministic(&format!("{lower}()"))),
        _ if known(ORDERED) => Err(Refusal::new(
            Code::UnsupportedSql,
            format!("{lower}() depends on the order of rows, so this query cannot be live"),
        )
        .hint("run it once with  abide sql")),
        _ => Err(Refusal::new(Code::BadSql, format!("no such function: {name}"))),
    }
}

/// The refusal of what gives another result each time.
pub(crate) fn not_deterministic(what: &str) -> Refusal {
    Refusal::new(
        Code::UnsupportedSql,
        format!("{what} gives another result each time, so this query cannot be live"),
    )
    .hint("run it once with  abide sql")
}

/// Whether a literal as a time value means the present.
pub(crate) fn means_now(text: &str) -> bool {
    let text = text.trim();
    ["now", "subsec", "subsecond"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Whether a literal as a modifier reads the server's time zone.
pub(crate) fn means_zone(text: &str) -> bool {
    let text = text.trim();
    ["localtime", "utc"].iter().any(|word| text.eq_ignore_ascii_case(word))
}
