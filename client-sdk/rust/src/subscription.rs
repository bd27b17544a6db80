//! Queries that go on: a result, and what changes in it.

use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use abide_schema::wire::{Column, Opening, OrderTerm, Plan, Shape};
use abide_schema::{Checksum, Row, Seq, Value};
use futures_util::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backend::{Event, Query, Source, Start};
use crate::request::Sending;
use crate::rows::{Changes, Mismatch, Positions, Rows};
use crate::sql::{Params, Position};
use crate::{Abide, Error, decode};

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

/// How often in a row the rows may be wrong before it is given up: more often than by chance.
const REPAIRS: u32 = 3;

impl Subscribe {
    pub(crate) fn new(abide: &Abide, sql: String) -> Subscribe {
        let (abide, params) = (abide.clone(), Params::default());
        Subscribe { abide, sql, params, start: Start::Now, checksum: false, explain: false }
    }

    /// With the value of `:name` in the statement; see [`Sql::param`](crate::Sql::param).
    pub fn param(mut self, name: &str, value: impl Serialize) -> Self {
        self.params.set(name, value);
        self
    }

    /// Only what changes after this seq, for those who have worked in everything up to there and kept
    /// [`Subscription::seq`]. The first update is all that has changed since, in one; where the
    /// history does not reach back that far, it is the whole result, marked [`Update::reset`].
    ///
    /// Such a subscription holds no result: [`Subscription::rows`] is empty. Of a query with LIMIT it
    /// cannot tell what left.
    pub fn from(mut self, seq: impl Into<Position>) -> Self {
        self.start = Start::After(seq.into().0);
        self
    }

    /// Beginning with the result as it was after this seq; the second update is all that has changed
    /// since, in one, and then it goes on live. Takes the place of [`Subscribe::from`].
    pub fn as_of(mut self, seq: impl Into<Position>) -> Self {
        self.start = Start::AsOf(seq.into().0);
        self
    }

    /// With the server's checksum of the result, which the rows held here are compared with after each
    /// change. Rows that differ are never shown: it is logged as an error and counted
    /// ([`Subscription::mismatches`]), the result is asked for afresh, and the next update leads from
    /// what was shown to what is right. It takes some work on both sides, and does nothing for a
    /// subscription [`from`](Subscribe::from) a seq, which holds no rows.
    pub fn checksum(mut self) -> Self {
        self.checksum = true;
        self
    }

    /// With the statements that make its deltas, in [`Subscription::plan`].
    pub fn explain(mut self) -> Self {
        self.explain = true;
        self
    }

    /// Begins it. Awaiting does the same. When this returns, [`Subscription::rows`] holds the result.
    ///
    /// # Errors
    /// [`Error::Refused`] where the query cannot be live.
    pub async fn start(self) -> Result<Subscription, Error> {
        let Subscribe { abide, sql, params, start, checksum, explain } = self;
        let holds_rows = start.seq().is_none();
        let checksum = checksum && holds_rows;
        let query = Query { sql, params: params.ready()?, checksum, explain };
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
                repair: Repair { of_all: mismatches, ..Repair::default() },
                ended: None,
            };
            subscription.begin().await?;
            Ok(subscription)
        };
        abide.in_time(begin).await?
    }
}

impl IntoFuture for Subscribe {
    type Output = Result<Subscription, Error>;
    type IntoFuture = Sending<Subscription>;

    fn into_future(self) -> Sending<Subscription> {
        Box::pin(self.start())
    }
}

/// A query's result, and what changes in it.
///
/// [`next`](Subscription::next) yields the result as the inserts of a first [`Update`], then one
/// update for each commit that changes it: a sequence without gaps and doubles, also across lost
/// connections and restarts of the server. After each, [`rows`](Subscription::rows) is the result as
/// it was after that commit. It is also a [`Stream`].
///
/// Nothing is read ahead without bound: whoever does not ask for updates for a while is given all
/// that happened meanwhile as one. Dropping it ends it.
pub struct Subscription {
    source: Box<dyn Source>,
    shape: Arc<Shape>,
    plan: Plan,
    /// None in a subscription to changes only, and before the first snapshot.
    rows: Option<Rows>,
    /// It is not to changes only.
    holds_rows: bool,
    seq: Seq,
    first: Option<Update>,
    repair: Repair,
    ended: Option<Error>,
}

/// What was wrong with the rows, and what is done about it.
#[derive(Debug, Default)]
struct Repair {
    /// A snapshot is asked for; until it comes, whatever comes is void.
    waits: bool,
    in_a_row: u32,
    ever: u64,
    /// The same of all subscriptions of the client.
    of_all: Arc<AtomicU64>,
}

impl Subscription {
    /// Waits for the next update; `None` when the subscription has ended ([`Subscription::error`]
    /// tells why). While the server is away, this waits for it. Nothing is lost when the wait is
    /// given up.
    pub async fn next(&mut self) -> Option<Update> {
        poll_fn(|context| self.poll_update(context)).await
    }

    /// The result as of the last update, in the query's order; where that states none, in the order
    /// of its key.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[Value]> + DoubleEndedIterator {
        let width = visible(&self.shape);
        let rows = self.rows.as_ref().map(Rows::as_slice).unwrap_or_default();
        rows.iter().map(move |row| row.get(..width).unwrap_or(row))
    }

    /// The same as values of a type, as [`Sql::fetch`](crate::Sql::fetch) gives them.
    ///
    /// # Errors
    /// [`Error::Decode`] where a row is not of the type.
    pub fn typed_rows<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let rows = self.rows.as_ref().map(Rows::as_slice).unwrap_or_default();
        decode::rows(&visible_names(&self.shape), rows)
    }

    /// Everything up to here is worked in. Keep it, to go on later with [`Subscribe::from`].
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The result's columns.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.shape.columns[..visible(&self.shape)]
    }

    /// The columns that tell rows apart; empty where nothing does.
    #[must_use]
    pub fn key(&self) -> &[String] {
        &self.shape.key
    }

    /// The terms of its order, the first the weightiest; empty where the query states none. Their
    /// positions ([`OrderTerm::index`]) beyond [`Subscription::columns`] are those of columns that the
    /// query sorts by and does not show. [`Subscription::rows`] stands in this order; the key breaks
    /// ties.
    #[must_use]
    pub fn order(&self) -> &[OrderTerm] {
        &self.shape.order
    }

    /// Whether the query has a LIMIT, so that its rows stand where the server says.
    #[must_use]
    pub fn is_window(&self) -> bool {
        self.shape.window
    }

    /// How it is kept on the server, and at what cost. The statements are there where
    /// [`Subscribe::explain`] asked for them.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How often the rows were not what the server said they are, and were asked for afresh; see
    /// [`Subscribe::checksum`].
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.repair.ever
    }

    /// Why it ended, after [`Subscription::next`] has returned `None`.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.ended.as_ref()
    }

    /// Waits until it is told where it starts.
    async fn begin(&mut self) -> Result<(), Error> {
        loop {
            let event = poll_fn(|context| self.source.poll_event(context)).await;
            self.first = self.take(event);
            if let Some(error) = &self.ended {
                return Err(error.clone());
            }
            if !self.repair.waits {
                return Ok(());
            }
        }
    }

    fn poll_update(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        if let Some(update) = self.first.take() {
            return Poll::Ready(Some(update));
        }
        while self.ended.is_none() {
            let event = ready!(self.source.poll_event(context));
            if let Some(update) = self.take(event) {
                return Poll::Ready(Some(update));
            }
        }
        Poll::Ready(None)
    }

    /// Works an event in; the update, if the consumer is to hear of it.
    fn take(&mut self, event: Event) -> Option<Update> {
        let told = match event {
            Event::Ended(error) => {
                self.ended = Some(error);
                return None;
            }
            Event::Snapshot { seq, opening, rows, checksum } => {
                self.repair.waits = false;
                self.take_snapshot(&opening, rows, checksum).map(|told| (seq, told))
            }
            _ if self.repair.waits => return None,
            Event::Seen(seq) => {
                self.seq = self.seq.max(seq);
                return None;
            }
            Event::Delta { to, changes, checksum, opening } => {
                self.take_delta(changes, checksum, opening.as_deref()).map(|told| (to, told))
            }
        };
        let (to, (reset, changes)) = match told {
            Ok(told) => told,
            Err(why) => return self.repair(&why),
        };
        self.repair.in_a_row = 0;
        let from = std::mem::replace(&mut self.seq, to);
        if changes.is_empty() && !reset {
            return None;
        }
        Some(Update { from, seq: to, reset, shape: Arc::clone(&self.shape), changes })
    }

    fn take_snapshot(
        &mut self,
        opening: &Opening,
        rows: Vec<Row>,
        checksum: Option<Checksum>,
    ) -> Result<(bool, Changes), Mismatch> {
        if !self.holds_rows {
            self.open(opening);
            return Ok((true, Changes::whole(rows, opening.shape.window)));
        }
        let rows = Rows::new(&opening.shape, rows, checksum)?;
        let same_shape = *self.shape == opening.shape;
        self.open(opening);
        match &mut self.rows {
            Some(old) if same_shape => Ok((false, old.become_snapshot(rows))),
            held => {
                let all = rows.as_slice().to_vec();
                *held = Some(rows);
                Ok((true, Changes::whole(all, opening.shape.window)))
            }
        }
    }

    fn take_delta(
        &mut self,
        changes: Changes,
        checksum: Option<Checksum>,
        opening: Option<&Opening>,
    ) -> Result<(bool, Changes), Mismatch> {
        match (opening, &mut self.rows) {
            (Some(opening), Some(_)) if opening.shape != *self.shape => {
                Err(Mismatch::new("the query has other columns than before"))
            }
            (_, Some(rows)) => Ok((false, rows.apply(changes, checksum)?)),
            (opening, None) => {
                opening.into_iter().for_each(|opening| self.open(opening));
                Ok((false, changes.told()))
            }
        }
    }

    fn open(&mut self, opening: &Opening) {
        if *self.shape != opening.shape {
            self.shape = Arc::new(opening.shape.clone());
        }
        self.plan.clone_from(&opening.plan);
    }

    /// The rows would be wrong: what is held stays as it is, and the result is asked for afresh.
    fn repair(&mut self, why: &Mismatch) -> Option<Update> {
        self.repair.ever += 1;
        self.repair.of_all.fetch_add(1, Ordering::Relaxed);
        self.repair.in_a_row += 1;
        if self.repair.in_a_row > REPAIRS {
            tracing::error!(%why, "a subscription is told what does not fit, again and again");
            self.ended = Some(Error::Protocol { why: why.to_string() });
        } else {
            tracing::error!(%why, "a subscription was told what does not fit: it begins again");
            self.repair.waits = true;
            self.source.begin_again();
        }
        None
    }
}

impl Stream for Subscription {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.poll_update(context)
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("seq", &self.seq)
            .field("rows", &self.rows().len())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// What changed in a subscription's result. The result before, without the deletes, with the inserts,
/// and with the updates in the place of the rows of the same key, is the result after.
#[derive(Clone, Debug)]
pub struct Update {
    /// The result was this up to here …
    pub from: Seq,
    /// … and is that as of here.
    pub seq: Seq,
    /// The inserts are the whole result, and what was told before is void. So is the first update of
    /// a subscription; a later one only where the subscription is [`from`](Subscribe::from) a seq
    /// whose history is gone. (Otherwise the difference is found here.)
    pub reset: bool,
    shape: Arc<Shape>,
    changes: Changes,
}

impl Update {
    /// Rows that came, as values of a type.
    ///
    /// # Errors
    /// [`Error::Decode`] where a row is not of the type.
    pub fn inserts<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        decode::rows(&visible_names(&self.shape), &self.changes.inserts)
    }

    /// New forms of rows that stayed, as values of a type.
    ///
    /// # Errors
    /// [`Error::Decode`] where a row is not of the type.
    pub fn updates<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        decode::rows(&visible_names(&self.shape), &self.changes.updates)
    }

    /// Keys of the rows that left, as values of a type: `deletes::<String>()` where the key is one
    /// text column. Where the result has no key, whole rows.
    ///
    /// # Errors
    /// [`Error::Decode`] where a key is not of the type.
    pub fn deletes<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let key: Vec<&str> = match self.shape.key.as_slice() {
            [] if self.deletes_are_rows() => visible_names(&self.shape),
            // The names of the key columns were not told.
            [] => vec![""; self.changes.deletes.first().map_or(0, |key| key.len())],
            key => key.iter().map(String::as_str).collect(),
        };
        decode::rows(&key, &self.changes.deletes)
    }

    /// Rows that came, cell by cell.
    pub fn insert_rows(&self) -> impl ExactSizeIterator<Item = &[Value]> {
        let width = visible(&self.shape);
        self.changes.inserts.iter().map(move |row| row.get(..width).unwrap_or(row))
    }

    /// New forms of rows that stayed, cell by cell.
    pub fn update_rows(&self) -> impl ExactSizeIterator<Item = &[Value]> {
        let width = visible(&self.shape);
        self.changes.updates.iter().map(move |row| row.get(..width).unwrap_or(row))
    }

    /// Keys of the rows that left, cell by cell; where the result has no key, whole rows.
    pub fn delete_keys(&self) -> impl ExactSizeIterator<Item = &[Value]> {
        self.changes.deletes.iter().map(|key| &**key)
    }

    /// In a query with LIMIT, where the rows of the three lists stand: whoever takes out the deletes in
    /// their order, then puts in the inserts, then replaces the updates, has the result after.
    #[must_use]
    pub fn positions(&self) -> Option<&Positions> {
        self.changes.positions.as_ref()
    }

    fn deletes_are_rows(&self) -> bool {
        self.changes.deletes.iter().all(|key| key.len() == self.shape.columns.len())
    }
}

/// How many columns are for the consumer; the rest only carry the order.
fn visible(shape: &Shape) -> usize {
    shape.columns.iter().position(|column| column.hidden).unwrap_or(shape.columns.len())
}

fn visible_names(shape: &Shape) -> Vec<&str> {
    shape.columns[..visible(shape)].iter().map(|column| column.name.as_str()).collect()
}
