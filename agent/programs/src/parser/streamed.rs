//! Text that arrives in chunks and then again complete: computes the new part. Independent of formats.

use std::collections::VecDeque;

use crate::event::ProgramEvent;

/// The kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextKind {
    Said,
    Thought,
}

/// The streamed text of one message, by block.
#[derive(Debug, Default)]
pub(crate) struct Streamed {
    blocks: VecDeque<Block>,
}

#[derive(Debug)]
struct Block {
    index: u64,
    kind: TextKind,
    text: String,
}

/// The result of the comparison of a complete text with its chunks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Remainder {
    /// The new part: everything, if nothing was streamed.
    New(String),
    /// The chunks are not a prefix of the complete text.
    Differs,
}

impl Streamed {
    /// Adds a chunk of the block with this number.
    pub(crate) fn add_chunk(&mut self, index: u64, kind: TextKind, text: &str) {
        match self.blocks.iter_mut().find(|block| block.index == index && block.kind == kind) {
            Some(block) => block.text.push_str(text),
            None => self.blocks.push_back(Block { index, kind, text: text.to_owned() }),
        }
    }

    /// Returns the chunks of this kind; `None` if there are none.
    pub(crate) fn text(&self, kind: TextKind) -> Option<String> {
        let blocks = self.blocks.iter().filter(|block| block.kind == kind);
        let text: String = blocks.map(|block| block.text.as_str()).collect();
        (!text.is_empty()).then_some(text)
    }

    /// Returns the next complete block of this kind. Complete blocks arrive in the order in which they were streamed.
    pub(crate) fn complete_block(&mut self, kind: TextKind, text: &str) -> Remainder {
        let at = self.blocks.iter().position(|block| block.kind == kind);
        match at.and_then(|at| self.blocks.remove(at)) {
            Some(block) => match text.strip_prefix(block.text.as_str()) {
                Some(rest) => Remainder::New(rest.to_owned()),
                None => Remainder::Differs,
            },
            None => Remainder::New(text.to_owned()),
        }
    }
}

/// Returns the event for new text of a message of the agent itself; `None` if the text is empty. The id can be empty.
pub(crate) fn text_delta(kind: TextKind, text: &str, id: &str) -> Option<ProgramEvent> {
    if text.is_empty() {
        return None;
    }
    let message = Some(id.to_owned()).filter(|id| !id.is_empty());
    let text = text.to_owned();
    Some(match kind {
        TextKind::Said => ProgramEvent::AssistantDelta { text, message, parent: None },
        TextKind::Thought => ProgramEvent::ThinkingDelta { text, message, parent: None },
    })
}
