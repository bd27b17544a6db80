//! Subscriptions: a query result and its changes.

use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use abide_schema::wire::{Column, OrderTerm, Plan, Shape, SubscriptionInfo};
use abide_schema::{Checksum, Row, Seq, Value};
use futures_util::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backend::{Event, Source, Start, SubscriptionQuery};
use crate::live_result::{Changes, Mismatch, Positions, Rows};
use crate::query::{Params, Position};
use crate::request::RequestFuture;
use crate::row_decode::decode_rows;
use crate::{Abide, Error};

impl Abide {
    /// Returns a subscription to a query, which begins when it is awaited: the result of the query, and all later changes
    /// to it. [`Abide::subscribe_as`] decodes the rows.
    ///
    /// ```
    /// use abide_client::Abide;
    /// use abide_client::arguments::CreateSession;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("agents.db");
    /// let abide = Abide::open(path)?;
    /// let mut sessions = abide.subscribe("SELECT id, agent FROM sessions").await?;
    /// abide.call(CreateSession::new("support")).await?;
    ///
    /// while let Some(update) = sessions.try_next().await? {
    ///     for (id, agent) in update.inserts::<(String, String)>()? {
    ///         println!("{agent} has the new session {id}");
    ///     }
    /// #   if sessions.rows().len() == 1 { break; }
    /// }
    /// assert_eq!(sessions.rows().len(), 1);
    /// # abide.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe(&self, sql: impl Into<String>) -> Subscribe {
        Subscribe::new(self, sql.into())
    }
}

/// A subscription that begins when it is awaited.
#[must_use = "a subscription begins when it is awaited"]
#[derive(Clone, Debug)]
pub struct Subscribe {
    abide: Abide,
    sql: String,
    params: Params,
    start: Start,
    checksum: bool,
    explain: bool,
}

/// Consecutive repairs after which a further mismatch ends the subscription: so many are no chance.
const REPAIRS: u32 = 3;

impl Subscribe {
    pub(crate) fn new(abide: &Abide, sql: String) -> Subscribe {
        let abide = abide.clone();
        let params = Params::default();
        Subscribe { abide, sql, params, start: Start::Now, checksum: false, explain: false }
    }

    /// Sets the value of `:name` in the statement; see [`Query::param`](crate::Query::param).
    pub fn param(mut self, name: &str, value: impl Serialize) -> Self {
        self.params.set(name, value);
        self
    }

    /// Receives only the changes after this seq, for a consumer that processed everything up to it and kept
    /// [`Subscription::seq`]. The first update is all changes since, in one; if the change history no
    /// longer reaches back that far, it is the whole result, marked [`Update::reset`].
    ///
    /// A seq that another process stored names no timeline: after the server was restored from a backup, fetch
    /// the whole result instead. Over reconnects of this client the timeline is checked.
    ///
    /// Such a subscription keeps no rows: [`Subscription::rows`] is empty. For a query with LIMIT it
    /// cannot report which rows left.
    pub fn after(mut self, seq: impl Into<Position>) -> Self {
        self.start = Start::After(seq.into().0);
        self
    }

    /// Starts with the result as of this seq; the second update is all changes since, in one, and then it
    /// continues live. Replaces [`Subscribe::after`].
    pub fn as_of(mut self, seq: impl Into<Position>) -> Self {
        self.start = Start::AsOf(seq.into().0);
        self
    }

    /// Verifies the rows against the server's checksum after each change. A mismatch is never shown: it is
    /// logged as an error and counted ([`Subscription::mismatches`]), the result is fetched again, and the
    /// next update leads from the last shown state to the correct one. It costs some work on both sides, and
    /// has no effect on a subscription that starts [`after`](Subscribe::after) a seq, which keeps no rows.
    pub fn checksum(mut self) -> Self {
        self.checksum = true;
        self
    }

    /// Requests the SQL statements that produce the deltas. They are in [`Plan::statements`] of
    /// [`Subscription::plan`].
    pub fn explain(mut self) -> Self {
        self.explain = true;
        self
    }

    /// Starts it. Awaiting does the same. When this returns, [`Subscription::rows`] holds the result.
    ///
    /// # Errors
    /// [`Error::Refused`] if the query is invalid or cannot be live; [`Error::TimedOut`] if the server does not answer.
    pub async fn start(self) -> Result<Subscription, Error> {
        let Subscribe { abide, sql, params, start, checksum, explain } = self;
        let holds_rows = start.seq().is_none();
        let checksum = checksum && holds_rows;
        let query = SubscriptionQuery { sql, params: params.ready()?, checksum, explain };
        let mismatches = abide.mismatch_counter();
        let begin = async {
            let source = abide.open_source(query, start).await?;
            let mut subscription = Subscription {
                source,
                shape: Arc::default(),
                plan: Plan::default(),
                rows: None,
                holds_rows,
                seq: start.seq().unwrap_or(Seq::ZERO),
                first: None,
                history_changed: false,
                repair: Repair { of_all: mismatches, ..Repair::default() },
                state: State::Live,
            };
            subscription.wait_for_first_event().await?;
            Ok(subscription)
        };
        abide.within_deadline(begin).await?
    }
}

impl IntoFuture for Subscribe {
    type Output = Result<Subscription, Error>;
    type IntoFuture = RequestFuture<Subscription>;

    fn into_future(self) -> RequestFuture<Subscription> {
        Box::pin(self.start())
    }
}

/// A query result and its changes.
///
/// It is a [`Stream`] of updates. The first [`Update`] has the result as its inserts; then there is one for each commit
/// that changes the result: a sequence without gaps and duplicates, even across lost connections and server restarts.
/// After each, [`rows`](Subscription::rows) is the result as of that commit. A live query has no last update: the stream
/// ends only after an error, such as [`Error::Closed`] after [`Abide::close`].
///
/// Read-ahead is bounded: a consumer that does not ask for updates for a while gets all changes of
/// that time as one update. Dropping it ends it.
pub struct Subscription {
    source: Box<dyn Source>,
    shape: Arc<Shape>,
    plan: Plan,
    /// `None` for a subscription to changes only, and before the first snapshot.
    rows: Option<Rows>,
    /// It is not a subscription to changes only.
    holds_rows: bool,
    seq: Seq,
    first: Option<Update>,
    /// The next update leads to another history.
    history_changed: bool,
    repair: Repair,
    state: State,
}

#[derive(Debug)]
enum State {
    Live,
    /// It has ended; the consumer has not seen the error yet.
    Failed(Error),
    Ended,
}

/// Detected mismatches and the state of the repair.
#[derive(Debug, Default)]
struct Repair {
    /// A snapshot was requested; events before it are ignored.
    waits: bool,
    in_a_row: u32,
    ever: u64,
    /// Mismatches of all subscriptions of the client.
    of_all: Arc<AtomicU64>,
}

/// What an event has changed in the result.
struct Applied {
    /// The changes are the whole result.
    reset: bool,
    changes: Changes,
}

impl Subscription {
    /// Waits for the next update: the next item of the [`Stream`]. While the server is unreachable, this waits.
    /// Cancelling the wait loses nothing.
    ///
    /// Returns `None` if it has ended and has reported its error.
    ///
    /// # Errors
    /// The error that has ended the subscription: [`Error::Closed`] if the client was closed; [`Error::Refused`] if the
    /// caller may no longer read the rows.
    pub async fn next(&mut self) -> Option<Result<Update, Error>> {
        poll_fn(|context| self.poll_update(context)).await
    }

    /// Waits for the next update, like [`next`](Subscription::next), in the form that suits the operator `?`.
    ///
    /// # Errors
    /// Those of [`next`](Subscription::next).
    pub async fn try_next(&mut self) -> Result<Option<Update>, Error> {
        self.next().await.transpose()
    }

    /// Returns the result as of the last update, in the query's order; without ORDER BY, in the order of its key.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[Value]> + DoubleEndedIterator {
        let width = visible_width(&self.shape);
        let rows = self.rows.as_ref().map(Rows::as_slice).unwrap_or_default();
        rows.iter().map(move |row| row.get(..width).unwrap_or(row))
    }

    /// Returns the rows decoded as a type, like [`Query::fetch`](crate::Query::fetch).
    ///
    /// # Errors
    /// [`Error::Decode`] if a row does not match the type.
    pub fn typed_rows<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let rows = self.rows.as_ref().map(Rows::as_slice).unwrap_or_default();
        decode_rows(&visible_names(&self.shape), rows)
    }

    /// Returns the seq up to which all changes are applied. Keep it to resume later with [`Subscribe::after`].
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Returns the columns of the result.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.shape.columns[..visible_width(&self.shape)]
    }

    /// Returns the names of the columns that identify a row; empty if there are none.
    #[must_use]
    pub fn key(&self) -> &[String] {
        &self.shape.key
    }

    /// Returns the terms of its ORDER BY, most significant first; empty if the query has none. A position
    /// ([`OrderTerm::index`]) beyond [`Subscription::columns`] refers to a hidden column that the query sorts
    /// by. [`Subscription::rows`] has this order; the key breaks ties.
    #[must_use]
    pub fn order(&self) -> &[OrderTerm] {
        &self.shape.order
    }

    /// Returns `true` if the query has a LIMIT, so that the server determines the positions of its rows.
    #[must_use]
    pub fn is_top_n(&self) -> bool {
        self.shape.top_n
    }

    /// Returns how the server maintains the result, and at what cost. It has the statements only if
    /// [`Subscribe::explain`] requested them.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the number of times that the rows did not match the server's checksum and were fetched again; see
    /// [`Subscribe::checksum`].
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.repair.ever
    }

    /// Waits for the first event.
    async fn wait_for_first_event(&mut self) -> Result<(), Error> {
        loop {
            let event = poll_fn(|context| self.source.poll_event(context)).await;
            self.first = self.apply_event(event);
            if let State::Failed(error) = &self.state {
                return Err(error.clone());
            }
            if !self.repair.waits {
                return Ok(());
            }
        }
    }

    /// Polls for the next update. An error is returned once, and then `None`.
    fn poll_update(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Update, Error>>> {
        if let Some(update) = self.first.take() {
            return Poll::Ready(Some(Ok(update)));
        }
        while let State::Live = self.state {
            let event = ready!(self.source.poll_event(context));
            if let Some(update) = self.apply_event(event) {
                return Poll::Ready(Some(Ok(update)));
            }
        }
        Poll::Ready(match std::mem::replace(&mut self.state, State::Ended) {
            State::Failed(error) => Some(Err(error)),
            State::Live | State::Ended => None,
        })
    }

    /// Applies an event; returns the update if the consumer needs to see it.
    fn apply_event(&mut self, event: Event) -> Option<Update> {
        let applied = match event {
            Event::Ended(error) => {
                self.state = State::Failed(error);
                return None;
            }
            Event::Snapshot { seq, info, rows, checksum, history_changed: changed } => {
                self.repair.waits = false;
                // Kept over a repair, until the update that shows the other history.
                self.history_changed |= changed;
                self.apply_snapshot(&info, rows, checksum).map(|applied| (seq, applied))
            }
            _ if self.repair.waits => return None,
            Event::Progress(seq) => {
                self.seq = self.seq.max(seq);
                return None;
            }
            Event::Delta { to, changes, checksum, info } => {
                self.apply_delta(changes, checksum, info.as_deref()).map(|applied| (to, applied))
            }
        };
        let (to, Applied { reset, changes }) = match applied {
            Ok(applied) => applied,
            Err(why) => return self.repair(&why),
        };
        self.repair.in_a_row = 0;
        let from = std::mem::replace(&mut self.seq, to);
        let history_changed = std::mem::take(&mut self.history_changed);
        if changes.is_empty() && !reset && !history_changed {
            return None;
        }
        let shape = Arc::clone(&self.shape);
        Some(Update { from, seq: to, reset, history_changed, shape, changes })
    }

    fn apply_snapshot(
        &mut self,
        info: &SubscriptionInfo,
        rows: Vec<Row>,
        checksum: Option<Checksum>,
    ) -> Result<Applied, Mismatch> {
        if !self.holds_rows {
            self.set_info(info);
            let changes = Changes::from_all_rows(rows, info.shape.top_n);
            return Ok(Applied { reset: true, changes });
        }
        let rows = Rows::new(&info.shape, rows, checksum)?;
        let same_shape = *self.shape == info.shape;
        self.set_info(info);
        match &mut self.rows {
            Some(old) if same_shape => {
                Ok(Applied { reset: false, changes: old.become_snapshot(rows) })
            }
            old => {
                let changes = Changes::from_all_rows(rows.as_slice().to_vec(), info.shape.top_n);
                *old = Some(rows);
                Ok(Applied { reset: true, changes })
            }
        }
    }

    fn apply_delta(
        &mut self,
        changes: Changes,
        checksum: Option<Checksum>,
        info: Option<&SubscriptionInfo>,
    ) -> Result<Applied, Mismatch> {
        match (info, &mut self.rows) {
            (Some(info), Some(_)) if info.shape != *self.shape => {
                Err(Mismatch::new("the columns of the query have changed"))
            }
            (_, Some(rows)) => {
                Ok(Applied { reset: false, changes: rows.apply(changes, checksum)? })
            }
            (info, None) => {
                if let Some(info) = info {
                    self.set_info(info);
                }
                Ok(Applied { reset: false, changes: changes.with_positions() })
            }
        }
    }

    fn set_info(&mut self, info: &SubscriptionInfo) {
        if *self.shape != info.shape {
            self.shape = Arc::new(info.shape.clone());
        }
        self.plan.clone_from(&info.plan);
    }

    /// The rows would be wrong: keeps the current rows and fetches the result again.
    fn repair(&mut self, why: &Mismatch) -> Option<Update> {
        self.repair.ever += 1;
        self.repair.of_all.fetch_add(1, Ordering::Relaxed);
        self.repair.in_a_row += 1;
        if self.repair.in_a_row > REPAIRS {
            tracing::error!(
                name: "subscription_invalid",
                %why,
                "a subscription repeatedly received changes that do not apply"
            );
            self.state = State::Failed(Error::Protocol { why: why.to_string() });
        } else {
            tracing::error!(
                name: "subscription_restarted",
                %why,
                "a change of a subscription does not apply; restarting it"
            );
            self.repair.waits = true;
            self.source.restart();
        }
        None
    }
}

impl Stream for Subscription {
    type Item = Result<Update, Error>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Update, Error>>> {
        self.poll_update(context)
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("seq", &self.seq)
            .field("rows", &self.rows().len())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// A change of a subscription's result. The previous result, without the deletes, with the inserts,
/// and with rows replaced by updates of the same key, is the new result.
#[derive(Clone, Debug)]
pub struct Update {
    /// The previous result was current up to here …
    pub from: Seq,
    /// … and the new result is as of here.
    pub seq: Seq,
    /// The inserts are the whole result, and earlier updates are void. True for the first update of
    /// a subscription; true for a later one only if the subscription starts [`after`](Subscribe::after) a seq
    /// whose history is gone. (Otherwise the client computes the difference.)
    pub reset: bool,
    /// The server has another history than before: an older backup was restored, or another file is served
    /// at the same address. `from` is a seq of the former history; seqs of earlier updates mean nothing in the
    /// new one, and `seq` can be smaller than `from`. Such an update can be without changes.
    pub history_changed: bool,
    shape: Arc<Shape>,
    changes: Changes,
}

impl Update {
    /// Returns the inserted rows, decoded as a type.
    ///
    /// # Errors
    /// [`Error::Decode`] if a row does not match the type.
    pub fn inserts<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        decode_rows(&visible_names(&self.shape), &self.changes.inserts)
    }

    /// Returns the new versions of updated rows, decoded as a type.
    ///
    /// # Errors
    /// [`Error::Decode`] if a row does not match the type.
    pub fn updates<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        decode_rows(&visible_names(&self.shape), &self.changes.updates)
    }

    /// Returns the keys of deleted rows, decoded as a type: `deletes::<String>()` if the key is one text column.
    /// Whole rows if the result has no key.
    ///
    /// # Errors
    /// [`Error::Decode`] if a key does not match the type.
    pub fn deletes<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let key: Vec<&str> = match self.shape.key.as_slice() {
            [] if self.deletes_are_rows() => visible_names(&self.shape),
            // The names of the key columns are unknown.
            [] => vec![""; self.changes.deletes.first().map_or(0, |key| key.len())],
            key => key.iter().map(String::as_str).collect(),
        };
        decode_rows(&key, &self.changes.deletes)
    }

    /// Returns the inserted rows, cell by cell.
    pub fn insert_rows(&self) -> impl ExactSizeIterator<Item = &[Value]> {
        let width = visible_width(&self.shape);
        self.changes.inserts.iter().map(move |row| row.get(..width).unwrap_or(row))
    }

    /// Returns the new versions of updated rows, cell by cell.
    pub fn update_rows(&self) -> impl ExactSizeIterator<Item = &[Value]> {
        let width = visible_width(&self.shape);
        self.changes.updates.iter().map(move |row| row.get(..width).unwrap_or(row))
    }

    /// Returns the keys of deleted rows, cell by cell; whole rows if the result has no key.
    pub fn delete_keys(&self) -> impl ExactSizeIterator<Item = &[Value]> {
        self.changes.deletes.iter().map(|key| &**key)
    }

    /// Returns the positions of the rows in the three lists, for a query with LIMIT. Remove the deletes in order,
    /// then insert the inserts, then replace the updates, to get the new result.
    #[must_use]
    pub fn positions(&self) -> Option<&Positions> {
        self.changes.positions.as_ref()
    }

    fn deletes_are_rows(&self) -> bool {
        self.changes.deletes.iter().all(|key| key.len() == self.shape.columns.len())
    }
}

/// Number of columns visible to the consumer; the others only carry the order.
fn visible_width(shape: &Shape) -> usize {
    shape.columns.iter().position(|column| column.hidden).unwrap_or(shape.columns.len())
}

fn visible_names(shape: &Shape) -> Vec<&str> {
    shape.columns[..visible_width(shape)].iter().map(|column| column.name.as_str()).collect()
}
