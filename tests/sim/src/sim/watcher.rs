//! A subscriber: its state, built only from received messages.

use std::collections::BTreeMap;

use abide_schema::wire::{Change, ClientMessage, ServerMessage};
use abide_schema::{Checksum, Code, Row, Seq};
use serde_json::{Map, Value as JsonValue};

use crate::checks::Finding;
use crate::checks::subscribers::{broken, row_of};

/// The watched queries: rows with keys, joins, groups.
pub(super) const QUERIES: [&str; 6] = [
    "SELECT * FROM agent_state WHERE session_id = 's0'",
    "SELECT * FROM handoff_requests WHERE status = 'pending'",
    "SELECT call_id, status, attempt FROM tool_calls WHERE status <> 'succeeded'",
    "SELECT status, count(*) AS n FROM tool_calls GROUP BY status",
    "SELECT s.id, s.status, c.call_id FROM sessions s JOIN tool_calls c ON c.session_id = s.id",
    "SELECT id, agent, status FROM sessions WHERE status <> 'completed'",
];

/// The state of one subscription.
#[derive(Clone, Debug, Default)]
pub(super) struct Replica {
    pub(super) sql: &'static str,
    /// The positions of the key columns.
    key: Vec<usize>,
    pub(super) rows: Vec<Row>,
    pub(super) seq: Seq,
    /// Whether it holds a complete result of `seq`.
    pub(super) whole: bool,
    /// The timeline of `seq`.
    timeline: Option<String>,
    /// Whether it waits for its first reply on this connection.
    waits: bool,
    parts: Vec<Row>,
}

/// The state of one client.
#[derive(Clone, Debug, Default)]
pub(super) struct Watcher {
    pub(super) replicas: BTreeMap<String, Replica>,
    /// Everything up to here was received on this connection.
    output: Seq,
    /// The timeline of this connection.
    timeline: Option<String>,
    /// Whether a frame was received on this connection.
    begun: bool,
    /// The highest seq that it ever received.
    pub(super) furthest: Seq,
    pub(super) deltas: u64,
}

impl Watcher {
    /// A watcher of some of the queries.
    pub(super) fn new(queries: &[&'static str]) -> Watcher {
        let numbered = queries.iter().enumerate();
        let replicas = numbered
            .map(|(nth, sql)| (format!("q{nth}"), Replica { sql, ..Replica::default() }))
            .collect();
        Watcher { replicas, ..Watcher::default() }
    }

    /// The messages on a new connection: it resumes where it has a state.
    pub(super) fn subscribe(&mut self) -> Vec<String> {
        let messages = self.replicas.iter_mut().map(|(id, replica)| {
            if !replica.waits {
                replica.timeline.clone_from(&self.timeline);
            }
            (replica.waits, replica.parts) = (true, Vec::new());
            let after_seq = replica.whole.then_some(replica.seq);
            let message: ClientMessage = ClientMessage::Subscribe {
                id: id.clone(),
                sql: replica.sql.to_owned(),
                params: Map::new(),
                after_seq,
                timeline: replica.timeline.clone().filter(|_| after_seq.is_some()),
                as_of: None,
                checksum: true,
                explain: false,
            };
            serde_json::to_string(&message).expect("a message serialises")
        });
        messages.collect()
    }

    /// Whether all of its subscriptions have started and reached `seq`.
    pub(super) fn is_level(&self, seq: Seq) -> bool {
        self.replicas.values().all(|replica| !replica.waits && replica.seq >= seq)
    }

    /// Handles a message.
    pub(super) fn receive(&mut self, text: &str) -> Result<(), Finding> {
        let message: ServerMessage =
            serde_json::from_str(text).map_err(|why| broken(format!("{why}: {text}")))?;
        match message {
            ServerMessage::Hello { seq, timeline, .. } => {
                self.timeline = Some(timeline);
                // The durable seq. The first frame may repeat earlier changes.
                (self.output, self.begun) = (seq, false);
                self.note_received(seq);
            }
            ServerMessage::Progress { seq } => self.advance_to(seq),
            ServerMessage::Snapshot { id, seq, columns, key, rows, more, checksum, .. } => {
                self.note_received(seq);
                let replica =
                    self.replicas.get_mut(&id).ok_or_else(|| broken("unknown subscription"))?;
                for row in &rows {
                    replica.parts.push(row_of(row)?);
                }
                if more {
                    return Ok(());
                }
                replica.key = key
                    .iter()
                    .filter_map(|name| columns.iter().position(|column| column.name == *name))
                    .collect();
                replica.rows = std::mem::take(&mut replica.parts);
                (replica.seq, replica.whole, replica.waits) = (seq, true, false);
                replica.verify(seq, checksum)?;
            }
            ServerMessage::Delta { from, to, changes } => self.apply_delta(from, to, &changes)?,
            ServerMessage::Error { code: Code::ResyncRequired, .. } => {}
            other => return Err(broken(format!("unexpected message {other:?}"))),
        }
        Ok(())
    }

    fn apply_delta(&mut self, from: Seq, to: Seq, changes: &[Change]) -> Result<(), Finding> {
        self.note_received(to);
        self.deltas += 1;
        let answers =
            changes.iter().any(|change| self.replicas.get(&change.id).is_some_and(|it| it.waits));
        let begins = !std::mem::replace(&mut self.begun, true);
        if from != self.output && !((answers || begins) && from < self.output) {
            return Err(broken(format!(
                "a gap: received up to {}, and then {from}..{to}",
                self.output
            )));
        }
        for change in changes {
            let output = self.output;
            let replica =
                self.replicas.get_mut(&change.id).ok_or_else(|| broken("unknown subscription"))?;
            let first = std::mem::take(&mut replica.waits);
            let at = if first { replica.seq } else { replica.seq.max(output) };
            if !(from <= at && at <= to) {
                return Err(broken(format!("{}: {from}..{to} for a result at {at}", change.id)));
            }
            replica.apply(change)?;
            replica.seq = to;
            replica.verify(to, change.checksum)?;
        }
        self.advance_to(to.max(self.output));
        Ok(())
    }

    fn advance_to(&mut self, seq: Seq) {
        self.note_received(seq);
        self.output = self.output.max(seq);
        for replica in self.replicas.values_mut().filter(|replica| !replica.waits) {
            replica.seq = replica.seq.max(seq);
        }
    }

    fn note_received(&mut self, seq: Seq) {
        self.furthest = self.furthest.max(seq);
    }
}

impl Replica {
    fn apply(&mut self, change: &Change) -> Result<(), Finding> {
        for gone in &change.deletes {
            let key = row_of(cells(gone)?)?;
            let at = self.find(&key).ok_or_else(|| broken(format!("absent row {key:?}")))?;
            self.rows.remove(at);
        }
        for new in &change.inserts {
            let row = row_of(cells(new)?)?;
            if !self.key.is_empty() && self.find(&self.key_of(&row)).is_some() {
                return Err(broken(format!("{}: row {row:?} exists already", self.sql)));
            }
            self.rows.push(row);
        }
        for new in &change.updates {
            let row = row_of(cells(new)?)?;
            let at = self
                .find(&self.key_of(&row))
                .ok_or_else(|| broken(format!("absent row {row:?}")))?;
            self.rows[at] = row;
        }
        Ok(())
    }

    fn verify(&self, seq: Seq, checksum: Option<Checksum>) -> Result<(), Finding> {
        if checksum == Some(Checksum::from_rows(&self.rows)) {
            return Ok(());
        }
        Err(broken(format!("{} at {seq}: the checksum is not {checksum:?}", self.sql)))
    }

    fn key_of(&self, row: &Row) -> Row {
        if self.key.is_empty() {
            return row.clone();
        }
        self.key.iter().map(|at| row[*at].clone()).collect()
    }

    fn find(&self, key: &Row) -> Option<usize> {
        self.rows.iter().position(|row| self.key_of(row) == *key)
    }
}

fn cells(json: &JsonValue) -> Result<&[JsonValue], Finding> {
    json.as_array().map(Vec::as_slice).ok_or_else(|| broken(format!("{json} is not a row")))
}
