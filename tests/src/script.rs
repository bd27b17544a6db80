//! Calls and responses as lines of text.
//!
//! ```text
//! create_session agent=support id=s1         a call: arguments as bare words or JSON
//! claim_handoff id=ho#1 as=ann request_id=r1  the caller, and the request id
//! who ann worker +refunds tenant=acme         from here on, ann has this role, capabilities and scope
//! batch request_id=r2: a x=1 | b y=2         several calls in one transaction
//! +5s  +1m  +20ms                            moves the clock and processes due timers
//! sql SELECT …                               the rows, as JSON
//! sql@3 SELECT …                             the rows as of seq 3
//! raw UPDATE …                               raw SQL on the file, without the engine
//! reopen                                     close, open again
//! replay                                     replay the log into a new file, and compare
//! ```
//!
//! Generated ids are random. Here they are written `ho#1`, `ap#1`, `s#1` … in order of appearance,
//! also in arguments.

#![expect(clippy::unwrap_used, reason = "a failed test reports the line")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use abide_engine::{CommittedCall, replay};
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Micros, Refusal, Seq};
use serde_json::{Map, Value as JsonValue};

use crate::world::{Modules, World, run};

/// Runs a script in a new world with these modules; returns its output.
///
/// # Panics
/// A line is malformed.
#[must_use]
pub fn play(modules: Modules, script: &str) -> String {
    let mut player = Player {
        modules,
        world: World::new(modules),
        names: Names::default(),
        callers: BTreeMap::new(),
    };
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty());
    run(async {
        let mut received = String::new();
        for line in lines {
            if let Some(answer) = player.line(line).await {
                received.push_str(&player.names.shorten(&answer));
                received.push('\n');
            }
        }
        received
    })
}

/// The columns shown in responses, if not empty.
const SHOWN: [&str; 42] = [
    "id",
    "call_id",
    "name",
    "version",
    "effect",
    "revision",
    "mode",
    "status",
    "driver",
    "turn",
    "iterations",
    "tool_calls",
    "events",
    "attempt",
    "fencing_token",
    "claimed_by",
    "lease_expires_at",
    "retry_at",
    "cancel_requested_at",
    "due_at",
    "fired_at",
    "escalate_at",
    "escalated_at",
    "expires_at",
    "parent_id",
    "scope",
    "metadata",
    "title",
    "reason",
    "arguments",
    "approved_arguments",
    "prompt",
    "defaults",
    "decided_by",
    "comment",
    "result",
    "error",
    "error_code",
    "error_message",
    "resolution",
    "settled_by",
    "message",
];

struct Player {
    modules: Modules,
    world: World,
    names: Names,
    /// The restricted callers.
    callers: BTreeMap<String, Caller>,
}

impl Player {
    async fn line(&mut self, line: &str) -> Option<String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "reopen" => self.world.reopen(),
            "batch" | "batch:" => return Some(self.batch(line).await),
            "raw" => return Some(self.raw(rest)),
            "replay" => return Some(self.replay()),
            "who" => self.who(rest),
            _ if word.starts_with("sql") => return Some(self.sql(word, rest).await),
            _ if word.starts_with('+') => self.world.pass_ms(span_ms(word)).await,
            _ => return Some(self.call(line).await),
        }
        None
    }

    fn replay(&mut self) -> String {
        self.world.close();
        let from = self.world.path();
        let into = self.world.path().with_extension("again");
        let again = replay(&from, &into, (self.modules)(), None, &mut |_| {});
        self.world.open();
        again.map_or_else(
            |why| format!("not the same: {why}"),
            |seq| format!("the same up to {seq}"),
        )
    }

    fn who(&mut self, words: &str) {
        let mut words = words.split_whitespace();
        let id = words.next().unwrap();
        let role = words.next().unwrap();
        let mut capabilities = BTreeSet::new();
        let mut scope = BTreeMap::new();
        for word in words {
            match (word.strip_prefix('+'), word.split_once('=')) {
                (Some(capability), _) => drop(capabilities.insert(capability.to_owned())),
                (_, Some((key, value))) => drop(scope.insert(key.to_owned(), value.to_owned())),
                _ => panic!("{word} is neither +capability nor key=value"),
            }
        }
        self.callers.insert(id.to_owned(), Caller::with(id, role, capabilities, scope));
    }

    fn caller(&self, id: &str) -> Caller {
        self.callers.get(id).cloned().unwrap_or_else(|| Caller::new(id))
    }

    async fn call(&mut self, line: &str) -> String {
        let call = self.names.parse(line);
        let caller = self.caller(&call.caller);
        let request_id = call.request_id.as_deref();
        match self.world.engine().call(&caller, &call.reducer, &call.args, request_id).await {
            Ok(done) => self.names.done(&done),
            Err(refusal) => refused(&refusal),
        }
    }

    async fn batch(&mut self, line: &str) -> String {
        let (head, calls) = line.split_once(": ").unwrap_or((line, ""));
        let head = self.names.parse(head);
        let calls: Vec<BatchCall> = calls
            .split(" | ")
            .filter(|call| !call.is_empty())
            .map(|call| self.names.parse(call))
            .map(|call| BatchCall { reducer: call.reducer, args: call.args })
            .collect();
        let caller = self.caller(&head.caller);
        let request_id = head.request_id.as_deref();
        match self.world.engine().batch(&caller, &calls, request_id).await {
            Ok(done) => {
                let results = done
                    .results
                    .iter()
                    .map(|done| self.names.done(done))
                    .collect::<Vec<_>>()
                    .join(" | ");
                let again = if done.duplicate { " again" } else { "" };
                format!("batch {}{again}: {results}", done.seq)
            }
            Err(refusal) => refused(&refusal),
        }
    }

    async fn sql(&mut self, word: &str, sql: &str) -> String {
        let as_of = word.strip_prefix("sql@").map(|seq| Seq(seq.parse().unwrap()));
        let sql = self.names.lengthen(sql);
        match self.world.engine().query(&Caller::local(), &sql, &Map::new(), as_of).await {
            Ok(answer) => {
                let row = |row: &abide_schema::Row| {
                    let cells = row.iter().map(|cell| cell.to_json().to_string());
                    format!("({})", cells.collect::<Vec<_>>().join(", "))
                };
                let rows = answer.rows.iter().map(row).collect::<Vec<_>>().join(" ");
                let seq = as_of.map(|_| format!("at {}: ", answer.seq)).unwrap_or_default();
                format!("{seq}{}", if rows.is_empty() { "nothing" } else { &rows })
            }
            Err(refusal) => refused(&refusal),
        }
    }

    fn raw(&mut self, sql: &str) -> String {
        self.world.close();
        let answer = match self.world.raw().execute_batch(&self.names.lengthen(sql)) {
            Ok(()) => "taken".to_owned(),
            Err(rusqlite::Error::SqliteFailure(_, Some(why))) => format!("aborted: {why}"),
            Err(why) => format!("failed: {why}"),
        };
        self.world.open();
        answer
    }
}

fn refused(refusal: &Refusal) -> String {
    let hint = refusal.hint.as_ref().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
    format!("refused {}: {refusal}{hint}", refusal.code)
}

fn span_ms(word: &str) -> i64 {
    let digits = word.trim_start_matches('+').trim_end_matches(char::is_alphabetic);
    let number: i64 = digits.parse().unwrap();
    let unit_ms = if word.ends_with("ms") {
        1
    } else if word.ends_with('h') {
        3_600_000
    } else if word.ends_with('m') {
        60_000
    } else {
        1_000
    };
    number * unit_ms
}

struct Call {
    reducer: String,
    args: JsonValue,
    caller: String,
    request_id: Option<String>,
}

/// Names for generated ids: `ho_01ARYZ…` is `ho#1`.
#[derive(Default)]
struct Names {
    ids: BTreeMap<String, String>,
}

impl Names {
    fn parse(&self, line: &str) -> Call {
        let (reducer, mut rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let mut call = Call {
            reducer: reducer.to_owned(),
            args: JsonValue::Null,
            caller: "local".to_owned(),
            request_id: None,
        };
        let mut args = Map::new();
        while let Some((name, after)) = rest.trim_start().split_once('=') {
            let (value, left) = self.value(after);
            rest = left;
            match (name, &value) {
                ("as", JsonValue::String(caller)) => call.caller.clone_from(caller),
                ("request_id", JsonValue::String(id)) => call.request_id = Some(id.clone()),
                ("args", _) => call.args = value,
                _ => drop(args.insert(name.to_owned(), value)),
            }
        }
        if call.args.is_null() {
            call.args = JsonValue::Object(args);
        }
        call
    }

    /// A JSON value, or a word up to the next space; and the rest.
    fn value<'a>(&self, text: &'a str) -> (JsonValue, &'a str) {
        if text.starts_with(['{', '[', '"']) {
            let mut stream = serde_json::Deserializer::from_str(text).into_iter();
            let value = stream.next().unwrap().unwrap();
            return (value, &text[stream.byte_offset()..]);
        }
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let value = serde_json::from_str(word);
        (value.unwrap_or_else(|_| self.lengthen(word).into()), rest)
    }

    /// The response to a call: its seq and the non-empty fields.
    fn done(&mut self, done: &CommittedCall) -> String {
        let again = if done.duplicate { " again" } else { "" };
        let result: JsonValue = serde_json::from_str(&done.result).unwrap();
        let mut text = format!("seq {}{again} {{", done.seq);
        let shown = SHOWN.iter().filter_map(|name| Some((*name, result.get(name)?)));
        let mut separator = "";
        for (name, value) in shown.filter(|(_, value)| !value.is_null() && **value != "{}") {
            let value = match (name, value) {
                (name, value) if name.ends_with("_at") => time_of(value.as_i64().unwrap()),
                (_, JsonValue::String(text)) => text.clone(),
                (_, value) => value.to_string(),
            };
            write!(text, "{separator}{name}: {value}").unwrap();
            separator = ", ";
        }
        text + "}"
    }

    /// Replaces every generated id by its short name; new ones get the next number.
    fn shorten(&mut self, text: &str) -> String {
        let mut short = text.to_owned();
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
            let Some((prefix, ulid)) = word.rsplit_once('_') else { continue };
            let made = ulid.len() == 26 && ulid.starts_with("01") && prefix.len() <= 2;
            if made && !self.ids.values().any(|id| id == word) {
                let nth = self.ids.keys().filter(|name| name.starts_with(prefix)).count() + 1;
                self.ids.insert(format!("{prefix}#{nth}"), word.to_owned());
            }
        }
        for (name, id) in &self.ids {
            short = short.replace(id, name);
        }
        short
    }

    fn lengthen(&self, text: &str) -> String {
        let word = |word: &str| self.ids.get(word).map_or_else(|| word.to_owned(), Clone::clone);
        if text.contains(' ') {
            let quoted = text.split('\'').map(word).collect::<Vec<_>>();
            return quoted.join("'");
        }
        word(text)
    }
}

/// The time of day on the day of the tests, with milliseconds if present; otherwise the full
/// timestamp.
fn time_of(us: i64) -> String {
    let moment = Micros(us).to_string();
    let of_day = moment.strip_prefix("2026-11-21T").unwrap_or(&moment);
    match us.rem_euclid(1_000_000) / 1_000 {
        0 => of_day.trim_end_matches('Z').to_owned(),
        ms => format!("{}.{ms:03}", of_day.trim_end_matches('Z')),
    }
}
