//! How a command fails: the message for people, the problem document for programs, and the exit code.

use std::io;
use std::process::ExitCode;

use abide_agent::EndSignal;
use abide_engine::{OpenError, StoreError, VerifyError};
use abide_schema::{Code, Refusal, lowercase_first};
use serde_json::{Value as JsonValue, json};

use crate::printable::{Printable, shorten};
use crate::user_info::{hide_user_info, hide_user_info_of_address};

/// The exit code of a command that Ctrl-C has ended, as of one that SIGINT kills.
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit code of a command that follows a run and whose output is closed, as of one that SIGPIPE kills.
const OUTPUT_CLOSED: u8 = 141;

/// The commands that use a file or a server. The hint that continues a conversation is complete: its file has a default.
const COMMANDS: [&str; 21] = [
    "abide agent abort",
    "abide agent export",
    "abide agent files",
    "abide agent fork",
    "abide agent import",
    "abide agent list",
    "abide agent memory",
    "abide agent pause",
    "abide agent record",
    "abide agent reparse",
    "abide agent resume",
    "abide agent run",
    "abide call",
    "abide events",
    "abide explain",
    "abide identity",
    "abide prompt",
    "abide role",
    "abide sql",
    "abide token",
    "abide watch",
];

/// The commands that use a file, and never a server.
const FILE_COMMANDS: [&str; 3] = ["abide backup", "abide dev", "abide serve"];

/// Maximum bytes of the sentence of a failure. With the hint it fills at most one screen, whatever a server answers.
const DETAIL_BYTES: usize = 3 << 10;

/// Maximum bytes of a hint.
const HINT_BYTES: usize = 768;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Abide refused; nothing was written.
    Refused(Refusal),
    /// The command line is invalid.
    Usage(Refusal),
    /// No server answers at the address.
    Unreachable(Refusal),
    /// A file, or a run of the demo, failed verification.
    Unverified(Refusal),
    /// A run waits for a decision; the hint is the command that decides.
    Waits(Refusal),
    /// A run has ended without an answer; the first value is its own code.
    Run(String, Refusal),
    /// Stdout cannot be written, as on a full disk.
    Output(Refusal),
    /// The reader of stdout has closed it (`abide events | head`).
    OutputClosed,
    /// The reader of stdout has closed it before the end of a run; how to continue is printed already.
    RunOutputClosed,
    /// The reason is printed already.
    Reported,
    /// Ctrl-C was pressed, or the process was asked to end; how to continue is printed already.
    Interrupted(EndSignal),
}

impl Failure {
    /// An invalid command line.
    pub(crate) fn usage(detail: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::Usage(Refusal::new(Code::BadArguments, detail).hint(hint))
    }

    /// The system refuses what a command needs: a port, a folder, a descriptor. `what` is what cannot be done.
    pub(crate) fn system(what: &str, why: &io::Error) -> Failure {
        let reason = lowercase_first(&why.to_string());
        Refusal::new(Code::Internal, format!("{what}: {reason}")).explain_exhaustion(why).into()
    }

    /// The exit code, as documented in `abide --help`.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::OutputClosed => 0,
            Failure::Refused(_) | Failure::Output(_) | Failure::Run(..) | Failure::Reported => 1,
            Failure::Usage(_) => 2,
            Failure::Unreachable(_) => 3,
            Failure::Unverified(_) => 4,
            Failure::Waits(_) => 5,
            Failure::Interrupted(_) => INTERRUPTED,
            Failure::RunOutputClosed => OUTPUT_CLOSED,
        })
    }

    /// The message, as text or as a problem document. `None` if there is nothing to say.
    pub(crate) fn message(&self, as_json: bool) -> Option<Printable> {
        let refusal = self.refusal()?;
        let refusal = &Refusal {
            detail: hide_user_info(&shorten(&refusal.detail, DETAIL_BYTES)),
            hint: refusal.hint.as_deref().map(|hint| hide_user_info(&shorten(hint, HINT_BYTES))),
            ..refusal.clone()
        };
        Some(if as_json {
            Printable::json(&self.problem(refusal).to_string())
        } else {
            let code = self.code(refusal);
            let hint = refusal.hint.iter().map(|hint| format!("\n  hint: {}", indent_hint(hint)));
            let (word, code) = match self {
                Failure::Waits(_) => ("waits", String::new()),
                _ => ("error", format!("   [{code}]")),
            };
            // A detail can quote stored text. Its further lines are marked, so that none can be mistaken for a
            // hint.
            let detail = refusal.detail.trim_end().replace('\n', "\n  | ");
            Printable::from(format!("{word}: {detail}{code}{}", hint.collect::<String>()))
        })
    }

    /// Adds the option that names the file or the server, such as ` --db a.db`, to the commands of its hint.
    pub(crate) fn with_hint_option(mut self, option: &str) -> Failure {
        if let Some(Refusal { hint: Some(hint), .. }) = self.refusal_mut() {
            *hint = add_option_to_commands(hint, option);
        }
        self
    }

    /// Hides the password of an address, which need not be valid: `ann:password@host`.
    pub(crate) fn hide_password_of(mut self, address: &str) -> Failure {
        let shown = hide_user_info_of_address(address);
        if shown != address
            && let Some(refusal) = self.refusal_mut()
        {
            refusal.detail = refusal.detail.replace(address, &shown);
            refusal.hint = refusal.hint.take().map(|hint| hint.replace(address, &shown));
        }
        self
    }

    /// Adds an option to the commands of its hint that have another default than the command which failed.
    pub(crate) fn with_agent_hint_option(mut self, option: &str) -> Failure {
        if let Some(Refusal { hint: Some(hint), .. }) = self.refusal_mut() {
            *hint = add_option(hint, option, |command| command.starts_with("abide agent "));
        }
        self
    }

    /// The reason, its code and its hint; `None` if there is nothing to say.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Failure::Refused(refusal)
            | Failure::Usage(refusal)
            | Failure::Unreachable(refusal)
            | Failure::Unverified(refusal)
            | Failure::Run(_, refusal)
            | Failure::Output(refusal)
            | Failure::Waits(refusal) => Some(refusal),
            Failure::OutputClosed
            | Failure::RunOutputClosed
            | Failure::Reported
            | Failure::Interrupted(_) => None,
        }
    }

    fn refusal_mut(&mut self) -> Option<&mut Refusal> {
        match self {
            Failure::Refused(refusal)
            | Failure::Usage(refusal)
            | Failure::Unreachable(refusal)
            | Failure::Unverified(refusal)
            | Failure::Run(_, refusal)
            | Failure::Output(refusal)
            | Failure::Waits(refusal) => Some(refusal),
            Failure::OutputClosed
            | Failure::RunOutputClosed
            | Failure::Reported
            | Failure::Interrupted(_) => None,
        }
    }

    /// The stable code; failures that never reach a server have codes of their own.
    fn code<'a>(&'a self, refusal: &'a Refusal) -> &'a str {
        match self {
            Failure::Run(code, _) => code,
            Failure::Usage(_) => "usage",
            Failure::Unreachable(_) => "unreachable",
            Failure::Waits(_) => "waits",
            _ => refusal.code.as_str(),
        }
    }

    fn problem(&self, refusal: &Refusal) -> JsonValue {
        let mut problem = refusal.problem();
        let (title, is_retryable) = match self {
            Failure::Usage(_) => ("Usage", false),
            Failure::Unreachable(_) => ("Not reachable", true),
            Failure::Waits(_) => ("Waits for a decision", true),
            Failure::Run(..) => ("The run failed", false),
            _ => return problem,
        };
        if let Some(problem) = problem.as_object_mut() {
            // There is no HTTP status: the failure is not from a server.
            problem.remove("status");
        }
        problem["title"] = title.into();
        problem["retryable"] = is_retryable.into();
        problem["code"] = json!(self.code(refusal));
        problem
    }
}

/// Adds an option to the commands of a hint that can have it, unless their line names a file or a server.
pub(crate) fn add_option_to_commands(hint: &str, option: &str) -> String {
    let is_file = option.starts_with(" --db ");
    add_option(hint, option, |command| is_file || !FILE_COMMANDS.contains(&command))
}

/// Adds an option to some commands of a hint.
fn add_option(hint: &str, option: &str, has_option: impl Fn(&str) -> bool) -> String {
    let mut named = String::with_capacity(hint.len());
    let mut rest = hint;
    while let Some(at) = rest.find("abide ") {
        let (before, from) = rest.split_at(at);
        named.push_str(before);
        let command =
            COMMANDS.into_iter().chain(FILE_COMMANDS).filter(|command| has_option(command)).find(
                |command| {
                    from.strip_prefix(command).is_some_and(|after| {
                        !after.starts_with(|next: char| next.is_alphanumeric() || next == '-')
                    })
                },
            );
        let taken = command.unwrap_or("abide ");
        named.push_str(taken);
        rest = &from[taken.len()..];
        let line = &rest[..rest.find(['`', ';', '\n']).unwrap_or(rest.len())];
        let is_complete = line.contains("--db ") || line.contains("--url ");
        if command.is_some() && !is_complete {
            named.push_str(option);
        }
    }
    named.push_str(rest);
    named
}

/// A hint whose further lines cannot be mistaken for a message of this program.
fn indent_hint(hint: &str) -> String {
    let mut text = String::with_capacity(hint.len());
    for (nth, line) in hint.split('\n').enumerate() {
        if nth > 0 {
            text.push('\n');
            if !line.starts_with(' ') {
                text.push_str("    ");
            }
        }
        text.push_str(line);
    }
    text
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

/// A missing file, or a file of another program, is refused. A file that is damaged, or whose tables, indexes, triggers
/// or views were changed, has failed verification.
impl From<VerifyError> for Failure {
    fn from(error: VerifyError) -> Failure {
        let refusal = error.to_refusal();
        match error {
            VerifyError::Open(OpenError::TableDiffers { .. } | OpenError::Undeclared { .. }) => {
                Failure::Unverified(refusal)
            }
            VerifyError::Open(OpenError::Store { why, .. }) if !is_of_content(&why) => {
                Failure::Refused(refusal)
            }
            VerifyError::Open(why) if why.is_of_partial_file() => Failure::Refused(refusal),
            // SQLite cannot read the content, or the disk fails. The hint of other commands is to verify the file.
            VerifyError::Open(OpenError::Store { .. }) => {
                let hint = "the file is damaged; restore a backup that verifies";
                Failure::Unverified(refusal.hint(hint))
            }
            VerifyError::Open(_) => Failure::Refused(refusal),
            _ => Failure::Unverified(refusal),
        }
    }
}

/// Whether an error shows that the content of a file is wrong. Others are of the system, and may not occur again.
fn is_of_content(error: &StoreError) -> bool {
    !matches!(
        error,
        StoreError::Busy | StoreError::Full | StoreError::Io(_) | StoreError::Unavailable(_)
    )
}

/// Errors of stdout and stderr. Others are converted where they occur, with [`Failure::system`] or a refusal.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            io::ErrorKind::StorageFull => {
                let refusal =
                    Refusal::new(Code::DiskFull, "the output cannot be written: the disk is full");
                Failure::Output(refusal.hint("free some space where the output goes"))
            }
            _ => {
                let detail = format!("the output cannot be written: {error}");
                Failure::Output(Refusal::new(Code::BadRequest, detail))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(failure: Failure, as_json: bool, expected: Expect) {
        let text = failure.message(as_json).expect("there is something to print");
        // The output is one line; the test breaks it for readability.
        expected.assert_eq(&text.as_str().replace(",\"", ",\n\""));
    }

    fn refused() -> Failure {
        let refusal = Refusal::new(Code::Conflict, "call refund-8812 was claimed by worker-3");
        refusal.hint("watch it").into()
    }

    #[test]
    fn a_refusal_names_its_code_and_the_way_out() {
        check(
            refused(),
            false,
            expect![[r#"
                error: call refund-8812 was claimed by worker-3   [conflict]
                  hint: watch it"#]],
        );
    }

    /// A server could write a line that looks like another error of the program, and a message of any length.
    #[test]
    fn a_hostile_refusal_is_short_and_forges_no_line() {
        let refusal = Refusal::new(Code::Denied, "no\nerror: a\u{1b}[2J").hint("b\nerror: c");
        check(
            Failure::Refused(refusal),
            false,
            expect![[r#"
                error: no
                  | error: a\u{1b}[2J   [denied]
                  hint: b
                    error: c"#]],
        );
        let long = |c: &str| c.repeat(50 << 20 >> 4);
        for c in ["x", "\u{202e}", "\n"] {
            let refusal = || Refusal::new(Code::Internal, long(c)).hint(long(c));
            for as_json in [false, true] {
                let text =
                    Failure::Refused(refusal()).message(as_json).expect("there is a message");
                assert!(text.as_str().len() <= 4 << 10, "{c:?} {as_json}: {}", text.as_str().len());
                assert!(text.as_str().contains("more bytes"));
            }
        }
    }

    #[test]
    fn a_program_gets_the_problem_document() {
        check(
            refused(),
            true,
            expect![[r#"
                {"code":"conflict",
                "detail":"call refund-8812 was claimed by worker-3",
                "hint":"watch it",
                "retryable":false,
                "status":409,
                "title":"Conflict",
                "type":"about:blank"}"#]],
        );
    }

    #[test]
    fn a_waiting_run_is_not_an_error_and_has_a_hint() {
        let refusal = Refusal::new(Code::BadTransition, "awaiting_approval refund {}");
        let waits = || Failure::Waits(refusal.clone().hint("abide call decide_approval"));
        check(
            waits(),
            false,
            expect![[r#"
                waits: awaiting_approval refund {}
                  hint: abide call decide_approval"#]],
        );
        check(
            waits(),
            true,
            expect![[r#"
                {"code":"waits",
                "detail":"awaiting_approval refund {}",
                "hint":"abide call decide_approval",
                "retryable":true,
                "title":"Waits for a decision",
                "type":"about:blank"}"#]],
        );
    }

    /// The command of a hint used the default server, and not the file of the command that was refused.
    #[test]
    fn commands_of_a_hint_have_the_option_of_the_command() {
        let hint =
            |hint: &str| match Failure::from(refused_with(hint)).with_hint_option(" --db a.db") {
                Failure::Refused(refusal) => refusal.hint.unwrap_or_default(),
                other => panic!("{other:?}"),
            };
        assert_eq!(
            hint("create it with  abide call create_session"),
            "create it with  abide call --db a.db create_session"
        );
        assert_eq!(
            hint("`abide token list` lists them"),
            "`abide token --db a.db list` lists them"
        );
        let named = "`abide token create root --db b.db`";
        assert_eq!(hint(named), named);
        let complete = "abide call --db b.db x;  abide sql --url http://h \"SELECT 1\"";
        assert_eq!(hint(complete), complete);
        assert_eq!(hint("watch it"), "watch it");
        assert_eq!(hint("`abide call` lists them"), "`abide call --db a.db` lists them");
        let other = "`abide agents` and `abide agent check` have no file";
        assert_eq!(hint(other), other);
        let serve = "`abide serve --agents a` starts one";
        assert_eq!(hint(serve), "`abide serve --db a.db --agents a` starts one");
        assert_eq!(add_option_to_commands(serve, " --url http://h"), serve);
        for failure in [
            Failure::Usage(refused_with("abide sql x")),
            Failure::Unverified(refused_with("abide sql x")),
            Failure::Run("no".to_owned(), refused_with("abide sql x")),
            Failure::Waits(refused_with("abide sql x")),
        ] {
            let named = failure.with_hint_option(" --db a.db");
            let hint = named.refusal().and_then(|refusal| refusal.hint.as_deref());
            assert_eq!(hint, Some("abide sql --db a.db x"));
        }
    }

    /// The commands of agents have a file by default, and the others a server.
    #[test]
    fn commands_of_agents_get_the_address_of_the_default_server() {
        let failure = Failure::from(refused_with("`abide agent abort r1` ends it; abide sql x"));
        let named = failure.with_agent_hint_option(" --url http://h");
        let hint = named.refusal().and_then(|refusal| refusal.hint.as_deref());
        assert_eq!(hint, Some("`abide agent abort --url http://h r1` ends it; abide sql x"));
    }

    fn refused_with(hint: &str) -> Refusal {
        Refusal::new(Code::NotFound, "there is no session s1").hint(hint)
    }

    /// Regression: every failed run had the code `bad_transition`.
    #[test]
    fn a_failed_run_has_its_own_code() {
        let failed_run = || {
            Failure::Run(
                "unauthorized".to_owned(),
                Refusal::new(Code::BadTransition, "the run failed: wrong key"),
            )
        };
        check(failed_run(), false, expect!["error: the run failed: wrong key   [unauthorized]"]);
        check(
            failed_run(),
            true,
            expect![[r#"
                {"code":"unauthorized",
                "detail":"the run failed: wrong key",
                "retryable":false,
                "title":"The run failed",
                "type":"about:blank"}"#]],
        );
    }

    #[test]
    fn errors_without_a_server_have_no_status() {
        let refusal = Refusal::new(Code::Internal, "no server answers");
        check(
            Failure::Unreachable(refusal),
            true,
            expect![[r#"
                {"code":"unreachable",
                "detail":"no server answers",
                "retryable":true,
                "title":"Not reachable",
                "type":"about:blank"}"#]],
        );
    }
}
