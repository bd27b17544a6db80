//! Queues of work that can be claimed: runs without a driver, and pending tool calls. They are indexed by the scope of the session. A
//! caller with a scope finds its own work without reading other tenants' entries: these cost it nothing, however many there are.
//!
//! The table is named `waiting`, because its entries wait for a claim. A run with the status `waiting` waits for a decision: it
//! cannot be claimed, and is in no queue.
//!
//! There is one row for each key of the session's scope. For a caller with several keys the claim intersects the
//! lists: the entries that it may claim are in the list of each key.

use abide_schema::{Abort, Context, Value, limits, table};

use crate::session::Session;

/// The queue of runs without a driver. Queues of tool calls have a letter and the tool's name.
pub(crate) const RUNS: &str = "r";

/// Returns the queue of a tool's calls.
pub(crate) fn tool_queue(tool: &str) -> String {
    format!("t{tool}")
}

/// Work that can be claimed, under one key of its session's scope.
#[table(name = "waiting", without_rowid, shared)]
pub struct WaitingEntry {
    /// Its queue: `r`, or `t` and the name of a tool.
    #[column(key)]
    pub queue: String,
    /// One key of the scope and its value, as JSON.
    #[column(key)]
    pub part: String,
    /// Since when it waits: a seq, or a time in microseconds.
    #[column(key)]
    pub since: i64,
    /// The call or the run.
    #[column(key)]
    pub id: String,
}

/// Work that can be in a queue, as its row says.
pub(crate) struct QueueEntry<'a> {
    pub(crate) queue: String,
    pub(crate) since: i64,
    pub(crate) id: &'a str,
    pub(crate) session_id: &'a str,
}

/// Adds an entry if its work can be claimed, else removes it.
pub(crate) fn set(
    ctx: &mut Context<'_>,
    QueueEntry { queue, since, id, session_id }: QueueEntry<'_>,
    is_claimable: bool,
) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        let session = ctx.get::<Session>(session_id)?;
        let Some(session) = session.filter(|session| session.scope.as_str() != "{}") else {
            return Ok(());
        };
        let scope = session.scope.value();
        for (key, value) in scope.as_object().into_iter().flatten() {
            let Some(value) = value.as_str() else { continue };
            let queue = queue.clone();
            let part = scope_part(key, value);
            let id = id.to_owned();
            if is_claimable {
                ctx.insert(WaitingEntry { queue, part, since, id })?;
            } else if ctx.get::<WaitingEntry>((&*queue, &*part, since, &*id))?.is_some() {
                ctx.delete::<WaitingEntry>((&*queue, &*part, since, &*id))?;
            }
        }
        Ok(())
    })
}

/// Returns one key of a scope and its value, as text.
pub(crate) fn scope_part(key: &str, value: &str) -> String {
    serde_json::json!([key, value]).to_string()
}

/// What a claim may still examine, in all its queues together.
pub(crate) struct ClaimBudget {
    rows: usize,
    bytes: usize,
}

impl ClaimBudget {
    /// Of a claim that has examined nothing.
    pub(crate) fn new() -> ClaimBudget {
        ClaimBudget { rows: limits::ROWS_EXAMINED_PER_CLAIM, bytes: limits::CLAIM_BYTES }
    }

    /// Counts the bytes of an item.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn is_spent(&self) -> bool {
        self.rows == 0 || self.bytes == 0
    }
}

/// A position in a queue, which moves from the longest waiting item to the last.
pub(crate) struct QueueScan {
    queue: String,
    behind: Option<(i64, String)>,
}

impl QueueScan {
    /// Before the longest waiting item.
    pub(crate) fn new(queue: String) -> QueueScan {
        QueueScan { queue, behind: None }
    }

    /// Returns the id of the next item. `None` at the end, or if the budget is spent.
    ///
    /// A caller with a scope reads only entries of its scope. For any other caller `following` returns the id of the item
    /// behind another one, or of the first.
    pub(crate) fn next(
        &mut self,
        ctx: &mut Context<'_>,
        budget: &mut ClaimBudget,
        following: impl Fn(&mut Context<'_>, Option<&str>) -> Result<Option<String>, Abort>,
    ) -> Result<Option<String>, Abort> {
        if budget.is_spent() {
            return Ok(None);
        }
        let behind = self.behind.as_ref().map(|(since, id)| (*since, id.as_str()));
        let found = if ctx.caller.scope().is_empty() {
            budget.rows -= 1;
            let behind = behind.map(|(_, id)| id);
            ctx.without_policies(|ctx| following(ctx, behind))?.map(|id| (0, id))
        } else {
            match next(ctx, &self.queue, behind, &mut budget.rows)? {
                QueueHead::Found(since, id) => Some((since, id)),
                QueueHead::End => None,
            }
        };
        self.behind.clone_from(&found);
        Ok(found.map(|(_, id)| id))
    }
}

/// The result of a search in a queue.
enum QueueHead {
    /// The next entry: since when it waits, and its id.
    Found(i64, String),
    /// None left, or the limit of examined entries was reached on partial matches.
    End,
}

/// Returns the next entry in the caller's scope after a given one. `lookups` is the remaining number of lookups.
fn next(
    ctx: &mut Context<'_>,
    queue: &str,
    behind: Option<(i64, &str)>,
    lookups: &mut usize,
) -> Result<QueueHead, Abort> {
    let scope = ctx.caller.scope().clone();
    let parts: Vec<String> = scope.iter().map(|(key, value)| scope_part(key, value)).collect();
    let (since, id) = behind.unwrap_or((i64::MIN, ""));
    // The first candidate position, and the number of lists that contain it.
    let mut place = (since, id.to_owned());
    let mut exclusive = true;
    let mut agreed = 0;
    for part in parts.iter().cycle() {
        if *lookups == 0 {
            return Ok(QueueHead::End);
        }
        *lookups -= 1;
        let by = if exclusive { ">" } else { ">=" };
        let clause = format!(
            "WHERE queue = ?1 AND part = ?2 AND (since, id) {by} (?3, ?4) ORDER BY since, id LIMIT 1"
        );
        let part = part.as_str();
        let id = place.1.as_str();
        let params = [queue.into(), part.into(), place.0.into(), Value::from(id)];
        let found = ctx.without_policies(|ctx| ctx.find::<WaitingEntry>(&clause, &params))?;
        let Some(found) = found.into_iter().next() else { return Ok(QueueHead::End) };
        let at = (found.since, found.id);
        agreed = if !exclusive && at == place { agreed + 1 } else { 1 };
        place = at;
        exclusive = false;
        if agreed == parts.len() {
            return Ok(QueueHead::Found(place.0, place.1));
        }
    }
    Ok(QueueHead::End)
}
