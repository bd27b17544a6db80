//! Commands that continue a run that waits. They can be pasted into a shell.

use std::fmt::Write as _;
use std::path::Path;

use abide_schema::Code;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::global_options::{DEFAULT_URL, Options};
use crate::user_info::hide_user_info_of_address;

/// The default folder.
pub(crate) const FOLDER: &str = ".abide";

/// The database of a conversation or a server without `--db`, in the folder of the agents.
pub(super) const FILE: &str = "agents.db";

/// The options of this command line that the hints repeat. The token is omitted: it belongs in `ABIDE_TOKEN`.
pub(super) struct HintContext {
    where_to: String,
    again: String,
    /// Whether it is a file, which only one program can open at a time.
    has_file: bool,
}

impl HintContext {
    pub(super) fn new(
        options: &Options,
        folder: &Path,
        name: &str,
        input: &str,
        id: &str,
    ) -> HintContext {
        let where_to = connection_option(options);
        let folder = agents_option(folder);
        // An input that starts with a dash is not an option.
        let dashes = if input.starts_with('-') { " --" } else { "" };
        let name = quote(name);
        let input = quote(input);
        let id = quote(id);
        let again = format!("abide agent run{where_to}{folder} --id {id}{dashes} {name} {input}");
        HintContext { where_to, again, has_file: options.db.is_some() }
    }

    /// The context of a run of an existing session.
    pub(super) fn in_session(self, session: Option<&str>) -> HintContext {
        let option = session.map(|id| format!(" --session {} --id ", quote(id)));
        let again = option.map(|option| self.again.replacen(" --id ", &option, 1));
        HintContext { again: again.unwrap_or(self.again), ..self }
    }

    /// The context of a conversation.
    pub(super) fn for_chat(
        options: &Options,
        folder: &Path,
        name: &str,
        session: &str,
    ) -> HintContext {
        let where_to = connection_option(options);
        let of_folder = agents_option(folder);
        // The file of the folder is the default.
        let of_server = options.local_server.as_ref().map(|server| &server.file);
        let named = match options.db.as_ref().or(of_server) {
            Some(db) if *db == folder.join(FILE) => "",
            _ => &where_to,
        };
        let name = quote(name);
        let session = quote(session);
        let again = format!("abide agent chat{named}{of_folder} --session {session} {name}");
        HintContext { where_to, again, has_file: options.db.is_some() }
    }

    /// The context of a command with the option that approves each call.
    pub(super) fn with_yes(self, yes: bool) -> HintContext {
        let again = if yes {
            ["run", "chat", "import"].iter().fold(self.again, |again, command| {
                let command = format!("abide agent {command}");
                again.replacen(&command, &format!("{command} --yes"), 1)
            })
        } else {
            self.again
        };
        HintContext { again, ..self }
    }

    /// The command that continues.
    pub(super) fn continue_command(&self) -> &str {
        &self.again
    }

    /// The context of a run that was imported.
    pub(super) fn for_import(
        options: &Options,
        folder: &Path,
        file: &Path,
        id: Option<&str>,
        any_definition: bool,
    ) -> HintContext {
        let where_to = connection_option(options);
        let folder = agents_option(folder);
        let id = id.map(|id| format!(" --id {}", quote(id))).unwrap_or_default();
        let any = if any_definition { " --any-definition" } else { "" };
        let file = quote(&file.display().to_string());
        let again = format!("abide agent import{where_to}{folder}{id}{any} {file}");
        HintContext { where_to, again, has_file: options.db.is_some() }
    }

    /// The command that resumes a paused run, and the command that continues it.
    pub(super) fn resume_run_commands(&self, run_id: &str) -> String {
        self.append_continue_command(&format!(
            "abide agent resume{} {}",
            self.where_to,
            quote(run_id)
        ))
    }

    /// The commands that decide on tool calls ([`HintContext::decide_call_command`], [`HintContext::answer_question_command`]), and the command that
    /// continues the run.
    pub(super) fn then_continue(&self, decisions: &[String]) -> String {
        self.append_continue_command(&decisions.join("\n  and:  "))
    }

    /// The command that decides on a tool call.
    pub(super) fn decide_call_command(&self, call_id: &str, status: &str) -> String {
        if status != "unknown" {
            return self.approve_call_command(call_id);
        }
        let settle = |outcome: &str| {
            let id = quote(&format!("call_id={call_id}"));
            let call = self.call_command("settle_tool_call");
            format!("{call} {id} outcome={outcome} evidence='\"how you know\"'")
        };
        // Only a person can find out which outcome is true.
        let succeeded = settle("succeeded");
        let failed = settle("failed");
        format!("{succeeded}   # it took effect\n  or:   {failed}   # it did not")
    }

    /// The command that decides while this process runs. It needs a server: this process has a file locked.
    pub(super) fn decide_elsewhere_command(&self, call_id: &str) -> Option<String> {
        (!self.has_file).then(|| self.approve_call_command(call_id))
    }

    /// The command that answers the question of a tool, with an example of an answer.
    pub(super) fn answer_question_command(&self, call_id: &str, schema: &Value) -> String {
        let fields = schema["properties"].as_object().into_iter().flatten();
        let answer: Map<String, Value> =
            fields.map(|(name, field)| (name.clone(), example_value(field))).collect();
        let decide = self.approve_call_command(call_id);
        if answer.is_empty() {
            return decide;
        }
        let arguments = json!({"answer": answer});
        format!("{decide} {}", quote(&format!("approved_arguments={arguments}")))
    }

    fn approve_call_command(&self, call_id: &str) -> String {
        let id = quote(&format!("call_id={call_id}"));
        format!("{} {id} decision=approve", self.call_command("decide_approval"))
    }

    /// The command that resumes a suspended session, and the command that continues its run.
    pub(super) fn resume_session_commands(&self, session_id: &str) -> String {
        let id = quote(&format!("session_id={session_id}"));
        self.append_continue_command(&format!("{} {id}", self.call_command("resume_session")))
    }

    /// The commands that answer a session's handoff, and the command that continues its run.
    pub(super) fn answer_handoff_commands(&self, handoff_id: &str, is_claimed: bool) -> String {
        let id = quote(&format!("id={handoff_id}"));
        let claim = format!("{} {id}\n  then: ", self.call_command("claim_handoff"));
        let claim = if is_claimed { String::new() } else { claim };
        let resolve = self.call_command("resolve_handoff");
        let reject = self.call_command("reject_handoff");
        self.append_continue_command(&format!(
            "{claim}{resolve} {id} 'resolution=your answer'\n  or:   {reject} {id} 'reason=why not'"
        ))
    }

    /// The command that lists the handoffs of a session, for a caller that sees none that is open.
    pub(super) fn list_handoffs_commands(&self, session_id: &str) -> String {
        let sql =
            "SELECT id, status, required_capability FROM handoff_requests WHERE session_id = :sid";
        let sql = quote(sql);
        let id = quote(&format!("sid={session_id}"));
        self.append_continue_command(&format!("abide sql{} {sql} {id}", self.where_to))
    }

    fn call_command(&self, reducer: &str) -> String {
        format!("abide call{} {reducer}", self.where_to)
    }

    fn append_continue_command(&self, decide: &str) -> String {
        format!("{decide}\n  then: {}", self.again)
    }
}

/// A value that fits a field of a form: its default, its first choice, or one of its type.
fn example_value(field: &Value) -> Value {
    let choice = field["enum"].get(0).or_else(|| field["oneOf"].get(0)?.get("const"));
    if let Some(value) = field.get("default").or(choice) {
        return value.clone();
    }
    match field["type"].as_str() {
        Some("boolean") => json!(true),
        Some("integer" | "number") => field.get("minimum").cloned().unwrap_or(json!(1)),
        Some("array") => json!([]),
        _ => json!("…"),
    }
}

/// The option that names the file or the server.
pub(crate) fn connection_option(options: &Options) -> String {
    match &options.db {
        Some(db) => format!(" --db {}", quote(&db.display().to_string())),
        // A command without the option can use another server, and a conversation uses a file.
        None if !options.is_url_named => String::new(),
        None => server_option(options),
    }
}

/// The option that names the server: its address, or its file for a server with TLS, which is reached by a socket.
pub(crate) fn server_option(options: &Options) -> String {
    match &options.local_server {
        Some(server) => format!(" --db {}", quote(&server.file.display().to_string())),
        None => format!(" --url {}", quote(&hide_user_info_of_address(&options.url))),
    }
}

/// Parts of hints of reducers that name calls and their arguments, and the same parts on the command line.
const COMMAND_HINTS: [(&str, &str); 3] = [
    // The run is exported where the snapshot was made, not where it was refused.
    ("export with copy=true", "export with `abide agent export --db ORIGIN --copy`"),
    ("start_run starts another run", "`abide agent run --session SESSION` starts another run"),
    (
        "start a runtime that has these tools and the agents behind them on this file, or register_tool, and import again",
        "add the tools to abide.yaml and the agents that are tools to the agent folder, and import again",
    ),
];

/// A refusal whose hint names the commands of `abide agent` in place of calls.
pub(super) fn name_commands(failure: Failure) -> Failure {
    match failure {
        Failure::Refused(mut refusal) => {
            refusal.hint = refusal.hint.map(|hint| {
                let parts = COMMAND_HINTS.into_iter();
                parts.fold(hint, |hint, (call, command)| hint.replace(call, command))
            });
            Failure::Refused(refusal)
        }
        failure => failure,
    }
}

/// How a conversation or a run uses a file that another command has open: both through a server. Other failures stay.
pub(super) fn add_serve_hint(
    options: &Options,
    folder: &Path,
    command: &str,
    failure: Failure,
) -> Failure {
    match failure {
        Failure::Refused(refusal) if refusal.code == Code::FileLocked => {
            let first = refusal.hint.as_deref().and_then(|hint| hint.split_once(';'));
            let Some((wait, _)) = first.filter(|(first, _)| first.starts_with("wait until")) else {
                return Failure::Refused(refusal);
            };
            let wait = wait.to_owned();
            let db = match &options.db {
                Some(db) if *db == folder.join(FILE) => String::new(),
                _ => connection_option(options),
            };
            let agents = quote(&folder.display().to_string());
            Failure::Refused(refusal.hint(format!(
                "{wait}; to use the file with several programs:  \
                 abide serve{db} --agents {agents}  and  {command} --url {DEFAULT_URL}"
            )))
        }
        failure => failure,
    }
}

/// The option that names the folder of agents.
pub(crate) fn agents_option(folder: &Path) -> String {
    match folder.to_str() {
        Some(FOLDER) => String::new(),
        _ => format!(" --agents {}", quote(&folder.display().to_string())),
    }
}

/// The requested tool call, on one line, with the question of its approval and the agent if it is a delegated one.
pub(super) fn format_request(request: &Value) -> String {
    let mut call =
        format!("{} {}", request["tool_name"].as_str().unwrap_or_default(), request["args"]);
    if let Some(prompt) = request["prompt"].as_str() {
        call = format!("{prompt}  {call}");
    }
    if !request["defaults"].is_null() {
        call = format!("{call}  (suggested: {})", request["defaults"]);
    }
    match request["agent"].as_str() {
        Some(agent) => format!("{agent}: {call}"),
        None => call,
    }
}

/// An argument, quoted for a POSIX shell if necessary.
pub(crate) fn quote(word: &str) -> String {
    // The shell expands a tilde at the start of a word, and after `:` and `=`.
    let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:=@%+,~".contains(c));
    let expands = word.starts_with('~') || word.contains(":~") || word.contains("=~");
    if !word.is_empty() && is_plain && !expands {
        return word.to_owned();
    }
    // Further lines of a hint are indented, and control characters are not printed. The shell drops newlines at the end.
    if word.contains(char::is_control) && !word.ends_with('\n') {
        return format!("\"$(printf '{}')\"", printf_format(word));
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A word as the format of `printf`, inside of single quotes and on one line.
fn printf_format(word: &str) -> String {
    let mut format = String::with_capacity(word.len());
    for (at, c) in word.char_indices() {
        match c {
            // It would begin an option.
            '-' if at == 0 => format.push_str(r"\055"),
            '\'' => format.push_str(r"'\''"),
            '%' => format.push_str("%%"),
            '\\' => format.push_str(r"\\"),
            '\n' => format.push_str(r"\n"),
            c if c.is_control() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    write!(format, "\\{byte:03o}").expect("writing to a string succeeds");
                }
            }
            c => format.push(c),
        }
    }
    format
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// Class: text that changes between the place where it is quoted and the shell. The further lines of an input were indented
    /// inside of its quotes, so the printed command was refused: the run has another input.
    #[test]
    fn a_word_of_several_lines_is_one_line_for_the_shell() {
        for word in
            ["two\nlines", "-x\ny", "it's 100%\n\n  \\n \"$HOME\" `id`\tend", "\n-x\u{85}é\r"]
        {
            let quoted = quote(word);
            assert!(!quoted.contains(char::is_control), "{quoted:?}");
            let script = format!("printf %s {quoted}");
            let shell = std::process::Command::new("sh")
                .args(["-c", &script])
                .output()
                .expect("a shell runs");
            assert_eq!(String::from_utf8(shell.stdout).expect("it is UTF-8"), word, "{quoted}");
        }
    }

    /// The hint named the argument `id`, which the reducer does not accept.
    #[test]
    fn a_session_at_rest_is_resumed_by_its_own_argument() {
        let hint = HintContext {
            where_to: " --db a.db".to_owned(),
            again: "abide agent run".to_owned(),
            has_file: true,
        };
        let definition = abide_reducers::modules()
            .into_iter()
            .flat_map(|module| module.reducers)
            .find(|definition| definition.name == "resume_session")
            .expect("there is such a reducer");
        let command = hint.resume_session_commands("s1");
        assert_eq!(
            command,
            "abide call --db a.db resume_session session_id=s1\n  then: abide agent run"
        );
        let args = serde_json::json!({"session_id": "s1"});
        let args = args.as_object().expect("it is an object");
        let args = abide_schema::CallArguments::from_members(args);
        assert!((definition.decode)(&args).is_ok(), "the reducer takes what the hint says");
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// A conversation without the option uses a file, even if the server has the default address.
    #[test]
    fn the_address_that_is_named_is_repeated() {
        let url = DEFAULT_URL;
        let Line { options } = clap::Parser::parse_from(["abide", "--url", url]);
        let named = Options { is_url_named: true, ..options.clone() };
        let folder = Path::new(".abide");
        let again = |options| HintContext::for_chat(options, folder, "a", "s1").again;
        assert_eq!(again(&named), format!("abide agent chat --url {url} --session s1 a"));
        let again = |options| HintContext::new(options, folder, "a", "Hi", "r1").again;
        assert_eq!(again(&named), format!("abide agent run --url {url} --id r1 a Hi"));
        assert_eq!(again(&options), "abide agent run --id r1 a Hi");
    }

    /// The hint offered only `succeeded`.
    #[test]
    fn a_call_with_unknown_outcome_has_both_outcomes() {
        let hint = HintContext {
            where_to: " --db a.db".to_owned(),
            again: "abide agent run".to_owned(),
            has_file: true,
        };
        expect![[r#"
            abide call --db a.db settle_tool_call call_id=c1 outcome=succeeded evidence='"how you know"'   # it took effect
              or:   abide call --db a.db settle_tool_call call_id=c1 outcome=failed evidence='"how you know"'   # it did not
              then: abide agent run"#]]
        .assert_eq(&hint.then_continue(&[hint.decide_call_command("c1", "unknown")]));
        expect![[r#"
            abide call --db a.db decide_approval call_id=c1 decision=approve
              and:  abide call --db a.db decide_approval call_id=c2 decision=approve
              then: abide agent run"#]]
        .assert_eq(&hint.then_continue(
            &["c1", "c2"].map(|id| hint.decide_call_command(id, "awaiting_approval")),
        ));
    }

    /// The command that was printed was refused: its answer had none of the required fields.
    #[test]
    fn the_question_of_a_tool_has_an_answer_that_fits() {
        let hint = HintContext {
            where_to: " --db a.db".to_owned(),
            again: "abide agent run".to_owned(),
            has_file: true,
        };
        let schema = json!({"type": "object", "required": ["approve"], "properties": {
            "approve": {"type": "boolean"}, "size": {"enum": ["small", "large"]}, "why": {"type": "string"}}});
        expect![[r#"
            abide call --db a.db decide_approval call_id=c1 decision=approve 'approved_arguments={"answer":{"approve":true,"size":"small","why":"…"}}'"#]]
        .assert_eq(&hint.answer_question_command("c1", &schema));
        expect!["abide call --db a.db decide_approval call_id=c1 decision=approve"]
            .assert_eq(&hint.answer_question_command("c1", &Value::Null));
    }

    #[test]
    fn a_shell_takes_it_for_one_word() {
        let quotes = [
            ("order-7", "order-7"),
            ("call_id=order-7~2.1", "call_id=order-7~2.1"),
            ("~root", "'~root'"),
            ("a=~root", "'a=~root'"),
            ("Pay A-7 back.", "'Pay A-7 back.'"),
            ("it's", r"'it'\''s'"),
            ("$HOME `id`", "'$HOME `id`'"),
            ("", "''"),
        ];
        for (word, expected) in quotes {
            assert_eq!(quote(word), expected);
        }
    }
}
