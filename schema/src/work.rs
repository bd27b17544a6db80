//! Work that a call depends on and that may take long, such as holding arguments to a schema that a caller wrote.
//!
//! The writer does a small part of it only. What takes more steps is done before the call runs again: by a reader, which
//! hands the verdict over with the call. The writer then compares the input and uses the verdict.
//!
//! *Invariant:* a verdict follows from the input of the work alone. It does not depend on where the work is done, or
//! on how many steps the first attempt was allowed, so a replay, which does all of it itself, gives the same rows.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use crate::reducer::{Abort, Context};
use crate::refusal::Refusal;

/// What comes of some work: the call goes on, or is refused.
pub type Verdict = Result<(), Refusal>;

/// Work with a verdict that follows from its input alone. Two values are equal if their inputs are.
pub trait Work: Any + fmt::Debug + Send + Sync {
    /// The verdict, if it takes at most so many steps. With [`WHOLE`] there always is one.
    fn attempt(&self, steps: u64) -> Option<Verdict>;
}

/// As many steps as the work takes; its own limit is part of the verdict.
pub const WHOLE: u64 = u64::MAX;

/// Tries out policies: whether a table and its columns are there, and whether a condition is one that can decide
/// what is seen.
pub trait PolicyJudge: fmt::Debug + Send + Sync {
    /// The verdict on a policy.
    ///
    /// # Errors
    /// What is wrong with it.
    fn judge(&self, table: &str, condition: Option<&str>, hidden: &[String]) -> Verdict;
}

/// Trying out a policy. To plan the SQL of a condition takes no steps that could be counted, so a reader does it, and
/// the writer tries out policies without a condition only.
#[derive(Clone, Debug)]
pub struct PolicyTrial {
    /// The table.
    pub table: String,
    /// Which rows.
    pub condition: Option<String>,
    /// The columns that are hidden.
    pub hidden: Vec<String>,
    /// Who tries it out: one for each engine.
    pub judge: Arc<dyn PolicyJudge>,
}

impl PartialEq for PolicyTrial {
    fn eq(&self, other: &PolicyTrial) -> bool {
        (&self.table, &self.condition, &self.hidden)
            == (&other.table, &other.condition, &other.hidden)
    }
}

impl Work for PolicyTrial {
    fn attempt(&self, steps: u64) -> Option<Verdict> {
        let PolicyTrial { table, condition, hidden, judge } = self;
        let is_planned = condition.is_some() && steps < WHOLE;
        (!is_planned).then(|| judge.judge(table, condition.as_deref(), hidden))
    }
}

/// Work as the engine passes it from thread to thread.
pub type SharedWork = Arc<dyn Work>;

/// Work that was done before the call ran.
#[derive(Debug)]
pub struct Settled {
    /// Which call of the batch it is for, from 0.
    pub call: usize,
    /// The work.
    pub work: SharedWork,
    /// What came of it.
    pub verdict: Verdict,
}

/// What the work of one call may take while the writer waits.
#[derive(Clone, Copy, Debug)]
pub struct Effort<'a> {
    /// Steps of each attempt.
    pub steps: u64,
    /// Which call of the batch this is, from 0.
    pub call: usize,
    /// What was done before.
    pub settled: &'a [Settled],
    /// Collects the work that takes more.
    pub deferred: &'a RefCell<Vec<(usize, SharedWork)>>,
    /// Whether the call goes on as if deferred work had been accepted, so that all work of a batch is collected at
    /// once. The whole batch is undone afterwards.
    pub goes_on: bool,
}

impl Context<'_> {
    /// Has some work done, here or before the call runs again, and gives its verdict. Call it before the first write:
    /// a deferred call is undone.
    ///
    /// # Errors
    /// [`Abort::Refused`] with the verdict, [`Abort::Deferred`] where the work takes more than the writer waits for.
    pub fn settle<W: Work + Clone + PartialEq>(&mut self, work: &W) -> Result<(), Abort> {
        let Some(effort) = self.effort else {
            let verdict = work.attempt(WHOLE);
            return Ok(verdict.expect("the whole work has a verdict")?);
        };
        let is_it = |settled: &&Settled| {
            let done: &dyn Any = &*settled.work;
            settled.call == effort.call && done.downcast_ref::<W>() == Some(work)
        };
        if let Some(settled) = effort.settled.iter().find(is_it) {
            return Ok(settled.verdict.clone()?);
        }
        if let Some(verdict) = work.attempt(effort.steps) {
            return Ok(verdict?);
        }
        effort.deferred.borrow_mut().push((effort.call, Arc::new(work.clone())));
        if effort.goes_on { Ok(()) } else { Err(Abort::Deferred) }
    }

    /// Tries out a policy before it is kept, over the declared tables with nothing in them. Call it before the first
    /// write: a reader plans the condition, and the call runs again.
    ///
    /// # Errors
    /// [`Abort::Refused`] with what is wrong with it, [`Abort::Deferred`] where it is yet to be planned.
    pub fn judge_policy(
        &mut self,
        table: &str,
        condition: Option<&str>,
        hidden: &[String],
    ) -> Result<(), Abort> {
        let Some(judge) = self.rows.policy_judge() else { return Ok(()) };
        let (table, condition) = (table.to_owned(), condition.map(str::to_owned));
        self.settle(&PolicyTrial { table, condition, hidden: hidden.to_vec(), judge })
    }
}
