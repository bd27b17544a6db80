//! The deterministic functions of SQLite, and Abide's own functions for search.
//!
//! This is an allowlist: any other function is `no such function`, so a new SQLite function cannot
//! silently make a live query wrong.

use abide_schema::{Code, Refusal};

/// The category of a call, by the function's name and number of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// One value for one row.
    Scalar,
    /// One value for a group of rows.
    Aggregate,
    /// An aggregate that depends on the order of the rows.
    Sequence,
    /// A pure window function.
    Window(Windowed),
    /// Date and time: the position of the first time value among its arguments.
    Time(usize),
}

/// The rows that a pure window function reads of its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windowed {
    /// Which rows are peers in its order.
    Rank,
    /// The rows one by one, regardless of the frame.
    Place,
    /// One row of the frame.
    Pick,
}

const SCALAR: &[&str] = &[
    "abs",
    "char",
    "coalesce",
    "concat",
    "concat_ws",
    "format",
    "fts_match",
    "fts_rank",
    "glob",
    "hex",
    "if",
    "ifnull",
    "iif",
    "instr",
    "json",
    "json_array",
    "json_array_insert",
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
    "jsonb_array_insert",
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
    "vector_similarity",
    "zeroblob",
];

const AGGREGATE: &[&str] = &["avg", "count", "max", "min", "sum", "total"];

/// Aggregates whose value depends on the order of rows.
const SEQUENCE: &[&str] = &[
    "group_concat",
    "json_group_array",
    "json_group_object",
    "jsonb_group_array",
    "jsonb_group_object",
    "string_agg",
];

/// Window functions that depend on which rows are peers.
const RANK: &[&str] = &["cume_dist", "dense_rank", "percent_rank", "rank"];

/// Window functions that count rows one by one, regardless of the frame.
const PLACE: &[&str] = &["lag", "lead", "ntile", "row_number"];

/// Window functions that return one row of the frame.
const PICK: &[&str] = &["first_value", "last_value", "nth_value"];

/// Functions that differ between calls, connections or builds.
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

/// Functions with linear work in their arguments that do not count it themselves.
const LINEAR: &[&str] = &[
    "concat",
    "concat_ws",
    "format",
    "hex",
    "length",
    "lower",
    "printf",
    "quote",
    "soundex",
    "substr",
    "substring",
    "unistr",
    "unistr_quote",
    "upper",
];

/// Functions that count their work themselves. What they count is not known to be for visible rows.
const COUNTING: &[&str] = &[
    "fts_match",
    "fts_rank",
    "glob",
    "instr",
    "like",
    "ltrim",
    "replace",
    "rtrim",
    "trim",
    "unhex",
    "vector_similarity",
];

/// Returns how often a function reads an argument from its beginning to its end, without what it
/// counts itself. Each path of a JSON function reads the whole document.
pub(crate) fn reads(name: &str, argument: usize, arguments: usize, is_bounded: bool) -> usize {
    let name = name.to_ascii_lowercase();
    if name.starts_with("json") {
        return if argument == 0 { arguments.saturating_sub(1).max(1) } else { 1 };
    }
    let counts = is_bounded && COUNTING.contains(&name.as_str());
    usize::from(counts || LINEAR.contains(&name.as_str()))
}

/// Classifies a function.
///
/// # Errors
/// A refusal if the function does not exist or cannot be used in a live query.
pub(crate) fn classify(name: &str, arguments: usize) -> Result<Function, Refusal> {
    let lower = name.to_ascii_lowercase();
    let is_in = |list: &[&str]| list.contains(&lower.as_str());
    match lower.as_str() {
        "min" | "max" if arguments > 1 => Ok(Function::Scalar),
        "date" | "time" | "datetime" | "julianday" | "unixepoch" => Ok(Function::Time(0)),
        "strftime" => Ok(Function::Time(1)),
        "timediff" => Ok(Function::Time(0)),
        _ if is_in(AGGREGATE) => Ok(Function::Aggregate),
        _ if is_in(SEQUENCE) => Ok(Function::Sequence),
        _ if is_in(RANK) => Ok(Function::Window(Windowed::Rank)),
        _ if is_in(PLACE) => Ok(Function::Window(Windowed::Place)),
        _ if is_in(PICK) => Ok(Function::Window(Windowed::Pick)),
        _ if is_in(SCALAR) => Ok(Function::Scalar),
        _ if is_in(FICKLE) => Err(not_deterministic(&format!("{lower}()"))),
        _ => Err(Refusal::new(Code::BadSql, format!("no such function: {name}"))),
    }
}

/// `true` if a function collects the values of rows.
pub(crate) fn is_sequence(name: &str) -> bool {
    SEQUENCE.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// `true` if a function returns a random value.
pub(crate) fn is_random(name: &str) -> bool {
    ["random", "randomblob"].iter().any(|random| name.eq_ignore_ascii_case(random))
}

/// Returns the refusal of a non-deterministic expression.
pub(crate) fn not_deterministic(what: &str) -> Refusal {
    Refusal::new(
        Code::UnsupportedSql,
        format!("{what} is not deterministic, so this query cannot be live"),
    )
    .hint("run it once with `abide sql`")
}

/// `true` if a literal as a time value means the current time.
pub(crate) fn means_now(text: &str) -> bool {
    let text = text.trim();
    ["now", "subsec", "subsecond"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// `true` if a literal as a modifier depends on the server's time zone.
pub(crate) fn means_zone(text: &str) -> bool {
    let text = text.trim();
    ["localtime", "utc"].iter().any(|word| text.eq_ignore_ascii_case(word))
}
