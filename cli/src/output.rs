//! Writing to stdout, where the reader may leave at any time, and to stderr. Nothing else of this program writes to
//! either, so that all text is [`Printable`].

use std::fmt;
use std::io::{self, Write as _};

use serde::Serialize;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::Failure;
use crate::printable::Printable;

/// Prints one line, or several.
///
/// # Errors
/// The reader has gone, or the output is full.
pub(crate) fn say(text: impl Into<Printable>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", text.into())?;
    Ok(stdout.flush()?)
}

/// Prints a part of a line.
///
/// # Errors
/// As [`say`].
pub(crate) fn say_part(text: impl Into<Printable>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{}", text.into())?;
    Ok(stdout.flush()?)
}

/// Prints something as one line of JSON.
///
/// # Errors
/// As [`say`].
pub(crate) fn say_json(what: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(what).map_err(io::Error::from)?;
    say(Printable::json(&text))
}

/// Prints a line on stderr, for the person. A stderr that is closed is ignored: there is no other place to say so.
pub(crate) fn note(text: impl Into<Printable>) {
    let _ = writeln!(io::stderr().lock(), "{}", text.into());
}

/// A log record as a person at a terminal reads it: `warning: …`, without the time and the module.
#[derive(Debug)]
pub(crate) struct PlainRecord;

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
