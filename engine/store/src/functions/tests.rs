//! The replaced functions compared with SQLite's own, and the cost of calls that blocked a thread
//! for up to 26 s.

#![expect(clippy::unwrap_used, reason = "a failed test reports the line")]

use abide_schema::limits;
use proptest::prelude::*;
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::interrupt::{Interrupt, InterruptReason, QueryLimits};

/// A connection with the replacements.
fn replaced() -> (Connection, Interrupt) {
    let mut connection = Connection::open_in_memory().unwrap();
    let interrupt = super::install(&mut connection, limits::QUERY_VALUE_BYTES).unwrap();
    (connection, interrupt)
}

/// A connection with SQLite's functions and the same limits.
fn original() -> Connection {
    use rusqlite::limits::Limit;
    let connection = Connection::open_in_memory().unwrap();
    let bytes = i32::try_from(limits::PATTERN_BYTES).unwrap();
    connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, bytes).unwrap();
    connection
}

/// The type and the bytes of an expression's result, or its error.
fn output(connection: &Connection, expression: &str, values: &[Value]) -> String {
    let sql = format!("SELECT typeof(x), hex(CAST(x AS BLOB)) FROM (SELECT {expression} AS x)");
    let output = connection.query_row(&sql, rusqlite::params_from_iter(values), |row| {
        Ok(format!("{} {}", row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    });
    output.unwrap_or_else(|error| error.to_string())
}

/// Each of the functions and operators, over three values.
const EXPRESSIONS: &[&str] = &[
    "instr(?1, ?2)",
    "replace(?1, ?2, ?3)",
    "?1 LIKE ?2",
    "?1 NOT LIKE ?2",
    "?1 LIKE ?2 ESCAPE ?3",
    "?1 GLOB ?2",
    "like(?1, ?2)",
    "like(?1, ?2, ?3)",
    "glob(?1, ?2)",
    "trim(?1, ?2)",
    "ltrim(?1, ?2)",
    "rtrim(?1, ?2)",
    "trim(?1)",
    "unhex(?1)",
    "unhex(?1, ?2)",
    "json_patch(?1, ?2)",
    "hex(jsonb_patch(?1, ?2))",
    "json_array(json_patch(?1, ?2), 1)",
    "json_pretty(?1)",
    "json_pretty(?1, ?2)",
];

/// A small alphabet, so that matches occur; some characters are special in LIKE, GLOB or JSON.
fn text() -> impl Strategy<Value = String> {
    let character = prop::sample::select(vec![
        "a", "A", "b", "é", "É", "%", "_", "*", "?", "[", "]", "^", "-", "\\", "\0", "1", "f", " ",
        "日", "😀",
    ]);
    prop::collection::vec(character, 0..9).prop_map(|characters| characters.concat())
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop::sample::select(vec![
        b'a', b'A', b'%', b'*', b'[', b']', b'-', 0x80, 0xBF, 0xC3, 0xA9, 0xE2, 0xF0, 0xFF, 0,
    ]);
    prop::collection::vec(byte, 0..8)
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        12 => text().prop_map(Value::Text),
        3 => bytes().prop_map(Value::Blob),
        1 => Just(Value::Null),
        1 => (-20_i64..200).prop_map(Value::Integer),
        1 => prop::sample::select(vec![0.1, 1.5, -2.0, 1e300, 0.1 + 0.2]).prop_map(Value::Real),
        2 => prop::sample::select(vec![
            r#"{"a":1,"b":{"c":[1,2]}}"#, r#"{"b":{"c":null},"d":"x"}"#, "[1,[2],{}]",
            "{a:'x'}", "null",
            r#"{"a":"]\"["}"#,
        ]).prop_map(|text| Value::Text(text.to_owned())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn results_equal_those_of_sqlite(
        values in prop::collection::vec(value(), 3),
        raw in any::<bool>(),
    ) {
        let ((ours, _), own) = (replaced(), original());
        for expression in EXPRESSIONS {
            // Also texts that are not UTF-8.
            let cast = |at: usize, expression: &str| {
                expression.replace(&format!("?{at}"), &format!("CAST(?{at} AS TEXT)"))
            };
            let expression = if raw {
                (1..=3).fold((*expression).to_owned(), |e, at| cast(at, &e))
            } else {
                (*expression).to_owned()
            };
            let given = (1..=3).filter(|at| expression.contains(&format!("?{at}"))).count();
            let values = &values[..given];
            prop_assert_eq!(
                output(&ours, &expression, values), output(&own, &expression, values),
                "{} of {:?}", expression, values
            );
        }
    }

    /// Longer texts of two letters, with many partial matches.
    #[test]
    fn long_results_equal_those_of_sqlite(
        text in "[ab]{0,200}",
        other in "[ab%_*?]{0,12}",
        third in "[abc]{0,3}",
    ) {
        let ((ours, _), own) = (replaced(), original());
        let values = [text, other, third].map(Value::Text);
        for expression in &EXPRESSIONS[..12] {
            let given = (1..=3).filter(|at| expression.contains(&format!("?{at}"))).count();
            let values = &values[..given];
            prop_assert_eq!(output(&ours, expression, values), output(&own, expression, values));
        }
    }
}

/// Replaced functions are allowed wherever SQLite's own are.
#[test]
fn indexes_checks_and_generated_columns_may_use_replaced_functions() {
    let (ours, _) = replaced();
    ours.execute_batch(
        "PRAGMA trusted_schema = off;
         CREATE TABLE t (a TEXT CHECK (a NOT LIKE 'x%'), b AS (replace(a, 'a', 'b')) STORED);
         CREATE INDEX i ON t (instr(a, 'b')) WHERE a GLOB '*a*';
         CREATE TRIGGER r AFTER INSERT ON t WHEN trim(new.a, 'z') = '' BEGIN SELECT RAISE(FAIL, 'empty'); END;
         INSERT INTO t VALUES ('aab');",
    )
    .unwrap();
    assert_eq!(
        output(&ours, "(SELECT b FROM t WHERE a GLOB '*a*' AND instr(a, 'b') = 3)", &[]),
        "text 626262"
    );
    assert!(ours.execute("INSERT INTO t VALUES ('xa')", []).is_err());
}

const LARGE: QueryLimits = QueryLimits {
    columns: usize::MAX,
    rows: limits::QUERY_ROWS,
    bytes: limits::QUERY_BYTES,
    time: std::time::Duration::from_secs(3_600),
    of_processor: false,
    steps: 1_000_000,
    visible_steps: u64::MAX,
    of_each_row: false,
    memory_bytes: usize::MAX,
    value_bytes: limits::QUERY_VALUE_BYTES,
};

/// Calls that blocked a reader or the writer, as measured before: `instr` 17 s, `replace` 26 s,
/// LIKE 18 s. Each now ends within a million steps, where functions count their work as steps, or
/// is refused.
#[test]
fn no_call_exceeds_its_allowance() {
    let (ours, interrupt) = replaced();
    for (expression, ends) in [
        ("instr(printf('%.*c', 1500000, 'a'), printf('%.*c', 750000, 'a') || 'b')", true),
        ("replace(printf('%.*c', 4000000, 'a'), printf('%.*c', 2000000, 'a') || 'b', '')", true),
        ("replace(printf('%.*c', 100000, 'a'), 'a', printf('%.*c', 100000, 'b'))", true),
        ("printf('%.*c', 4000000, 'a') LIKE '%' || printf('%.*c', 4000, 'a') || 'b'", false),
        ("printf('%.*c', 4000000, 'a') LIKE '%a' || printf('%.*c', 4000, '_') || 'b%c'", false),
        ("printf('%.*c', 4000000, 'a') GLOB '*[a-b]' || printf('%.*c', 4000, '?') || 'b'", false),
        ("'x' LIKE printf('%.*c', 5000, '%')", true),
        ("trim(printf('%.*c', 1000000, 'a'), printf('%.*c', 100000, 'b') || 'a')", false),
        ("ltrim(printf('%.*c', 4000000, 'a'), printf('%.*c', 4000, 'b') || 'a')", false),
        ("unhex(printf('%.*c', 1000000, '-'), printf('%.*c', 100000, '_') || '-')", false),
        (
            "json_patch((SELECT json_group_object(value, 1) FROM json_each('[' || substr(replace(hex(zeroblob(15000)), '00', ',1'), 2) || ']')),
                (SELECT json_group_object(key || 'x', 1) FROM json_each('[' || substr(replace(hex(zeroblob(15000)), '00', ',1'), 2) || ']')))",
            true,
        ),
        (
            "json_pretty(replace(hex(zeroblob(900)), '00', '[') || '1' \
             || replace(hex(zeroblob(900)), '00', ']'), printf('%.*c', 1000000, ' '))",
            true,
        ),
    ] {
        interrupt.take_worked();
        let running = interrupt.start(&LARGE);
        let answer = output(&ours, expression, &[]);
        drop(running);
        let worked = interrupt.take_worked();
        let interrupted = answer == "interrupted" && interrupt.reason() == InterruptReason::Steps;
        assert!(ends != interrupted, "{expression}: {answer}, {worked} steps");
        assert!(worked <= 2_500_000, "{expression}: {worked} steps");
    }
}

/// One call of `json_patch` with 100,000 keys held the writer for a minute: its work was counted as steps, which do not
/// limit callers with a scope, and then one call did it. The class: a call that is not linear and cannot be interrupted.
#[test]
fn json_patch_of_many_keys_is_refused() {
    let (ours, interrupt) = replaced();
    let endless = QueryLimits { steps: u64::MAX, ..LARGE };
    let patch = |keys: u32, value: &str| {
        let keys: Vec<String> = (0..keys).map(|key| format!(r#""{key}":{value}"#)).collect();
        Value::Text(format!("{{{}}}", keys.join(",")))
    };
    for (values, is_refused) in [
        ([patch(0, "1"), patch(1_000, "1")], false),
        ([patch(0, "1"), patch(20_000, "1")], true),
        ([patch(20_000, "1"), patch(20_000, "1")], true),
        // Most colons are in a text.
        ([patch(100, "1"), patch(1, &format!(r#""{}""#, "a:".repeat(50_000)))], false),
        ([patch(100_000, "1"), patch(1, "2")], false),
    ] {
        let running = interrupt.start(&endless);
        let answer = output(&ours, "length(json_patch(?1, ?2))", &values);
        drop(running);
        assert_eq!(answer == "string or blob too big", is_refused, "{answer}");
        assert_eq!(answer.starts_with("integer"), !is_refused, "{answer}");
    }
}

/// The time limit interrupts a statement within a call.
#[test]
fn the_time_limit_interrupts_a_call() {
    let (ours, interrupt) = replaced();
    let limits = QueryLimits { time: std::time::Duration::ZERO, steps: u64::MAX, ..LARGE };
    let running = interrupt.start(&limits);
    let answer = output(&ours, "instr(zeroblob(1000000), x'01')", &[]);
    drop(running);
    assert_eq!((answer.as_str(), interrupt.reason()), ("interrupted", InterruptReason::Time));
    assert_eq!(output(&ours, "instr(zeroblob(1000000), x'01')", &[]), "integer 30");
}

/// A function with many paths reads the document once for each.
#[test]
fn the_number_of_arguments_is_limited() {
    let (ours, _) = replaced();
    let paths = vec!["'$.a'"; limits::FUNCTION_ARGUMENTS].join(", ");
    let output = output(&ours, &format!("json_extract('{{}}', {paths})"), &[]);
    assert!(output.contains("too many arguments"), "{output}");
}

/// A value of an expression, as SQLite quotes it, or its error.
fn quoted(connection: &Connection, expression: &str) -> String {
    let quoted = connection.query_row(&format!("SELECT quote({expression})"), [], |row| row.get(0));
    quoted.unwrap_or_else(|error| error.to_string())
}

#[test]
fn a_text_matches_a_query_of_fts5() {
    let (connection, _) = replaced();
    for (expression, expected) in [
        ("fts_match('The refunds of Zoë', 'refund')", "1"),
        ("fts_match('The refunds of Zoë', 'zoe')", "1"),
        ("fts_match('The refunds of Zoë', 'order')", "0"),
        ("fts_match('The refunds of Zoë', '\"refunds of\" AND zo*')", "1"),
        ("fts_match('The refunds of Zoë', 'refund NOT zoe')", "0"),
        ("fts_match('', 'refund')", "0"),
        ("fts_match('x', '')", "0"),
        ("fts_match(NULL, 'x')", "NULL"),
        ("fts_match('x', NULL)", "NULL"),
        ("fts_match(17, '17')", "1"),
        // The index has one text at a time.
        ("fts_match('one', 'one') + fts_match('two', 'one')", "1"),
        ("fts_rank('The refunds of Zoë', 'refund zoe')", "1.0"),
        ("fts_rank('The refunds of Zoë', 'Refund order? REFUND!')", "0.5"),
        ("fts_rank('x', '?!')", "0.0"),
        ("fts_rank('x', NULL)", "NULL"),
    ] {
        assert_eq!(quoted(&connection, expression), expected, "{expression}");
    }
}

/// A wrong query is an error, also the forms with which FTS5 returns facts about its index; and the next query works.
#[test]
fn a_wrong_query_is_an_error() {
    let (connection, _) = replaced();
    for query in ["\"open", "a AND", "(a", "nothing:a", "*reads", " *id", "^"] {
        let quoted_query = query.replace('\'', "''");
        let output = quoted(&connection, &format!("fts_match('a b', '{quoted_query}')"));
        assert!(!matches!(output.as_str(), "0" | "1"), "{query}: {output}");
        assert_eq!(quoted(&connection, "fts_match('a b', 'b')"), "1", "after {query}");
        // It reads any text as words.
        let output = quoted(&connection, &format!("fts_rank('a b', '{quoted_query}')"));
        assert!(output.parse::<f64>().is_ok(), "{query}: {output}");
    }
    let long = format!("fts_match('a', '{}')", "a ".repeat(2_049));
    assert_eq!(quoted(&connection, &long), "the query of fts_match or fts_rank is too long");
}

/// One call of `fts_match` took seconds, and neither the time nor the steps of a statement stopped it: its work was not
/// counted (`NEAR`, a long phrase), or counted before it was done all at once. Now a call visits each word of the text once
/// for each term of the query, and ends at either limit.
#[test]
fn a_search_is_bounded_within_a_call() {
    let (connection, interrupt) = replaced();
    let many = |word: &str, times: usize| word.repeat(times);
    let different: String = (0..7_000).map(|number| format!("w{number} ")).collect();
    for (text, query, expected) in [
        (many("a b ", 5_000), format!("NEAR({}, 1000)", many("a b ", 100)), Some(true)),
        (many("a b ", 5_000), format!("NEAR({} c, 1000)", many("a b ", 100)), Some(false)),
        (many("a ", 15_000), format!("\"{}\"", many("a ", 1_800)), Some(true)),
        (many("a ", 15_000), format!("\"{}b\"", many("a ", 1_800)), Some(false)),
        (many("a ", 15_000) + "b", format!("\"{}c b\"", many("a ", 1_800)), Some(false)),
        (different.clone(), many("w* OR ", 200) + "v", Some(true)),
        (different, many("v* OR ", 200) + "v", Some(false)),
        // Each place of the text is compared with the whole phrase.
        (many("a ", 500_000) + "b", format!("\"{}b b\"", many("a ", 1_800)), None),
        (many("a b ", 500_000), format!("NEAR({} b b a, 0)", many("\"a b a\" ", 100)), None),
    ] {
        for limits in [
            // First, because the words of a query and of a small text are kept for the next call.
            QueryLimits { steps: u64::MAX, time: std::time::Duration::ZERO, ..LARGE },
            QueryLimits { steps: 4_000_000, ..LARGE },
        ] {
            interrupt.take_worked();
            let running = interrupt.start(&limits);
            let found: Result<bool, _> =
                connection.query_row("SELECT fts_match(?1, ?2)", (&text, &query), |row| row.get(0));
            drop(running);
            let start = &query[..20];
            let worked = interrupt.take_worked();
            if limits.time.is_zero() {
                assert_eq!(interrupt.reason(), InterruptReason::Time, "{start}: {found:?}");
                assert!(worked < 20_000, "{start}: {worked} steps");
                continue;
            }
            match expected {
                Some(expected) => assert_eq!(found, Ok(expected), "{start}: {worked} steps"),
                None => {
                    assert_eq!(interrupt.reason(), InterruptReason::Steps, "{start}: {found:?}")
                }
            }
            assert!(worked < 4_010_000, "{start}: {worked} steps");
        }
    }
    let many = quoted(&connection, &format!("fts_match('a', '{}')", many("a ", 257)));
    assert_eq!(many, "the query of fts_match has more than 256 words and strings");
}

/// Whether a table of FTS5 with this text matches.
fn matches_in_fts5(text: &str, query: &str) -> Result<bool, String> {
    let connection = Connection::open_in_memory().unwrap();
    connection
        .execute_batch(
            "CREATE VIRTUAL TABLE texts USING fts5(
               text, content = '', tokenize = 'porter unicode61 remove_diacritics 2')",
        )
        .unwrap();
    connection.execute("INSERT INTO texts(rowid, text) VALUES (1, ?1)", [text]).unwrap();
    let found =
        connection.query_row("SELECT count(*) FROM texts WHERE texts MATCH ?1", [query], |row| {
            row.get(0)
        });
    found.map_err(|error| error.to_string())
}

/// Queries of FTS5, mostly valid.
fn search_query() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "a",
        "b",
        "c",
        "ab",
        "a*",
        "a *",
        "\"a b\"",
        "\"b a\"",
        "\"\"",
        "\"?\"",
        "\"? a\"*",
        "_",
        "a_b",
        "^a",
        "^ \"a b\"",
        "a + b",
        "a* + b",
        "a + \"\" *",
        "\"a b\" + c",
        "running",
        "run*",
        "É",
        "e",
        "\"a \"\" b\"",
        "NEAR",
    ]);
    let near = prop::collection::vec(word.clone(), 1..4);
    let leaf = prop_oneof![
        6 => word.prop_map(str::to_owned),
        1 => near.clone().prop_map(|words| format!("NEAR({})", words.join(" "))),
        2 => (near, 0..5).prop_map(|(words, most)| format!("NEAR({}, {most})", words.join(" "))),
    ];
    leaf.prop_recursive(4, 12, 3, |inner| {
        let operator = prop::sample::select(vec![" ", " AND ", " OR ", " NOT ", "  \t"]);
        prop_oneof![
            3 => (inner.clone(), operator, inner.clone()).prop_map(|(one, operator, other)| one + operator + &other),
            1 => inner.prop_map(|one| format!("({one})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// The matching is our own, and equals that of FTS5.
    #[test]
    fn searches_equal_those_of_fts5(
        words in prop::collection::vec(
            prop::sample::select(vec!["a", "b", "c", "ab", "abc", "runs", "é", "?", "_", "A"]), 0..12,
        ),
        query in search_query(),
    ) {
        let (connection, _) = replaced();
        let text = words.join(" ");
        let ours: Result<bool, _> =
            connection.query_row("SELECT fts_match(?1, ?2)", (&text, &query), |row| row.get(0));
        let ours = ours.map_err(|error| error.to_string());
        prop_assert_eq!(ours, matches_in_fts5(&text, &query), "{:?} in {:?}", query, text);
    }
}

/// A text of several parts is searched as a whole.
#[test]
fn a_phrase_is_found_between_parts_of_a_text() {
    let (connection, _) = replaced();
    let text: String = (0..4_000).map(|number| format!("w{number} ")).collect();
    for number in 0..3_999 {
        let query = format!("\"w{number} w{}\"", number + 1);
        let found: bool = connection
            .query_row("SELECT fts_match(?1, ?2)", (&text, &query), |row| row.get(0))
            .unwrap();
        assert!(found, "{query}");
    }
}

/// A search in a large text with many words stops like any other statement, before it has read the text.
#[test]
fn a_search_counts_its_work() {
    let (connection, interrupt) = replaced();
    let text = "a b ".repeat(1 << 20);
    let query = "a* OR ".repeat(200) + "a";
    let limits = QueryLimits { steps: 1_000_000, ..LARGE };
    let running = interrupt.start(&limits);
    let found: Result<bool, _> =
        connection.query_row("SELECT fts_match(?1, ?2)", (&text, &query), |row| row.get(0));
    drop(running);
    assert!(found.is_err());
    assert_eq!(interrupt.reason(), InterruptReason::Steps);
}

#[test]
fn vectors_are_compared_by_their_cosine() {
    let (connection, _) = replaced();
    for (expression, expected) in [
        ("vector_similarity(x'0000803F00000000', x'0000003F00000000')", "1.0"),
        ("vector_similarity(x'0000803F00000000', x'000000000000803F')", "0.0"),
        ("vector_similarity(x'0000803F00000000', x'000080BF00000000')", "-1.0"),
        ("vector_similarity(x'0000803F', x'0000803F00000000')", "NULL"),
        ("vector_similarity(x'00000000', x'0000803F')", "NULL"),
        ("vector_similarity(x'0000C07F', x'0000803F')", "NULL"),
        ("vector_similarity(x'', x'')", "NULL"),
        ("vector_similarity(x'00', x'00')", "NULL"),
        ("vector_similarity('text', x'0000803F')", "NULL"),
    ] {
        assert_eq!(quoted(&connection, expression), expected, "{expression}");
    }
}
