//! The calls that wait for a worker, in its memory. They are read once: what is requested, approved or released later is read
//! by its event, and the rest of a session when its calls in memory have begun. So the end of a call costs nothing for the calls
//! that wait.

use std::collections::{BTreeMap, BTreeSet};

use abide_client::{Abide, Error, Json};
use serde::Deserialize;

/// The calls that wait for a worker. Calls of runs belong to the drivers of the runs.
const WAITING: &str = "FROM tool_calls c JOIN sessions s ON s.id = c.session_id \
    WHERE s.agent = :agent AND c.status = 'pending' AND c.retry_at IS NULL \
    AND c.call_id NOT LIKE '%~%'";

/// Calls that are in memory at most.
const CALLS: usize = 20_000;

/// A call that waits.
#[derive(Deserialize)]
pub(super) struct WaitingCall {
    pub(super) call_id: String,
    pub(super) session_id: String,
    pub(super) tool_name: String,
    /// The scope of the session.
    pub(super) scope: Json,
    /// The event of its request.
    created_seq: i64,
}

/// The calls that wait.
pub(super) struct WaitingCalls {
    abide: Abide,
    agent: String,
    /// Calls of one session that are read at once: no more of them run at the same time.
    of_a_session: usize,
    /// In the order of their requests.
    calls: Vec<WaitingCall>,
    /// The sessions that may have more calls than those in memory.
    partial: BTreeSet<String>,
    /// Whether sessions may be missing: there were too many calls.
    is_truncated: bool,
    /// The event of the newest call that was read.
    seen: i64,
}

impl WaitingCalls {
    pub(super) fn new(abide: &Abide, agent: &str, of_a_session: usize) -> WaitingCalls {
        WaitingCalls {
            abide: abide.clone(),
            agent: agent.to_owned(),
            of_a_session,
            calls: Vec::new(),
            partial: BTreeSet::new(),
            is_truncated: false,
            seen: 0,
        }
    }

    /// Returns the query whose result grows when a call begins to wait. It has one row: a tenant can have any number of
    /// such calls.
    pub(super) fn newest() -> String {
        format!("SELECT max(c.seq) {WAITING}")
    }

    /// Reads the calls that have begun to wait since the last time. Returns whether there are any.
    ///
    /// # Errors
    /// [`Error`] of the query.
    pub(super) async fn arrive(&mut self, newest: i64) -> Result<bool, Error> {
        if newest <= self.seen {
            return Ok(false);
        }
        let read = self.read(&format!("AND c.seq > {}", self.seen), None).await?;
        self.seen = newest;
        let known = std::mem::take(&mut self.partial);
        // The calls of a session of which there are more follow when it is their turn.
        let new = read.into_iter().filter(|call| !known.contains(&call.session_id));
        let new: Vec<WaitingCall> = new.collect();
        self.partial = known;
        self.add(new);
        Ok(true)
    }

    /// Reads the calls of a session again: one has ended that may wait once more, or its calls in memory have begun.
    ///
    /// # Errors
    /// [`Error`] of the query.
    pub(super) async fn refill(&mut self, session: &str, again: bool) -> Result<(), Error> {
        if again
            || (self.partial.contains(session)
                && !self.calls.iter().any(|call| call.session_id == session))
        {
            let read = self.read("AND c.session_id = :session", Some(session)).await?;
            self.partial.remove(session);
            self.calls.retain(|call| call.session_id != session);
            self.add(read);
        }
        if self.is_truncated && self.calls.is_empty() {
            self.is_truncated = false;
            self.partial.clear();
            let read = self.read("", None).await?;
            self.add(read);
        }
        Ok(())
    }

    /// Returns the calls in order; those for which the function returns true have begun.
    pub(super) fn take(&mut self, mut begin: impl FnMut(&WaitingCall) -> bool) {
        self.calls.retain(|call| !begin(call));
    }

    /// Returns the scopes of the calls.
    pub(super) fn scopes(&self) -> impl Iterator<Item = &Json> {
        self.calls.iter().map(|call| &call.scope)
    }

    fn add(&mut self, mut calls: Vec<WaitingCall>) {
        // A session that was read again may have calls whose event has not been seen yet.
        let known: BTreeSet<&str> = self.calls.iter().map(|call| call.call_id.as_str()).collect();
        calls.retain(|call| !known.contains(call.call_id.as_str()));
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for call in &calls {
            *counts.entry(&call.session_id).or_default() += 1;
        }
        let full = counts.into_iter().filter(|(_, count)| *count >= self.of_a_session);
        let full: Vec<String> = full.map(|(session, _)| session.to_owned()).collect();
        self.partial.extend(full);
        let room = CALLS.saturating_sub(self.calls.len());
        self.is_truncated |= calls.len() >= room;
        self.calls.extend(calls.into_iter().take(room));
        self.calls.sort_by_key(|call| call.created_seq);
    }

    /// Returns the oldest calls of each session that fit a condition, the oldest first.
    async fn read(
        &self,
        condition: &str,
        session: Option<&str>,
    ) -> Result<Vec<WaitingCall>, Error> {
        let sql = format!(
            "SELECT call_id, session_id, tool_name, scope, created_seq FROM (SELECT c.call_id, \
             c.session_id, c.tool_name, c.created_seq, s.scope, row_number() OVER \
             (PARTITION BY c.session_id ORDER BY c.created_seq) AS nth {WAITING} {condition}) \
             WHERE nth <= :each ORDER BY nth, created_seq LIMIT :most"
        );
        let query = self.abide.sql(sql).param("agent", &self.agent);
        let query = query.param("each", self.of_a_session).param("most", CALLS);
        match session {
            Some(session) => query.param("session", session).fetch().await,
            None => query.fetch().await,
        }
    }
}
