//! The runs of each agent in the order of their last change, for lists of a caller that do not read the runs of other scopes.
//!
//! A run has one row for each key of its session's scope, and one for callers without a scope. While it is active, its place is
//! [`ACTIVE`], so that its events write no rows here; when it ends, its place is the time of its end. Runs that another run has
//! delegated are in no list.

use abide_schema::{Abort, Context, Micros, table};

use crate::claim_queue;
use crate::session::Session;

/// The place of all active runs: after every time.
pub const ACTIVE: i64 = i64::MAX;

/// A run in the list of its agent.
#[table(name = "run_lists", without_rowid, index(session_id), index(run_id))]
pub struct RunListEntry {
    /// The agent.
    #[column(key)]
    pub agent: String,
    /// One key of the scope and its value, as JSON; empty in the list of all runs.
    #[column(key)]
    pub part: String,
    /// When the run ended, in microseconds since 1970; the largest number while it is active.
    #[column(key)]
    pub ended_at: i64,
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
}

/// A run as the lists need it.
pub(crate) struct ListedRun<'a> {
    pub(crate) id: &'a str,
    pub(crate) agent: &'a str,
    pub(crate) session_id: &'a str,
    pub(crate) ended_at: Option<Micros>,
    pub(crate) is_delegated: bool,
}

/// Adds a new run.
pub(crate) fn insert_entries(ctx: &mut Context<'_>, run: &ListedRun<'_>) -> Result<(), Abort> {
    for_each_entry(ctx, run, |ctx, entry| ctx.insert(entry).map(drop))
}

/// Moves a run that has ended to its place.
pub(super) fn move_entries(ctx: &mut Context<'_>, run: &ListedRun<'_>) -> Result<(), Abort> {
    for_each_entry(ctx, run, |ctx, entry| {
        ctx.delete::<RunListEntry>((&*entry.agent, &*entry.part, ACTIVE, &*entry.run_id))?;
        ctx.insert(entry).map(drop)
    })
}

/// The entries of a run at its place now.
fn for_each_entry(
    ctx: &mut Context<'_>,
    run: &ListedRun<'_>,
    act: impl Fn(&mut Context<'_>, RunListEntry) -> Result<(), Abort>,
) -> Result<(), Abort> {
    if run.is_delegated {
        return Ok(());
    }
    ctx.without_policies(|ctx| {
        let session = ctx.get::<Session>(run.session_id)?;
        let scope = session.map(|session| session.scope.value()).unwrap_or_default();
        let texts = scope.as_object().into_iter().flatten();
        let parts =
            texts.filter_map(|(key, value)| Some(claim_queue::scope_part(key, value.as_str()?)));
        for part in parts.chain([String::new()]) {
            let entry = RunListEntry {
                agent: run.agent.to_owned(),
                part,
                ended_at: run.ended_at.map_or(ACTIVE, |at| at.0),
                run_id: run.id.to_owned(),
                session_id: run.session_id.to_owned(),
            };
            act(ctx, entry)?;
        }
        Ok(())
    })
}
