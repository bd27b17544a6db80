//! Text that comes in pieces and then once more as a whole: what of the whole is new. Knows no format.

use std::collections::VecDeque;

/// What kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Said,
    Thought,
}

/// What was streamed of one message, a block at a time.
#[derive(Debug, Default)]
pub(super) struct Streamed {
    blocks: VecDeque<Block>,
}

#[derive(Debug)]
struct Block {
    index: u64,
    kind: Kind,
    text: String,
}

/// How a whole compares with its pieces.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// That much is new: everything, if nothing was streamed.
    New(String),
    /// The pieces do not make up the whole.
    Differs,
}

impl Streamed {
    /// A piece of the block with this number.
    pub(super) fn piece(&mut self, index: u64, kind: Kind, text: &str) {
        match self.blocks.iter_mut().find(|block| block.index == index && block.kind == kind) {
            Some(block) => block.text.push_str(text),
            None => self.blocks.push_back(Block { index, kind, text: text.to_owned() }),
        }
    }

    /// The next whole block of this kind. Blocks come whole in the order in which they were streamed.
    pub(super) fn whole(&mut self, kind: Kind, text: &str) -> Rest {
        let at = self.blocks.iter().position(|block| block.kind == kind);
        match at.and_then(|at| self.blocks.remove(at)) {
            Some(block) => match text.strip_prefix(block.text.as_str()) {
                Some(rest) => Rest::New(rest.to_owned()),
                None => Rest::Differs,
            },
            None => Rest::New(text.to_owned()),
        }
    }
}
