//! A client's state of its subscriptions, built only from the messages of a connection, which are
//! checked against the protocol.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use abide_engine::{Change, Connection, Delta, SnapshotPart, Start, SubscribeRequest, Update};
use abide_schema::wire::Shape;
use abide_schema::{Checksum, Code, Refusal, Row, Seq, Value};
use serde_json::{Map, Value as JsonValue};

/// The state of one subscription.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replica {
    pub(crate) sql: String,
    pub(crate) params: Map<String, JsonValue>,
    pub(crate) shape: Shape,
    pub(crate) rows: Vec<Row>,
    /// The seq of the state.
    pub(crate) seq: Seq,
    /// Set until the first reply is complete.
    begun: Option<Start>,
    parts: Vec<Row>,
    resync: bool,
    /// Whether it is stale until a rerun or a snapshot.
    pub(crate) stale: bool,
}

/// A connection with its replicas.
pub(crate) struct Client {
    pub(crate) connection: Connection,
    pub(crate) replicas: BTreeMap<String, Replica>,
    /// Everything up to here was received.
    pub(crate) output: Seq,
    /// Refusals that ended a subscription, and resynces.
    pub(crate) refusals: Vec<(String, Refusal)>,
    /// Received change frames.
    pub(crate) frames: usize,
    /// Received reruns.
    pub(crate) reruns: usize,
}

impl Client {
    pub(crate) fn new(connection: Connection) -> Client {
        let output = connection.sent_up_to();
        let replicas = BTreeMap::new();
        let refusals = Vec::new();
        Client { connection, replicas, output, refusals, frames: 0, reruns: 0 }
    }

    /// Subscribes and reads until its first reply is complete.
    pub(crate) async fn subscribe(
        &mut self,
        id: &str,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<(), Refusal> {
        self.subscribe_from(id, sql, params, Start::Now).await
    }

    /// Subscribes from any start, and reads until the first reply is complete.
    pub(crate) async fn subscribe_from(
        &mut self,
        id: &str,
        sql: &str,
        params: &Map<String, JsonValue>,
        start: Start,
    ) -> Result<(), Refusal> {
        let replica = Replica { sql: sql.to_owned(), params: params.clone(), ..Replica::default() };
        self.begin(id, replica, start).await
    }

    /// Resumes with a replica kept from an earlier connection.
    pub(crate) async fn resume(&mut self, id: &str, kept: Replica) -> Result<(), Refusal> {
        let start = Start::After(kept.seq);
        self.begin(id, kept, start).await
    }

    async fn begin(&mut self, id: &str, mut replica: Replica, start: Start) -> Result<(), Refusal> {
        // Every received row is checked.
        let checksum = true;
        let wanted = SubscribeRequest {
            start,
            checksum,
            ..SubscribeRequest::new(id, &replica.sql, &replica.params)
        };
        self.connection.subscribe(&wanted).await?;
        // A replica that resumes from its own seq expects nothing of the earlier connection.
        replica.stale = false;
        replica.begun = Some(start);
        self.replicas.insert(id.to_owned(), replica);
        while self.replicas.get(id).is_some_and(|replica| replica.begun.is_some()) {
            self.take_next().await;
        }
        Ok(())
    }

    pub(crate) fn unsubscribe(&mut self, id: &str) -> Option<Replica> {
        self.connection.unsubscribe(id);
        self.replicas.remove(id)
    }

    /// Reads updates until the connection has received everything up to a seq.
    pub(crate) async fn read_to(&mut self, seq: Seq) {
        while self.output < seq || self.replicas.values().any(|replica| replica.stale) {
            self.take_next().await;
        }
    }

    pub(crate) async fn take_next(&mut self) {
        let update = self.connection.next().await;
        self.take(update);
    }

    /// Takes an update if one comes in time. Otherwise the wait is cancelled.
    pub(crate) async fn take_next_within(&mut self, time: Duration) {
        if let Ok(update) = tokio::time::timeout(time, self.connection.next()).await {
            self.take(update);
        }
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Snapshot(part) => self.snapshot(part),
            Update::Delta { from, to, changes } => {
                let (stale, changes): (Vec<Change>, Vec<Change>) =
                    changes.into_iter().partition(|change| change.delta.is_stale());
                for change in stale {
                    let replica = self.replicas.get_mut(&*change.id).expect("it is subscribed");
                    assert!(!replica.stale, "{}: marked stale twice", change.id);
                    (replica.seq, replica.stale) = (replica.seq.max(self.output), true);
                }
                self.delta(from, to, &changes);
            }
            Update::Rerun { seq, change, stale } => {
                self.reruns += 1;
                let replica = self.replicas.get_mut(&*change.id).expect("it is subscribed");
                assert!(seq >= replica.seq, "{}: a result goes back", change.id);
                replica.apply(Some(change.delta.rows()));
                assert_eq!(
                    change.checksum,
                    Some(Checksum::from_rows(&replica.rows)),
                    "of the rerun"
                );
                (replica.seq, replica.stale) = (seq, stale);
            }
            Update::Progress { seq } => {
                assert!(seq > self.output, "a progress mark {seq} without progress");
                self.advance_to(seq);
            }
            Update::Error { id, refusal } => {
                if refusal.code == Code::ResyncRequired {
                    self.replicas.get_mut(&*id).expect("it is subscribed").resync = true;
                } else {
                    self.replicas.remove(&*id);
                }
                self.refusals.push((id.to_string(), refusal));
            }
        }
    }

    fn snapshot(&mut self, part: SnapshotPart) {
        let replica = self.replicas.get_mut(&*part.id).expect("it is subscribed");
        assert_eq!(part.reset, replica.resync, "reset if and only if it was announced");
        replica.parts.extend(part.rows);
        if part.more {
            return;
        }
        assert!(part.reset || part.seq >= replica.seq, "a result goes back");
        replica.shape = part.info.shape.clone();
        replica.rows = std::mem::take(&mut replica.parts);
        assert_eq!(part.checksum, Some(Checksum::from_rows(&replica.rows)), "of the snapshot");
        (replica.seq, replica.resync, replica.stale) = (part.seq, false, false);
        replica.begun = match replica.begun {
            Some(Start::AsOf(past)) => {
                assert!(part.seq <= past, "a state {} for {past}", part.seq);
                Some(Start::After(part.seq))
            }
            _ => None,
        };
    }

    fn delta(&mut self, from: Seq, to: Seq, changes: &[Change]) {
        self.frames += 1;
        let answers = changes.iter().any(|change| {
            self.replicas.get(&*change.id).is_some_and(|replica| replica.begun.is_some())
        });
        // The reply to a resume starts where the resume does; all other frames start where the last
        // one ended.
        assert!(from == self.output || (answers && from < self.output), "a gap before {from}");
        assert!(from < to || answers, "an empty frame {from}..{to}");
        for change in changes {
            let id = &change.id;
            let delta = change.delta.rows();
            let replica = self.replicas.get_mut(&**id).expect("it is subscribed");
            let at = match replica.begun.take() {
                Some(Start::After(asked)) => asked,
                Some(other) => panic!("{id}: a first reply to {other:?} is a snapshot"),
                None => {
                    assert!(!delta.is_empty(), "{id}: an empty delta");
                    assert!(replica.seq.max(self.output) < to, "{id}: received twice");
                    replica.seq.max(self.output)
                }
            };
            assert!(from <= at && at <= to, "{id}: a frame {from}..{to} for a result at {at}");
            replica.apply(Some(delta));
            replica.seq = to;
            let sum = Checksum::from_rows(&replica.rows);
            let sql = &replica.sql;
            assert_eq!(change.checksum, Some(sum), "{id} at {to}: {sql}");
            if let Some(opening) = &change.info {
                assert_eq!(opening.shape, replica.shape, "{id}: the shape is unchanged");
            }
        }
        self.advance_to(to.max(self.output));
    }

    fn advance_to(&mut self, seq: Seq) {
        self.output = seq;
        let exact = |replica: &&mut Replica| replica.begun.is_none() && !replica.stale;
        for replica in self.replicas.values_mut().filter(exact) {
            replica.seq = replica.seq.max(seq);
        }
    }
}

impl Replica {
    /// Applies a delta. Deleted and updated rows must exist, inserted ones must not.
    fn apply(&mut self, delta: Option<&Delta>) {
        let Some(delta) = delta else { return };
        for at in &delta.top_n.deletes {
            self.rows.remove(*at);
        }
        for placed in &delta.top_n.inserts {
            self.rows.insert(placed.at, placed.row.clone());
        }
        for placed in &delta.top_n.updates {
            self.rows[placed.at] = placed.row.clone();
        }
        for gone in &delta.deletes {
            let at = self.find(gone).unwrap_or_else(|| panic!("deleted {gone:?} is not there"));
            self.rows.remove(at);
        }
        for new in &delta.inserts {
            let taken = !self.shape.key.is_empty() && self.find(&self.key_of(new)).is_some();
            assert!(!taken, "inserted {new:?} exists already");
            self.place(new.clone());
        }
        for new in &delta.updates {
            let at = self
                .find(&self.key_of(new))
                .unwrap_or_else(|| panic!("updated {new:?} is not there"));
            self.rows.remove(at);
            self.place(new.clone());
        }
    }

    /// The visible cells of all rows, in order; sorted if the query has no order.
    pub(crate) fn visible_rows(&self) -> Vec<String> {
        let width = self.shape.columns.iter().filter(|column| !column.hidden).count();
        let ordered = !self.shape.order.is_empty() && !self.shape.key.is_empty();
        let top_n = self.sql.contains("LIMIT");
        format_visible(&self.rows, width, ordered || top_n)
    }

    /// The visible cells of rows of a new query, in order; sorted if the query has no order.
    pub(crate) fn format_rows(&self, rows: &[Row]) -> Vec<String> {
        let ordered = !self.shape.order.is_empty() && !self.shape.key.is_empty();
        format_visible(rows, usize::MAX, ordered || self.sql.contains("LIMIT"))
    }

    fn place(&mut self, row: Row) {
        let at = self.rows.partition_point(|other| self.compare(other, &row) != Ordering::Greater);
        self.rows.insert(at, row);
    }

    fn key_of(&self, row: &[Value]) -> Row {
        if self.shape.key.is_empty() {
            return row.into();
        }
        self.shape
            .key
            .iter()
            .map(|name| {
                row[self.shape.columns.iter().position(|column| column.name == *name).unwrap()]
                    .clone()
            })
            .collect()
    }

    fn find(&self, key: &[Value]) -> Option<usize> {
        self.rows.iter().position(|row| *self.key_of(row) == *key)
    }

    fn compare(&self, left: &[Value], right: &[Value]) -> Ordering {
        let terms = self.shape.order.iter().map(|term| {
            let left = &left[term.index];
            let right = &right[term.index];
            let order = match (left, right) {
                (Value::Null, Value::Null) => Ordering::Equal,
                (Value::Null, _) if term.nulls == "first" => return Ordering::Less,
                (Value::Null, _) => return Ordering::Greater,
                (_, Value::Null) if term.nulls == "first" => return Ordering::Greater,
                (_, Value::Null) => return Ordering::Less,
                _ => order_of(left, right),
            };
            if term.desc { order.reverse() } else { order }
        });
        let by_key = order_rows(&self.key_of(left), &self.key_of(right));
        terms.chain([by_key]).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

fn format_visible(rows: &[Row], width: usize, ordered: bool) -> Vec<String> {
    let mut texts: Vec<String> =
        rows.iter().map(|row| format!("{:?}", &row[..width.min(row.len())])).collect();
    if !ordered {
        texts.sort();
    }
    texts
}

fn order_rows(left: &[Value], right: &[Value]) -> Ordering {
    let orders = left.iter().zip(right).map(|(left, right)| order_of(left, right));
    orders.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// SQLite's order of values of one kind, under BINARY; the built-in tables do not mix kinds.
fn order_of(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Integer(left), Value::Integer(right)) => left.cmp(right),
        (Value::Real(left), Value::Real(right)) => left.total_cmp(right),
        (Value::Text(left), Value::Text(right)) => left.cmp(right),
        (Value::Blob(left), Value::Blob(right)) => left.cmp(right),
        (Value::Null, Value::Null) => Ordering::Equal,
        _ => panic!("values of two kinds: {left:?} and {right:?}"),
    }
}
