//! Errors with their places, and the bounds of hostile files. `oracle` compares valid documents with another reader.

mod oracle;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use expect_test::{Expect, expect};
use serde::Deserialize;
use serde_json::Value;

use crate::{Document, Error, Position, from_str};

/// A small configuration with one field of each kind.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    name: String,
    nickname: Option<String>,
    count: i64,
    port: u16,
    ratio: f64,
    enabled: bool,
    tags: Vec<String>,
    mode: Mode,
    stop: Option<Stop>,
    servers: Vec<Server>,
    pair: Option<(u8, u8)>,
    limits: BTreeMap<String, i64>,
    sink: Option<Sink>,
    target: Option<Target>,
    extra: Option<Extra>,
    any: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Fast,
    Slow,
}

#[expect(dead_code, reason = "only their errors are tested")]
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stop {
    Length,
    Other(String),
    Limit { tokens: u64 },
}

#[expect(dead_code, reason = "only their errors are tested")]
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    url: String,
    #[serde(default)]
    mode: Mode,
}

/// serde reads the fields of such an enum before it knows the variant.
#[expect(dead_code, reason = "only their errors are tested")]
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Sink {
    File { path: String },
    Http { url: String, retries: Option<u8> },
}

#[expect(dead_code, reason = "only their errors are tested")]
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a word, or a map with url")]
enum Target {
    Word(String),
    Server(Server),
}

#[expect(dead_code, reason = "only their errors are tested")]
#[derive(Debug, Deserialize)]
struct Extra {
    #[serde(flatten)]
    server: Server,
}

fn line(error: &Error) -> String {
    let at = error.position().map_or("nowhere".to_owned(), |at| at.to_string());
    format!("{at}: {error}")
}

/// The error of each text, or `valid`.
fn check(texts: &[&str], expected: Expect) {
    let mut lines = String::new();
    for text in texts {
        let read = from_str::<Config>(text);
        let shown = read.map_or_else(|error| line(&error), |_| "valid".to_owned());
        writeln!(lines, "{text:?}\n    {shown}").expect("a String accepts text");
    }
    expected.assert_eq(&lines);
}

#[test]
fn an_unknown_name_has_the_place_of_the_name() {
    check(
        &[
            "colour: red\n",
            "name: a\ncount: 1\ncolour: red\n",
            "servers:\n  - url: x\n    mode: slow\n  - url: y\n    colour: red\n",
            "servers: [{ url: x }, { url: y, colour: red }]\n",
            "{\"name\": \"a\", \"servers\": [{\"url\": \"x\",\n \"colour\": 1}]}",
            "'name': a\n\"colour\": red\n",
            "name: \"été\"\nservers: [{ url: \"日本\", colour: red }]\n",
            "name:\ta\nservers: [{ url: x,\tcolour: red }]\n",
            "name: a\r\nservers:\r\n  - url: x\r\n    colour: red\r\n",
            "\u{feff}colour: red\n",
            "\u{feff}name: a\ncolour: red\n",
            "? colour\n: red\n",
            "base: &base { a: 1 }\n",
            "mode: sluw\n",
            "servers:\n  - url: x\n    mode: sluw\n",
            "mode: null\n",
            "mode: 7\n",
            "stop: { othr: x }\n",
            "sink: { kind: fiel, path: x }\n",
            "sink:\n  kind: file\n  path: x\n  colour: red\n",
            "extra:\n  url: x\n  mode: sluw\n",
        ],
        expect![[r#"
            "colour: red\n"
                1:1: unknown field `colour`, expected one of name, nickname, count, port, ratio, enabled, tags, mode, stop, servers, pair, limits, sink, target, extra, any
            "name: a\ncount: 1\ncolour: red\n"
                3:1: unknown field `colour`, expected one of name, nickname, count, port, ratio, enabled, tags, mode, stop, servers, pair, limits, sink, target, extra, any
            "servers:\n  - url: x\n    mode: slow\n  - url: y\n    colour: red\n"
                5:5: unknown field `colour`, expected one of url, mode
            "servers: [{ url: x }, { url: y, colour: red }]\n"
                1:33: unknown field `colour`, expected one of url, mode
            "{\"name\": \"a\", \"servers\": [{\"url\": \"x\",\n \"colour\": 1}]}"
                2:2: unknown field `colour`, expected one of url, mode
            "'name': a\n\"colour\": red\n"
                2:1: unknown field `colour`, expected one of name, nickname, count, port, ratio, enabled, tags, mode, stop, servers, pair, limits, sink, target, extra, any
            "name: \"été\"\nservers: [{ url: \"日本\", colour: red }]\n"
                2:24: unknown field `colour`, expected one of url, mode
            "name:\ta\nservers: [{ url: x,\tcolour: red }]\n"
                2:21: unknown field `colour`, expected one of url, mode
            "name: a\r\nservers:\r\n  - url: x\r\n    colour: red\r\n"
                4:5: unknown field `colour`, expected one of url, mode
            "\u{feff}colour: red\n"
                1:1: unknown field `colour`, expected one of name, nickname, count, port, ratio, enabled, tags, mode, stop, servers, pair, limits, sink, target, extra, any
            "\u{feff}name: a\ncolour: red\n"
                2:1: unknown field `colour`, expected one of name, nickname, count, port, ratio, enabled, tags, mode, stop, servers, pair, limits, sink, target, extra, any
            "? colour\n: red\n"
                1:3: unknown field `colour`, expected one of name, nickname, count, port, ratio, enabled, tags, mode, stop, servers, pair, limits, sink, target, extra, any
            "base: &base { a: 1 }\n"
                1:1: unknown field `base`, expected one of name, nickname, count, port, ratio, enabled, tags, mode, stop, servers, pair, limits, sink, target, extra, any
            "mode: sluw\n"
                1:7: unknown value `sluw`, expected one of fast, slow
            "servers:\n  - url: x\n    mode: sluw\n"
                3:11: unknown value `sluw`, expected one of fast, slow
            "mode: null\n"
                1:7: unknown value `null`, expected one of fast, slow
            "mode: 7\n"
                1:7: unknown value `7`, expected one of fast, slow
            "stop: { othr: x }\n"
                1:9: unknown value `othr`, expected one of length, other, limit
            "sink: { kind: fiel, path: x }\n"
                1:15: unknown value `fiel`, expected one of file, http
            "sink:\n  kind: file\n  path: x\n  colour: red\n"
                4:3: unknown field `colour`, expected one of path
            "extra:\n  url: x\n  mode: sluw\n"
                3:9: unknown value `sluw`, expected one of fast, slow
        "#]],
    );
}

#[test]
fn a_wrong_type_has_the_place_of_the_value() {
    check(
        &[
            "name: [a]\n",
            "name: { a: b }\n",
            "name:\n",
            "name: ~\n",
            "name: null\n",
            "nickname: null\n",
            "nickname:\n",
            "count: many\n",
            "count: 1.5\n",
            "count:\n",
            "count: [1]\n",
            "count: \"5\"\n",
            "count: 0x1F\n",
            "count: 1_000\n",
            "count: 007\n",
            "count: 9223372036854775808\n",
            "count: 123456789012345678901234567890123456789012345678901234567890\n",
            "port: -1\n",
            "port: 70000\n",
            "port: no\n",
            "ratio: fast\n",
            "ratio: inf\n",
            "ratio: .inf\n",
            "ratio: 1e999\n",
            "ratio: 3\n",
            "enabled: yes\n",
            "enabled: True\n",
            "tags: a\n",
            "tags: { a: b }\n",
            "tags:\n  - a\n  - [b]\n",
            "tags:\n  - a\n  - ~\n",
            "tags: []\n",
            "tags:\n",
            "servers: { url: x }\n",
            "servers: [x]\n",
            "pair: [1, 2]\n",
            "pair: [1]\n",
            "pair: [1, 2, 3]\n",
            "pair: [1, 300]\n",
            "limits: { a: 1, b: x }\n",
            "limits:\n  1: 1\n  true: 2\n",
            "stop: length\n",
            "stop: other\n",
            "stop: { other: x }\n",
            "stop: { other: [x] }\n",
            "stop: { length: x }\n",
            "stop: { length: }\n",
            "stop: { other: x, length: }\n",
            "stop: [other]\n",
            "stop: { limit: { tokens: -1 } }\n",
            "sink: { kind: http, url: x, retries: many }\n",
            "sink: { kind: http }\n",
            "target: word\n",
            "target: { url: x }\n",
            "target: { uri: x }\n",
            "servers:\n  - mode: slow\n",
            "servers:\n  - url: x\n  -\n    mode: slow\n    \n",
            "any: .nan\n",
            "any: [1, 1e999]\n",
            "any: !!int x\n",
            "any: !!map x\n",
            "any: !!null\n  a: b\n",
            "count: !!str 5\n",
            "name: !!int 5\n",
            "name: !!binary aGVsbG8=\n",
            "name: !!binary ???\n",
            "name: !!timestamp 2001-12-14\n",
            "name: !colour red\n",
            "text\n",
            "[name]\n",
            "~\n",
            "---\n",
            "",
            "# only a comment\n",
        ],
        expect![[r##"
            "name: [a]\n"
                1:7: expected a text
            "name: { a: b }\n"
                1:7: expected a text
            "name:\n"
                1:5: expected a text
            "name: ~\n"
                1:7: expected a text
            "name: null\n"
                1:7: expected a text
            "nickname: null\n"
                valid
            "nickname:\n"
                1:9: the value is missing: write one, or remove the field
            "count: many\n"
                1:8: expected an integer
            "count: 1.5\n"
                1:8: expected an integer
            "count:\n"
                1:6: expected an integer
            "count: [1]\n"
                1:8: expected an integer
            "count: \"5\"\n"
                valid
            "count: 0x1F\n"
                valid
            "count: 1_000\n"
                valid
            "count: 007\n"
                1:8: expected an integer
            "count: 9223372036854775808\n"
                1:8: expected an integer from -9223372036854775808 to 9223372036854775807
            "count: 123456789012345678901234567890123456789012345678901234567890\n"
                1:8: expected an integer
            "port: -1\n"
                1:7: expected an integer that is not negative
            "port: 70000\n"
                1:7: expected an integer from 0 to 65535
            "port: no\n"
                1:7: expected an integer that is not negative
            "ratio: fast\n"
                1:8: expected a number
            "ratio: inf\n"
                1:8: expected a number
            "ratio: .inf\n"
                valid
            "ratio: 1e999\n"
                1:8: expected a number
            "ratio: 3\n"
                valid
            "enabled: yes\n"
                1:10: expected true or false
            "enabled: True\n"
                valid
            "tags: a\n"
                1:7: expected a list
            "tags: { a: b }\n"
                1:7: expected a list
            "tags:\n  - a\n  - [b]\n"
                3:5: expected a text
            "tags:\n  - a\n  - ~\n"
                3:5: expected a text
            "tags: []\n"
                valid
            "tags:\n"
                1:5: expected a list
            "servers: { url: x }\n"
                1:10: expected a list
            "servers: [x]\n"
                1:11: expected a map of fields
            "pair: [1, 2]\n"
                valid
            "pair: [1]\n"
                1:7: invalid length 1, expected a tuple of size 2
            "pair: [1, 2, 3]\n"
                1:14: the list has more values than expected
            "pair: [1, 300]\n"
                1:11: expected an integer from 0 to 255
            "limits: { a: 1, b: x }\n"
                1:20: expected an integer
            "limits:\n  1: 1\n  true: 2\n"
                valid
            "stop: length\n"
                valid
            "stop: other\n"
                1:7: `other` needs a value: write `{ other: VALUE }`
            "stop: { other: x }\n"
                valid
            "stop: { other: [x] }\n"
                1:16: expected a text
            "stop: { length: x }\n"
                1:17: expected no value
            "stop: { length: }\n"
                valid
            "stop: { other: x, length: }\n"
                1:7: expected a map with one key
            "stop: [other]\n"
                1:7: expected a text
            "stop: { limit: { tokens: -1 } }\n"
                1:26: expected an integer that is not negative
            "sink: { kind: http, url: x, retries: many }\n"
                1:38: invalid type: string "many", expected u8
            "sink: { kind: http }\n"
                1:7: missing field `url`
            "target: word\n"
                valid
            "target: { url: x }\n"
                valid
            "target: { uri: x }\n"
                1:9: a word, or a map with url
            "servers:\n  - mode: slow\n"
                2:5: missing field `url`
            "servers:\n  - url: x\n  -\n    mode: slow\n    \n"
                4:5: missing field `url`
            "any: .nan\n"
                1:6: `.nan` is not a finite number
            "any: [1, 1e999]\n"
                1:10: `1e999` is not a finite number
            "any: !!int x\n"
                1:12: expected an integer
            "any: !!map x\n"
                1:12: the tag !!map does not fit the value
            "any: !!null\n  a: b\n"
                2:3: the tag !!null does not fit the value
            "count: !!str 5\n"
                1:14: expected an integer
            "name: !!int 5\n"
                1:13: expected a text
            "name: !!binary aGVsbG8=\n"
                valid
            "name: !!binary ???\n"
                1:16: the value of !!binary must be a text in Base64
            "name: !!timestamp 2001-12-14\n"
                1:19: expected a text
            "name: !colour red\n"
                valid
            "text\n"
                1:1: expected a map of fields
            "[name]\n"
                1:1: expected a map of fields
            "~\n"
                1:1: expected a map of fields
            "---\n"
                1:4: expected a map of fields
            ""
                valid
            "# only a comment\n"
                valid
        "##]],
    );
}

#[test]
fn a_text_that_is_not_one_document_has_the_place_of_the_mistake() {
    check(
        &[
            "name: [a\n",
            "name: 'a\n",
            "name: a: b\n",
            "name: a\n  count: 1\n",
            "\tname: a\n",
            "name: *nothing\n",
            "any: &a [*a]\n",
            "name: a\n---\nname: b\n",
            "name: a\n...\n",
            "name: a\n...\nname: b\n",
            "---\nname: a\n---\n",
            "name: a\nname: b\n",
            "any:\n  a: 1\n  \"a\": 2\n",
            "any: { 1: a, '1': b }\n",
            "servers:\n  - { url: x, url: y }\n",
            "any: { [a]: b }\n",
            "any: { ? { a: b } : c }\n",
            "? [name]\n: b\n",
            "~: a\n",
            "any: { ~: a }\n",
            "any: \"\\q\"\n",
            "any: \"\\ud800\"\n",
            "any: \u{0}\n",
        ],
        expect![[r#"
            "name: [a\n"
                1:7: unclosed bracket '['
            "name: 'a\n"
                2:1: invalid indentation in multiline quoted scalar
            "name: a: b\n"
                1:8: mapping values are not allowed in this context
            "name: a\n  count: 1\n"
                2:8: mapping values are not allowed in this context
            "\tname: a\n"
                valid
            "name: *nothing\n"
                1:7: the alias refers to an unknown anchor
            "any: &a [*a]\n"
                1:10: the alias is within the value that it refers to
            "name: a\n---\nname: b\n"
                2:1: the file has several documents, and only one can be read
            "name: a\n...\n"
                valid
            "name: a\n...\nname: b\n"
                3:1: the file has several documents, and only one can be read
            "---\nname: a\n---\n"
                3:1: the file has several documents, and only one can be read
            "name: a\nname: b\n"
                2:1: the key name is there twice
            "any:\n  a: 1\n  \"a\": 2\n"
                3:3: the key a is there twice
            "any: { 1: a, '1': b }\n"
                1:14: the key 1 is there twice
            "servers:\n  - { url: x, url: y }\n"
                2:15: the key url is there twice
            "any: { [a]: b }\n"
                1:8: a key must be a text
            "any: { ? { a: b } : c }\n"
                1:10: a key must be a text
            "? [name]\n: b\n"
                1:3: a key must be a text
            "~: a\n"
                1:1: expected a text
            "any: { ~: a }\n"
                1:8: expected a text
            "any: \"\\q\"\n"
                1:6: while parsing a quoted scalar, found unknown escape character
            "any: \"\\ud800\"\n"
                1:6: while parsing a quoted scalar, found high surrogate without following low surrogate
            "any: \0\n"
                1:6: unexpected character: `\u{0}'
        "#]],
    );
}

/// The error of a value that an alias or a merge key repeats is at the value, not at its use.
#[test]
fn aliases_and_merge_keys() {
    check(
        &[
            "name: &a many\ncount: *a\n",
            "any:\n  base: &base { url: x, colour: red }\nservers:\n  - *base\n",
            "any:\n  base: &base\n    url: x\n    mode: sluw\nservers:\n  - <<: *base\n",
            "any:\n  base: &base { url: x }\nservers:\n  - { <<: *base, mode: slow }\n",
            "any: { <<: ~ }\n",
            "any: { <<: a }\n",
            "any: { <<: [{ a: 1 }, b] }\n",
            "any: { \"<<\": a }\n",
        ],
        expect![[r#"
            "name: &a many\ncount: *a\n"
                1:10: expected an integer
            "any:\n  base: &base { url: x, colour: red }\nservers:\n  - *base\n"
                2:25: unknown field `colour`, expected one of url, mode
            "any:\n  base: &base\n    url: x\n    mode: sluw\nservers:\n  - <<: *base\n"
                4:11: unknown value `sluw`, expected one of fast, slow
            "any:\n  base: &base { url: x }\nservers:\n  - { <<: *base, mode: slow }\n"
                valid
            "any: { <<: ~ }\n"
                valid
            "any: { <<: a }\n"
                1:12: the value of << must be a map or a list of maps
            "any: { <<: [{ a: 1 }, b] }\n"
                1:23: the value of << must be a map or a list of maps
            "any: { \"<<\": a }\n"
                valid
        "#]],
    );
    let text = "base: &base { a: 1, b: 2 }\nother: &other { b: 3, c: 4 }\nown: { b: 0, <<: [*base, *other] }\n";
    let read: Value = from_str(text).expect("it is valid");
    assert_eq!(read["own"], serde_json::json!({"a": 1, "b": 0, "c": 4}));
}

/// Class: a small file that takes much memory, much time or the whole stack.
#[test]
fn a_hostile_file_is_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(bomb, "a{level}: &a{level} [{aliases}]").expect("a String accepts text");
    }
    let mut merges = "a0: &a0 { k0: 1 }\n".to_owned();
    for level in 1..40 {
        let before = level - 1;
        writeln!(merges, "a{level}: &a{level} {{ k{level}: 1, x: {{ <<: *a{before} }}, <<: [*a{before}, *a{before}] }}")
            .expect("a String accepts text");
    }
    let mut nested = "a0: &a0 [x]\n".to_owned();
    for level in 1..100 {
        writeln!(nested, "a{level}: &a{level} [*a{}]", level - 1).expect("a String accepts text");
    }
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 100].join(", "));
    let files = [
        ("aliases of aliases", bomb),
        ("merges of merges", merges),
        ("aliases in depth", nested),
        ("a long text many times", long),
        ("a deep flow", "[".repeat(100_000)),
        ("a deep block", (0..200).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect()),
        ("compact lists", "- ".repeat(100_000)),
        ("a wide list", format!("[{}]", "1,".repeat(300_000))),
        ("maps of maps", "{a: ".repeat(100_000)),
        ("keys that are maps", "? ".repeat(100_000)),
    ];
    let mut lines = String::new();
    for (name, text) in files {
        let error = from_str::<Value>(&text).expect_err(name);
        writeln!(lines, "{name}: {}", line(&error)).expect("a String accepts text");
    }
    expect![[r#"
        aliases of aliases: 6:15: the file has more than 250000 values, with those that aliases repeat
        merges of merges: 11:30: the file has more than 250000 values, with those that aliases repeat
        aliases in depth: 64:12: maps and lists are more than 64 deep in one another
        a long text many times: 2:253: the texts of the file are longer than 67108864 bytes
        a deep flow: 1:256: maps and lists are more than 64 deep in one another
        a deep block: 65:65: maps and lists are more than 64 deep in one another
        compact lists: 1:129: maps and lists are more than 64 deep in one another
        a wide list: 1:500000: the file has more than 250000 values, with those that aliases repeat
        maps of maps: 1:1021: maps and lists are more than 64 deep in one another
        keys that are maps: 1:129: maps and lists are more than 64 deep in one another
    "#]].assert_eq(&lines);
    let deep = format!("{}{}", "[".repeat(64), "]".repeat(64));
    from_str::<Value>(&deep).expect("this depth is valid");
}

#[test]
fn a_name_is_found_within_a_value() {
    let text = "a: x\nb:\n  - { name: y, c: x }\n  - x: y\n";
    let document = Document::parse(text).expect("it is valid");
    let find = |name: &str, line, column| {
        let found = document.position_of(name, Position { line, column });
        found.map_or("nowhere".to_owned(), |at| at.to_string())
    };
    assert_eq!(find("name", 1, 1), "3:7", "the whole document begins there");
    assert_eq!(find("x", 1, 1), "nowhere", "there are several");
    assert_eq!(find("x", 3, 5), "3:19");
    assert_eq!(find("x", 4, 5), "4:5", "a key");
    assert_eq!(find("z", 3, 5), "nowhere");
    assert_eq!(find("x", 9, 9), "nowhere");
    let field = document.position_of_field(&["name", "x"], "y");
    assert_eq!(field.map(|at| at.to_string()).as_deref(), Some("3:13"));
    assert_eq!(document.position_of_field(&["name"], "x"), None);
}
