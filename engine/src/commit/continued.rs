//! Answers to calls whose work goes on in later transactions: each is held until the last step of its work.

use abide_schema::{Code, Refusal, Seq};

use crate::commit::timers::ContinuedCall;
use crate::commit::unit::{CallOutcome, ReplyEnvelope};

/// An answer, and the work that it waits for.
#[derive(Debug)]
struct HeldAnswer {
    answer: ReplyEnvelope,
    /// The unfinished calls, with their positions in the unit.
    unfinished: Vec<(usize, ContinuedCall)>,
}

/// The end of the work of a call.
#[derive(Debug)]
pub(crate) struct LastStep {
    /// The call that began it.
    pub(crate) call: ContinuedCall,
    /// The event of the last step and its result, or why the work could not be completed.
    pub(crate) outcome: Result<(Seq, String), Refusal>,
}

/// The held answers. If one is lost, its work still goes on: the rows of the work are in the file.
#[derive(Debug, Default)]
pub(crate) struct HeldAnswers(Vec<HeldAnswer>);

impl HeldAnswers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn hold(&mut self, answer: ReplyEnvelope, unfinished: Vec<(usize, ContinuedCall)>) {
        self.0.push(HeldAnswer { answer, unfinished });
    }

    /// Returns the answers that wait for nothing more after this step.
    pub(crate) fn release(&mut self, step: &LastStep) -> Vec<ReplyEnvelope> {
        for held in &mut self.0 {
            held.unfinished.retain(|(position, call)| {
                let has_ended =
                    call.reducer == step.call.reducer && call.subject == step.call.subject;
                if has_ended {
                    held.answer.complete(*position, &step.outcome);
                }
                !has_ended
            });
        }
        let done = self.0.extract_if(.., |held| held.unfinished.is_empty());
        done.map(|held| held.answer).collect()
    }

    /// Returns all answers. Their work goes on when the file is opened again, so a call is not answered as done. The calls of
    /// a batch have taken effect, except for the work that goes on.
    pub(crate) fn release_all(&mut self) -> Vec<ReplyEnvelope> {
        let unfinished = |ReplyEnvelope { reply, outcome }| {
            let outcome = outcome.and_then(|done| match done.calls.len() {
                1 => Err(Refusal::new(
                    Code::Unavailable,
                    "the work goes on when the file is opened again",
                )
                .hint("send the call again with the same request id")),
                _ => Ok(done),
            });
            ReplyEnvelope { reply, outcome }
        };
        self.0.drain(..).map(|held| unfinished(held.answer)).collect()
    }
}

impl ReplyEnvelope {
    /// Replaces the result of a call by that of the last step of its work. Work that failed is a refusal of the call; in a
    /// batch the other calls have taken effect, and the row of the work shows that it failed.
    fn complete(&mut self, position: usize, outcome: &Result<(Seq, String), Refusal>) {
        let Ok(done) = &mut self.outcome else { return };
        match outcome {
            Ok((seq, result)) => {
                let call = &mut done.calls[position];
                *call = CallOutcome {
                    seq: *seq,
                    result: result.clone(),
                    duplicate: call.duplicate,
                    refusal: None,
                };
            }
            Err(refusal) if done.calls.len() == 1 => self.outcome = Err(refusal.clone()),
            Err(_) => {}
        }
    }
}
