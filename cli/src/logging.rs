//! The log on stderr: which records are written, and in which format. `docs/logs.md` describes it for operators.
//!
//! A record is one line. In JSON it is one object, whatever its fields quote: a peer decides what some of them contain.

use std::backtrace::Backtrace;
use std::ffi::OsStr;
use std::fmt::{self, Debug};
use std::io::{self, IsTerminal as _, Write};
use std::panic;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{FilterFn, Targets};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::failure::Failure;
use crate::printable::{self, Printable, shorten};
use crate::stderr;

/// The variable with the levels by module.
const LEVELS: &str = "ABIDE_LOG";

/// The variable with the format.
const FORMAT: &str = "ABIDE_LOG_FORMAT";

/// The form of log records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line of text
    Text,
    /// A JSON object on one line
    Json,
}

/// Events that a command which prints plain lines tells in its own words, or that concern only the operator of a server.
const OF_SERVERS: [&str; 5] =
    ["call_unknown", "credentials_refused", "run_failed", "slow_sync", "tool_stopped"];

/// What a process is, which decides how it logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoggedProcess {
    /// A server that an operator runs, with the format that its options name.
    Server(Option<LogFormat>),
    /// A server that another program has started for itself.
    Helper,
    /// A command, whose user reads stderr.
    Command,
}

/// Logs go to stderr. A server, or any command with `ABIDE_LOG`, writes log records. Other commands print warnings as plain
/// lines.
///
/// # Errors
/// A variable of the environment has no valid value.
pub(crate) fn start(process: LoggedProcess) -> Result<(), Failure> {
    let requested = read_levels(variable(LEVELS)?.as_deref())?;
    let format = match process {
        LoggedProcess::Server(Some(format)) => Some(format),
        _ => read_format(variable(FORMAT)?.as_deref())?,
    };
    let is_server = matches!(process, LoggedProcess::Server(_));
    let is_plain = requested.is_none() && format.is_none() && !is_server;
    let filter = match requested {
        Some(requested) => limit_libraries(&requested),
        None => without_silent_libraries(Targets::new().with_default(LevelFilter::WARN)),
    };
    let layer = tracing_subscriber::fmt::layer::<Registry>().with_ansi(false);
    let is_text = is_plain || format.unwrap_or_else(default_format) == LogFormat::Text;
    let layer = if is_plain {
        let told = FilterFn::new(|record: &Metadata<'_>| !OF_SERVERS.contains(&record.name()));
        let layer = layer.with_writer(|| printable::LogWriter).event_format(PlainRecord);
        layer.with_filter(told).boxed()
    } else if is_text {
        layer.with_writer(|| printable::LogWriter).event_format(TextRecord::default()).boxed()
    } else {
        layer.with_writer(|| JsonWriter).event_format(JsonRecord).boxed()
    };
    if !is_text || process != LoggedProcess::Command {
        log_panics();
    }
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    Ok(())
}

/// Text for a person at a terminal, JSON for a collector of logs.
fn default_format() -> LogFormat {
    if io::stderr().is_terminal() { LogFormat::Text } else { LogFormat::Json }
}

/// Returns a variable of the environment that is not empty.
fn variable(name: &str) -> Result<Option<String>, Failure> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::usage(format!("{name} is not UTF-8"), "unset it, or see docs/logs.md"))
        }
    }
}

fn read_levels(text: Option<&str>) -> Result<Option<Targets>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let list: String = text.split_whitespace().collect();
    // The filter takes a word without a level as a target, and logs nothing else: a misspelt level would hide all warnings.
    let unknown_level =
        list.split(',').find(|part| !part.contains('=') && part.parse::<LevelFilter>().is_err());
    if let Some(word) = unknown_level {
        return Err(levels_failure(&format!("{word:?} is not a level")));
    }
    match list.parse::<Targets>() {
        Ok(levels) => Ok(Some(levels)),
        Err(why) => Err(levels_failure(&why.to_string())),
    }
}

/// Returns the failure of a process whose levels are not valid.
fn levels_failure(why: &str) -> Failure {
    let detail = format!("{LEVELS} is not a list of levels: {why}");
    let hint = format!(
        "levels are off, error, warn, info, debug and trace: {LEVELS}=info or {LEVELS}=warn,abide_engine=debug"
    );
    Failure::usage(detail, hint)
}

fn read_format(text: Option<&str>) -> Result<Option<LogFormat>, Failure> {
    let Some(text) = text else { return Ok(None) };
    LogFormat::from_str(text, false).map(Some).map_err(|_| {
        let detail = format!("{FORMAT} is neither text nor json: {text}");
        Failure::usage(detail, format!("set {FORMAT}=json, or unset it"))
    })
}

/// Libraries that log what has an answer of its own: a statement with an error is the caller's, and an unusual message or frame
/// is of the other side, who could fill the log with them.
const SILENT_LIBRARIES: [&str; 3] = ["h2", "rmcp", "sqlite3Parser"];

fn without_silent_libraries(filter: Targets) -> Targets {
    filter.with_targets(SILENT_LIBRARIES.map(|library| (library, LevelFilter::OFF)))
}

/// Returns a requested filter that lets only warnings of libraries pass, unless it names their targets: at `debug` they
/// log tokens and messages.
fn limit_libraries(requested: &Targets) -> Targets {
    let mut filter = without_silent_libraries(Targets::new());
    if let Some(level) = requested.default_level() {
        // A target is also the prefix of others: this is every crate of Abide.
        filter = filter.with_default(level.min(LevelFilter::WARN)).with_target("abide", level);
    }
    filter.with_targets(requested.iter())
}

/// Writes a panic as a record, so that a collector of JSON gets no other lines, and so that a thread that panics does not wait for
/// the reader of stderr. A developer who asks for a backtrace gets text.
fn log_panics() {
    if wants_backtrace(std::env::var_os("RUST_BACKTRACE").as_deref()) {
        panic::set_hook(Box::new(|panicked| {
            let text = Printable::from(format!("{panicked}\n{}", Backtrace::capture()));
            stderr::write_lines(text.as_str());
        }));
        return;
    }
    panic::set_hook(Box::new(|panicked| {
        let payload = panicked.payload();
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("not text");
        let location = panicked.location().map(ToString::to_string);
        tracing::error!(name: "panic", panic = text, location, "a thread panicked");
    }));
}

/// Whether this value of `RUST_BACKTRACE` asks for backtraces. The standard library takes `0` as no.
fn wants_backtrace(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

/// Returns the stable name of an event; `None` if it has none. The default name is a place in the source.
fn event_name(metadata: &Metadata<'static>) -> Option<&'static str> {
    Some(metadata.name()).filter(|name| !name.contains(' '))
}

/// Formats a record for the user of a command: `warning: …`, without time and module.
#[derive(Debug)]
struct PlainRecord;

impl<S, N> FormatEvent<S, N> for PlainRecord
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        write!(writer, "{level}: ")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Formats a record as text: time, level, target, message, fields, and the name of the event.
#[derive(Debug, Default)]
struct TextRecord(Format);

impl<S, N> FormatEvent<S, N> for TextRecord
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        write!(writer, "{}", line.trim_end_matches('\n'))?;
        if let Some(name) = event_name(event.metadata()) {
            write!(writer, " event={name}")?;
        }
        writeln!(writer)
    }
}

/// Maximum bytes of one field of a record in JSON: it can quote what a peer has sent.
const FIELD_BYTES: usize = 1 << 10;

/// The members of every record. A field with such a name gets a `_` after it.
const MEMBERS: [&str; 5] = ["timestamp", "level", "target", "event", "message"];

/// Formats a record as a JSON object on one line.
#[derive(Debug)]
struct JsonRecord;

/// The members of a record, in this order.
#[derive(Serialize)]
struct JsonMembers<'a> {
    timestamp: String,
    level: &'a str,
    target: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Value>,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl<S, N> FormatEvent<S, N> for JsonRecord
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut visitor = FieldVisitor::default();
        event.record(&mut visitor);
        let FieldVisitor { message, fields, library } = visitor;
        let metadata = event.metadata();
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let members = JsonMembers {
            timestamp,
            level: metadata.level().as_str(),
            target: library.as_deref().unwrap_or(metadata.target()),
            event: event_name(metadata),
            message,
            fields,
        };
        let text = serde_json::to_string(&members).map_err(|_| fmt::Error)?;
        writeln!(writer, "{text}")
    }
}

/// The fields of a record as JSON.
#[derive(Default)]
struct FieldVisitor {
    message: Option<Value>,
    fields: Map<String, Value>,
    /// The target of a record that a library wrote with the crate `log`.
    library: Option<String>,
}

impl FieldVisitor {
    fn insert(&mut self, field: &Field, value: Value) {
        let value = match value {
            Value::String(text) => Value::String(shorten(&text, FIELD_BYTES).into_owned()),
            value => value,
        };
        match (field.name(), value) {
            ("message", value) => self.message = Some(value),
            ("log.target", Value::String(target)) => self.library = Some(target),
            (name, _) if name.starts_with("log.") => {}
            (name, value) if MEMBERS.contains(&name) => {
                self.fields.insert(format!("{name}_"), value);
            }
            (name, value) => {
                self.fields.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for FieldVisitor {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        match u64::try_from(value) {
            Ok(value) => self.insert(field, value.into()),
            Err(_) => self.insert(field, value.to_string().into()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.insert(field, format!("{value:?}").into());
    }
}

/// Writes records in JSON to stderr. Characters that a terminal would obey or hide are escaped as JSON escapes them.
#[derive(Debug)]
struct JsonWriter;

impl Write for JsonWriter {
    /// Writes one record; `tracing_subscriber` passes each record as a whole.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(record);
        let line = Printable::json(text.trim_end_matches('\n'));
        stderr::write_lines(line.as_str());
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::format::DefaultFields;

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no thread panics").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What a format writes of these events.
    fn written<F>(format: F, log: impl FnOnce()) -> String
    where
        F: FormatEvent<Registry, DefaultFields> + Send + Sync + 'static,
    {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer::<Registry>()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .event_format(format);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, log);
        let bytes = lines.0.lock().expect("no thread panics").clone();
        String::from_utf8(bytes).expect("it is text")
    }

    /// With `RUST_BACKTRACE=0`, panics were text between records in JSON.
    #[test]
    fn a_backtrace_is_wanted_as_the_standard_library_reads_it() {
        for (value, expected) in [
            (None, false),
            (Some("0"), false),
            (Some(""), false),
            (Some("1"), true),
            (Some("full"), true),
        ] {
            assert_eq!(wants_backtrace(value.map(OsStr::new)), expected, "{value:?}");
        }
    }

    /// Text of a peer cannot begin a line, end the object, add a member, or change what a terminal shows.
    #[test]
    fn a_record_in_json_is_one_object_on_one_line_whatever_it_quotes() {
        for hostile in [
            "two\nlines\r\nand \u{2028} more",
            "quote \" and } and {\"level\":\"ERROR\"}",
            "\u{1b}[2J\u{1b}]0;title\u{7}\u{0}\u{7f}\u{9b}31m",
            "rtl \u{202e}gnp\u{2066}\u{2069} and tag \u{e0041}",
            "\\u0000 \\",
            "",
        ] {
            let written = written(JsonRecord, || {
                tracing::warn!(name: "hostile", why = hostile, quoted = ?hostile, level = "x", "{hostile}");
            });
            let line = Printable::json(written.trim_end_matches('\n'));
            let line = line.as_str();
            assert!(written.ends_with("}\n") && !line.contains('\n'), "{line}");
            assert!(line.chars().all(|c| !abide_schema::id::is_invisible(c)), "{line:?}");
            let record: Map<String, Value> = serde_json::from_str(line).expect("it is an object");
            let member = |name: &str| record[name].as_str().expect("it is text").to_owned();
            assert_eq!((member("level"), member("event")), ("WARN".into(), "hostile".into()));
            assert_eq!((member("why"), member("quoted")), (hostile.into(), format!("{hostile:?}")));
            assert_eq!((member("message"), member("level_")), (hostile.into(), "x".into()));
            assert!(member("timestamp").ends_with('Z') && member("target").starts_with("abide"));
        }
    }

    #[test]
    fn numbers_are_numbers_and_long_fields_are_cut() {
        let written = written(JsonRecord, || {
            let long = "x".repeat(1 << 20);
            let nothing: Option<u64> = None;
            tracing::info!(
                seq = 7_u64,
                left = -1_i64,
                ms = 12_u128,
                ratio = 0.5,
                good = true,
                nothing,
                long,
                "done"
            );
        });
        assert!(written.len() < 2_000, "{} bytes", written.len());
        let record: Value = serde_json::from_str(&written).expect("it is JSON");
        for (name, value) in [
            ("seq", Value::from(7)),
            ("left", Value::from(-1)),
            ("ms", Value::from(12)),
            ("ratio", Value::from(0.5)),
            ("good", Value::from(true)),
            ("message", Value::from("done")),
            ("nothing", Value::Null),
            ("event", Value::Null),
        ] {
            assert_eq!(record[name], value, "{name}");
        }
    }

    #[test]
    fn text_has_the_name_of_the_event_at_its_end() {
        let written = written(TextRecord::default(), || {
            tracing::warn!(name: "slow_sync", duration_ms = 1_200, "a sync was slow");
            tracing::warn!("without a name");
        });
        let lines: Vec<&str> = written.lines().collect();
        assert!(
            lines[0].ends_with("a sync was slow duration_ms=1200 event=slow_sync"),
            "{written}"
        );
        assert!(lines[1].ends_with("without a name") && lines.len() == 2, "{written}");
    }

    #[test]
    fn variables_that_are_not_valid_are_refused() {
        for (text, format) in [("json", LogFormat::Json), ("text", LogFormat::Text)] {
            assert_eq!(read_format(Some(text)).expect("it is a format"), Some(format));
        }
        assert!(read_format(Some("yaml")).is_err() && read_format(None).is_ok());
        for levels in
            ["info", "WARN", "off", "warn,abide_engine=debug", "info, abide_engine = debug"]
        {
            assert!(read_levels(Some(levels)).is_ok(), "{levels}");
        }
        // Regression: a misspelt level was a target, so that no warning was logged.
        for levels in ["wran", "abide=loud", "info,wran", "abide_engine", "wran,abide_engine=debug"]
        {
            assert!(read_levels(Some(levels)).is_err(), "{levels}");
        }
    }

    /// Regression: `ABIDE_LOG=debug` logged the messages of WebSockets and the tokens of YAML files.
    #[test]
    fn libraries_log_warnings_unless_they_are_named() {
        for (requested, target, level, is_logged) in [
            ("debug", "abide_server::serve", Level::DEBUG, true),
            ("debug", "abide_server::serve", Level::TRACE, false),
            ("debug", "scanner", Level::DEBUG, false),
            ("trace", "tungstenite::protocol", Level::INFO, false),
            ("trace", "tungstenite::protocol", Level::WARN, true),
            ("error", "tungstenite::protocol", Level::WARN, false),
            ("info,tungstenite=debug", "tungstenite::protocol", Level::DEBUG, true),
            ("info", "h2::proto::streams::recv", Level::WARN, false),
            ("info,h2=warn", "h2::proto::streams::recv", Level::WARN, true),
            ("info,abide_engine=debug", "abide_engine::commit", Level::DEBUG, true),
            ("debug,abide_engine=warn", "abide_engine::commit", Level::INFO, false),
            ("abide_engine=debug", "abide_server::serve", Level::ERROR, false),
            ("info,abide_server::access_log=off", "abide_server::access_log", Level::INFO, false),
            ("off", "abide_server::serve", Level::ERROR, false),
        ] {
            let parsed = requested.parse::<Targets>().expect("it is a filter");
            let filter = limit_libraries(&parsed);
            assert_eq!(filter.would_enable(target, &level), is_logged, "{requested} {target}");
        }
    }
}
