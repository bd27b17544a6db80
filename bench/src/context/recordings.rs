//! Recorded conversations in the form that a session repeats: each turn ends with an answer without calls, and each call
//! has a result.

use std::path::{Path, PathBuf};

use abide_models::{Conversation, ModelMessage, read_conversations};
use abide_tools::{Failure, ToolOutcome};

/// A conversation with its turns.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    /// The text of the model.
    pub(crate) conversation: Conversation,
    /// The turns, in order.
    pub(crate) turns: Vec<Turn>,
}

/// One turn: a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn {
    /// The messages before the model answers.
    pub(crate) says: Vec<ModelMessage>,
    /// The results of the calls of each answer.
    pub(crate) results: Vec<Vec<ToolOutcome>>,
}

/// The files of recordings: the given ones, or those of the repository and of `ABIDE_EXTERNAL_FIXTURES`.
pub(crate) fn list_files(given: &[PathBuf]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let external = std::env::var_os("ABIDE_EXTERNAL_FIXTURES").unwrap_or_default();
    let usual = [
        root.join("tests/fixtures/conversations.jsonl.zst"),
        Path::new(&external).join("data/conversations"),
    ];
    let paths = if given.is_empty() { &usual[..] } else { given };
    let mut files = Vec::new();
    for path in paths {
        match std::fs::read_dir(path) {
            Ok(entries) => files.extend(entries.filter_map(|entry| Some(entry.ok()?.path()))),
            Err(_) if path.is_file() => files.push(path.clone()),
            Err(_) => eprintln!("skipped: {} does not exist", path.display()),
        }
    }
    files.sort();
    files
}

/// Every n-th conversation of a file.
pub(crate) fn read_file(path: &Path, every: usize) -> Vec<Recording> {
    let all = read_conversations(path).expect("the recordings can be read");
    let some = all.into_iter().step_by(every.max(1)).map(Recording::from_conversation);
    some.filter(|it| it.task().is_some() && it.conversation.answers() > 0).collect()
}

impl Recording {
    /// The conversation up to the first call without a result. Messages in the middle of a turn are omitted, and so are
    /// characters that providers do not permit in names of tools.
    fn from_conversation(recorded: Conversation) -> Recording {
        let mut recording = Recording {
            conversation: Conversation { messages: Vec::new(), ..recorded.clone() },
            turns: vec![Turn::default()],
        };
        for (at, message) in recorded.messages.iter().enumerate() {
            match message {
                ModelMessage::Assistant { .. } => {
                    let results = recorded.results(at);
                    let results: Option<Vec<ModelMessage>> =
                        results.into_iter().map(|it| it.cloned()).collect();
                    let Some(results) = results else { break };
                    recording.push_answer(message.clone(), results);
                }
                ModelMessage::Tool { .. } => {}
                said => recording.push_message(said.clone()),
            }
        }
        recording.end_open_turn();
        recording
    }

    /// One turn of many answers: the calls and results of these conversations, again and again.
    pub(crate) fn repeat_calls(all: &[Recording], answers: usize) -> Recording {
        let first = all.first().expect("there is a recording");
        let mut long = Recording {
            conversation: Conversation {
                id: "long".to_owned(),
                messages: Vec::new(),
                ..first.conversation.clone()
            },
            turns: vec![Turn::default()],
        };
        long.push_message(ModelMessage::user(first.task().expect("it has a task")));
        let with_calls = |message: &ModelMessage| match message {
            ModelMessage::Assistant { calls, .. } => !calls.is_empty(),
            _ => false,
        };
        let groups: Vec<(ModelMessage, Vec<ModelMessage>)> = all
            .iter()
            .flat_map(|recording| {
                let messages = recording.conversation.messages.iter().enumerate();
                messages.filter(|(_, it)| with_calls(it)).map(|(at, message)| {
                    let results = recording.conversation.results(at).into_iter().flatten();
                    (message.clone(), results.cloned().collect())
                })
            })
            .collect();
        assert!(!groups.is_empty(), "the recordings have no calls");
        for (message, results) in groups.iter().cycle().take(answers) {
            long.push_answer(message.clone(), results.clone());
        }
        long.end_open_turn();
        long
    }

    /// The first message of the user.
    pub(crate) fn task(&self) -> Option<&str> {
        self.conversation.messages.iter().find_map(|message| match message {
            ModelMessage::User { text } => Some(text.as_str()),
            _ => None,
        })
    }

    fn turn(&mut self) -> &mut Turn {
        self.turns.last_mut().expect("there is at least one")
    }

    fn push_message(&mut self, said: ModelMessage) {
        // In the middle of a turn, the model has not ended it.
        if self.is_open() {
            return;
        }
        if !self.turn().results.is_empty() {
            self.turns.push(Turn::default());
        }
        self.turn().says.push(said.clone());
        self.conversation.messages.push(said);
    }

    /// Whether the last answer has calls.
    fn is_open(&self) -> bool {
        self.turns.last().and_then(|turn| turn.results.last()).is_some_and(|it| !it.is_empty())
    }

    fn push_answer(&mut self, mut message: ModelMessage, results: Vec<ModelMessage>) {
        if let ModelMessage::Assistant { text, calls, .. } = &mut message {
            for call in calls.iter_mut() {
                call.name.retain(|c| !matches!(c, '$' | '{' | '}'));
            }
            if calls.is_empty() && text.trim().is_empty() {
                "Done.".clone_into(text);
            }
        }
        if !self.is_open() && !self.turn().results.is_empty() {
            self.turns.push(Turn::default());
        }
        let outcomes = results.iter().map(to_outcome).collect();
        self.turn().results.push(outcomes);
        self.conversation.messages.push(message);
        self.conversation.messages.extend(results);
    }

    /// Ends a turn that the recording does not end.
    fn end_open_turn(&mut self) {
        if self.is_open() {
            let text = "Done.".to_owned();
            let end =
                ModelMessage::Assistant { text, reasoning: None, calls: Vec::new(), carry: None };
            self.push_answer(end, Vec::new());
        }
        self.turns.retain(|turn| !turn.results.is_empty());
    }
}

fn to_outcome(result: &ModelMessage) -> ToolOutcome {
    match result {
        ModelMessage::Tool { content, is_error: true, .. } => {
            ToolOutcome::failed(Failure::Tool, content)
        }
        ModelMessage::Tool { content, .. } => ToolOutcome::text(content),
        other => panic!("{other:?} is not a result"),
    }
}
