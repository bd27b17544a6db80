//! The result of the demo, for people and for programs.

use serde::Serialize;

use crate::cells::{format_count, pluralize};
use crate::printable::Printable;
use crate::terminal::Terminal;

/// The report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of Abide.
    pub(crate) version: &'static str,
    /// The source of the data: built in, or the named file.
    pub(crate) data: String,
    /// The database file, if it was kept.
    pub(crate) file: Option<String>,
    /// Replayed conversations, each a session.
    pub(crate) sessions: u64,
    /// Appended messages.
    pub(crate) messages: u64,
    /// Requested tool calls.
    pub(crate) tool_calls: u64,
    /// Tool calls that are pending, because the recording has no result.
    pub(crate) tool_calls_pending: u64,
    /// Requested handoffs.
    pub(crate) handoffs: u64,
    /// The last acknowledged event before the kill.
    pub(crate) killed_at_event: i64,
    /// Time until the server accepted requests again.
    pub(crate) back_after_ms: u64,
    /// Number of clients.
    pub(crate) clients: u64,
    /// Clients that lost their connection and resumed.
    pub(crate) clients_resumed: u64,
    /// Updates that subscriptions received.
    pub(crate) deltas: u64,
    /// Claims that another worker won.
    pub(crate) claims_lost_to_others: u64,
    /// Acknowledged writes.
    pub(crate) acknowledged: u64,
    /// Acknowledged writes that are not in the file.
    pub(crate) acknowledged_lost: Vec<String>,
    /// Executed tool calls.
    pub(crate) tool_calls_run: u64,
    /// Tool calls executed more than once.
    pub(crate) tool_calls_run_twice: u64,
    /// Messages, calls and handoffs that differ from the recording.
    pub(crate) differing_from_recording: Vec<String>,
    /// Events in the log, whose chain was verified.
    pub(crate) events: u64,
    /// The hash of the last event.
    pub(crate) head: String,
    /// From the first connection to the last answer.
    pub(crate) played_ms: u64,
}

impl Report {
    /// Whether all checks passed.
    pub(crate) fn is_good(&self) -> bool {
        self.acknowledged_lost.is_empty()
            && self.tool_calls_run_twice == 0
            && self.differing_from_recording.is_empty()
    }

    /// The failed checks, as a phrase.
    pub(crate) fn describe_faults(&self) -> String {
        format!(
            "{} lost, {} run twice, {} not as recorded",
            pluralize(self.acknowledged_lost.len() as u64, "acknowledged write"),
            pluralize(self.tool_calls_run_twice, "tool call"),
            format_count(self.differing_from_recording.len() as u64),
        )
    }

    /// The report as text, printed below the line of `opening`.
    pub(crate) fn render(&self, terminal: Terminal) -> Printable {
        // Unlimited, or for a terminal of eighty columns.
        let narrow = terminal.columns().is_some_and(|columns| columns < 100);
        let mut lines = vec![self.counts(narrow).into()];
        let kill = kill_line(self.killed_at_event, Some(self.back_after_ms));
        let line_end = if narrow { ",\n    " } else { ", " };
        let resumed = pluralize(self.clients_resumed, "client");
        lines.push(format!("{kill}{line_end}{resumed} resumed").into());
        let mut push_check = |what: &str, found: String, is_good: bool| {
            let style = if is_good { "32" } else { "1;31" };
            lines.push(Printable::from(format!("  {what:<26} ")) + terminal.with(style, found));
        };
        let lost = self.acknowledged_lost.len() as u64;
        let twice = self.tool_calls_run_twice;
        let differing = self.differing_from_recording.len() as u64;
        let compared = self.messages + self.tool_calls + self.handoffs;
        let lost_of_all = format_part(lost, self.acknowledged);
        push_check("acknowledged writes lost", lost_of_all, lost == 0);
        push_check("tool calls run twice", format_part(twice, self.tool_calls_run), twice == 0);
        push_check("differing from recording", format_part(differing, compared), differing == 0);
        push_check("deltas received", format_count(self.deltas), true);
        push_check("log", format!("{}, chain verified", pluralize(self.events, "event")), true);
        if self.tool_calls_pending > 0 {
            let pending = pluralize(self.tool_calls_pending, "tool call");
            let output =
                format!("  {pending} still pending: their recordings end before the result");
            lines.push(output.into());
        }
        lines.push(self.next_steps(terminal));
        Printable::lines(&lines)
    }

    fn counts(&self, narrow: bool) -> String {
        let (bar, gap) =
            if narrow { ("█".repeat(12), "  ") } else { ("█".repeat(19), "     ") };
        let sessions = format_count(self.sessions);
        let messages = format_count(self.messages);
        let calls = format_count(self.tool_calls);
        let handoffs = format_count(self.handoffs);
        format!(
            "  sessions {sessions:>4} ▕{bar}▏ {sessions}{gap}messages {messages}{gap}\
             tool calls {calls}{gap}handoffs {handoffs}"
        )
    }
}

fn format_part(part: u64, all: u64) -> String {
    format!("{} of {}", format_count(part), format_count(all))
}

/// The first line, before the replay.
pub(crate) fn opening_line(recordings: u64, file: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let file = file.unwrap_or("a temporary file");
    format!("abide {version}  ·  {}  ·  {file}", pluralize(recordings, "recorded conversation"))
}

/// The line about the kill, also before the restart is complete.
pub(crate) fn kill_line(at_event: i64, back_after_ms: Option<u64>) -> String {
    let at = format_count(at_event.unsigned_abs());
    let back =
        back_after_ms.map(|ms| format!(" back after {} ms", format_count(ms))).unwrap_or_default();
    format!("  ✂ server killed with SIGKILL at event {at} …{back}")
}

impl Report {
    fn next_steps(&self, terminal: Terminal) -> Printable {
        let steps = match &self.file {
            None => "abide serve   then   abide watch \"SELECT * FROM sessions\"".to_owned(),
            Some(file) => format!(
                "abide verify {file}   or   abide serve --db {file}   then   \
                 abide watch \"SELECT * FROM sessions\""
            ),
        };
        Printable::from("  try:  ") + terminal.bold(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn report() -> Report {
        Report {
            version: "0.1.0",
            data: "built in".to_owned(),
            file: None,
            sessions: 24,
            messages: 731,
            tool_calls: 185,
            tool_calls_pending: 3,
            handoffs: 3,
            killed_at_event: 1_204,
            back_after_ms: 41,
            clients: 29,
            clients_resumed: 11,
            deltas: 3_210,
            claims_lost_to_others: 12,
            acknowledged: 2_018,
            acknowledged_lost: vec![],
            tool_calls_run: 182,
            tool_calls_run_twice: 0,
            differing_from_recording: vec![],
            events: 2_018,
            head: "5f".to_owned(),
            played_ms: 1_234,
        }
    }

    #[test]
    fn the_report_of_a_good_run() {
        let terminal = Terminal { size: None, styled: false };
        let report = report();
        assert!(report.is_good());
        expect![[r#"
            abide 0.1.0  ·  24 recorded conversations  ·  a temporary file
              sessions   24 ▕███████████████████▏ 24     messages 731     tool calls 185     handoffs 3
              ✂ server killed with SIGKILL at event 1,204 … back after 41 ms, 11 clients resumed
              acknowledged writes lost   0 of 2,018
              tool calls run twice       0 of 182
              differing from recording   0 of 919
              deltas received            3,210
              log                        2,018 events, chain verified
              3 tool calls still pending: their recordings end before the result
              try:  abide serve   then   abide watch "SELECT * FROM sessions""#]].assert_eq(&format!("{}\n{}", opening_line(24, None), report.render(terminal)));
    }

    #[test]
    fn the_report_of_a_bad_run_names_the_faults() {
        let mut report = report();
        report.acknowledged_lost = vec!["append_message at event 7".to_owned()];
        report.tool_calls_run_twice = 2;
        report.file = Some("kept.db".to_owned());
        assert!(!report.is_good());
        expect!["1 acknowledged write lost, 2 tool calls run twice, 0 not as recorded"]
            .assert_eq(&report.describe_faults());
        let terminal = Terminal { size: Some((80, 24)), styled: false };
        expect![[r#"
            abide 0.1.0  ·  24 recorded conversations  ·  kept.db
              sessions   24 ▕████████████▏ 24  messages 731  tool calls 185  handoffs 3
              ✂ server killed with SIGKILL at event 1,204 … back after 41 ms,
                11 clients resumed
              acknowledged writes lost   1 of 2,018
              tool calls run twice       2 of 182
              differing from recording   0 of 919
              deltas received            3,210
              log                        2,018 events, chain verified
              3 tool calls still pending: their recordings end before the result
              try:  abide verify kept.db   or   abide serve --db kept.db   then   abide watch "SELECT * FROM sessions""#]].assert_eq(&format!("{}\n{}", opening_line(24, report.file.as_deref()), report.render(terminal)));
    }
}
