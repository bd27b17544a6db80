//! Work that a call depends on and that can take long, such as validating arguments against a schema that a
//! caller supplied.
//!
//! The writer does only a small part of it. Work that takes more steps is done by a reader before the call runs again;
//! the reader attaches the verdict to the call. The writer then compares the input and uses the verdict.
//!
//! *Invariant:* a verdict depends on the input of the work alone. It does not depend on where the work is done, or
//! on the step budget of the first attempt, so a replay, which does all of it itself, gives the same rows.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use crate::refusal::Refusal;

/// The result of work: the call continues, or is refused.
pub type Verdict = Result<(), Refusal>;

/// Work whose verdict depends on its input alone. Two values are equal if their inputs are.
pub trait Work: Any + fmt::Debug + Send + Sync {
    /// Returns the verdict, if it takes at most this many steps. With [`WHOLE`] there is always one.
    fn attempt(&self, steps: u64) -> Option<Verdict>;
}

/// An unlimited number of steps; the work's own limit is part of the verdict.
pub const WHOLE: u64 = u64::MAX;

/// Validates policies: checks that the table and its columns exist, and that the condition can be evaluated and be
/// part of a live query.
pub trait PolicyChecker: fmt::Debug + Send + Sync {
    /// Returns the verdict on a policy.
    ///
    /// # Errors
    /// The refusal of an invalid policy.
    fn check(&self, table: &str, condition: Option<&str>, hidden: &[String]) -> Verdict;
}

/// Validation of a policy. Planning the SQL of a condition has no countable steps, so a reader does it. The writer
/// validates only policies without a condition.
#[derive(Clone, Debug)]
pub struct PolicyTrial {
    /// The table.
    pub table: String,
    /// The condition for visible rows.
    pub condition: Option<String>,
    /// The hidden columns.
    pub hidden: Vec<String>,
    /// The validator of the engine.
    pub checker: Arc<dyn PolicyChecker>,
}

impl PartialEq for PolicyTrial {
    fn eq(&self, other: &PolicyTrial) -> bool {
        (&self.table, &self.condition, &self.hidden)
            == (&other.table, &other.condition, &other.hidden)
    }
}

impl Work for PolicyTrial {
    fn attempt(&self, steps: u64) -> Option<Verdict> {
        let PolicyTrial { table, condition, hidden, checker } = self;
        let is_planned = condition.is_some() && steps < WHOLE;
        (!is_planned).then(|| checker.check(table, condition.as_deref(), hidden))
    }
}

/// Work as the engine passes it from thread to thread.
pub type SharedWork = Arc<dyn Work>;

/// Work that was done before the call ran.
#[derive(Debug)]
pub struct FinishedWork {
    /// Index of the call in its batch.
    pub call: usize,
    /// The work.
    pub work: SharedWork,
    /// Its verdict.
    pub verdict: Verdict,
}

/// The work budget of one call on the writer.
#[derive(Clone, Copy, Debug)]
pub struct WorkBudget<'a> {
    /// Step budget of each attempt.
    pub steps: u64,
    /// Index of the call in its batch.
    pub call: usize,
    /// Work done before.
    pub finished: &'a [FinishedWork],
    /// Collects work that exceeds the budget.
    pub deferred: &'a RefCell<Vec<(usize, SharedWork)>>,
    /// Whether the call continues as if deferred work had been accepted, so that all work of a batch is collected in
    /// one pass. The whole batch is rolled back afterwards.
    pub goes_on: bool,
}
