//! Running calls inside the open transaction: rows through the overlay, an event for each call.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use abide_log::{Chain, Digests};
use abide_schema::event::Event;
use abide_schema::reducer::{Caller, Guard, Reply, Transaction};
use abide_schema::seeded::{Bug, makes};
use abide_schema::{Abort, Code, Context, Micros, Refusal, Row, Seq, TableSpec, Value};
use abide_store::{StoreError, Writer};
use sha2::{Digest as _, Sha256};

use crate::bounds::{Bounded, Bounds};
use crate::outcome;
use crate::overlay::Overlay;
use crate::policies::Judge;
use crate::ports::Clock;
use crate::reach::Reach;
use crate::registry::ReadyCall;

/// The state of the log and of the open transaction, and what it takes to run a call on them.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) store: Writer,
    pub(crate) overlay: Overlay,
    pub(crate) chain: Chain,
    /// The time of the last event: the next is not before it.
    pub(crate) last_at: Micros,
    pub(crate) clock: Arc<dyn Clock>,
    /// What callers who are bounded may reach.
    bounds: Arc<Bounds>,
    /// What policies let them reach.
    pub(crate) reach: Reach,
    /// Set for the length of one call once it has written something.
    wrote: bool,
    /// Whether anybody subscribes to the log itself.
    pub(crate) keeps_events: bool,
    /// The events of this transaction, if anybody does.
    pub(crate) events: Vec<Event>,
    /// Tries out policies.
    judge: Option<Judge>,
}

/// What one call did.
#[derive(Debug)]
pub(crate) struct CallDone {
    /// Its own event's seq, or that of the call which had done it before.
    pub(crate) seq: Seq,
    pub(crate) result: String,
    pub(crate) duplicate: bool,
    /// What its caller is told instead of the result, where the call was refused on record.
    pub(crate) refusal: Option<Refusal>,
}

/// How far the executor had come, to go back to.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    chain: Chain,
    last_at: Micros,
    events: usize,
}

impl Executor {
    pub(crate) fn new(
        store: Writer,
        chain: Chain,
        last_at: Micros,
        clock: Arc<dyn Clock>,
        bounds: Bounds,
    ) -> Executor {
        let (overlay, reach, bounds) = (Overlay::default(), bounds.reach(), Arc::new(bounds));
        let (keeps_events, events) = (false, Vec::new());
        let (wrote, judge) = (false, None);
        Executor {
            store,
            overlay,
            chain,
            last_at,
            clock,
            bounds,
            reach,
            wrote,
            keeps_events,
            events,
            judge,
        }
    }

    /// With what tries out policies. A replay does without: it only sees what was found good.
    pub(crate) fn judging(self, judge: Judge) -> Executor {
        Executor { judge: Some(judge), ..self }
    }

    /// Runs one call and appends its event.
    pub(crate) fn run(
        &mut self,
        caller: &Caller,
        request_id: Option<&str>,
        call: &ReadyCall,
    ) -> Result<CallDone, Abort> {
        self.run_at(self.now(), caller, request_id, call)
    }

    /// The time that a call has which runs now.
    pub(crate) fn now(&self) -> Micros {
        self.clock.now().max(self.last_at)
    }

    /// As [`Executor::run`], at a given time: a replay has the times of the log.
    pub(crate) fn run_at(
        &mut self,
        at: Micros,
        caller: &Caller,
        request_id: Option<&str>,
        call: &ReadyCall,
    ) -> Result<CallDone, Abort> {
        self.wrote = false;
        let (seq, mut entropy) = (self.chain.seq.next(), self.chain.hash);
        if makes(Bug::RandomIds) {
            entropy[..8].copy_from_slice(&RandomState::new().hash_one(seq).to_be_bytes());
        }
        let (reply, session_id) = if caller.is_unbounded() {
            run_in(Context::new(seq, at, caller, entropy, self), call, &[])?
        } else {
            let bounds = Arc::clone(&self.bounds);
            let mut rows = Bounded::new(self, &bounds, caller)?;
            run_in(Context::new(seq, at, caller, entropy, &mut rows), call, &bounds.guards)?
        };
        if let Some(seq) = reply.duplicate_of {
            assert!(!self.wrote, "{} wrote rows and called itself a duplicate", call.reducer);
            let result = self.shown(caller, reply.result).map_err(broken)?;
            return Ok(CallDone { seq, result, duplicate: true, refusal: None });
        }
        self.append_event(at, caller, request_id, call, session_id, reply).map_err(broken)
    }

    /// A result as its caller is told it: without the columns that are hidden from it. The log has all.
    pub(crate) fn shown(&mut self, caller: &Caller, result: String) -> Result<String, StoreError> {
        Ok(match self.reach.of(&self.store, caller)? {
            Some(of_role) => of_role.shown(result),
            None => result,
        })
    }

    /// How many rows `SELECT * FROM from <clause>` has.
    pub(crate) fn count_in(
        &mut self,
        from: &str,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        self.flush().map_err(broken)?;
        let mut count = 0;
        let sql = format!("SELECT count(*) FROM {from} {clause}");
        let counted = self.store.run(&sql, params, &mut |row| {
            if let [Value::Integer(n)] = row {
                count = *n;
            }
        });
        counted.map_err(broken)?;
        Ok(count)
    }

    fn append_event(
        &mut self,
        at: Micros,
        caller: &Caller,
        request_id: Option<&str>,
        call: &ReadyCall,
        session_id: Option<String>,
        reply: Reply,
    ) -> Result<CallDone, StoreError> {
        let outcome = match &reply.refusal {
            Some(refusal) => outcome::refused(refusal),
            None => call.echo.compact(&reply.result),
        };
        let digests =
            Digests { arguments: call.digest, outcome: Sha256::digest(outcome.as_bytes()).into() };
        let mut event = Event {
            seq: Seq::ZERO,
            at,
            session_id,
            reducer: call.reducer.to_owned(),
            caller: caller.id().to_owned(),
            request_id: request_id.map(str::to_owned),
            arguments: call.arguments.clone(),
            outcome,
            prev_hash: [0; 32],
            hash: [0; 32],
            authority: caller.authority().map(str::to_owned),
        };
        self.wrote = true;
        let before = self.chain.seq;
        self.chain.append(&mut event, &digests);
        assert_eq!(event.seq, before.next(), "the log is dense");
        self.store.append_event(&event)?;
        self.last_at = at;
        let Reply { result, refusal, .. } = reply;
        let result = self.shown(caller, result)?;
        let done = CallDone { seq: event.seq, result, duplicate: false, refusal };
        if self.keeps_events {
            self.events.push(event);
        }
        Ok(done)
    }

    /// Whether the last call wrote anything before it ended.
    pub(crate) fn wrote(&self) -> bool {
        self.wrote
    }

    /// Writes the touched rows.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        for touched in self.overlay.take_unwritten() {
            self.store.update(touched.table, &touched.stored, &touched.row)?;
        }
        Ok(())
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { chain: self.chain.clone(), last_at: self.last_at, events: self.events.len() }
    }

    pub(crate) fn return_to(&mut self, mark: Mark) {
        self.reach.forget();
        self.chain = mark.chain;
        self.last_at = mark.last_at;
        self.events.truncate(mark.events);
    }

    pub(crate) fn known(
        &mut self,
        table: &'static TableSpec,
        key: &[Value],
    ) -> Result<Option<Row>, Abort> {
        if let Some(row) = self.overlay.get(table, key) {
            return Ok(row);
        }
        let row = self.store.get(table, key).map_err(broken)?;
        self.overlay.note(table, key, row.clone());
        Ok(row)
    }
}

/// Runs a call once its guards have let it pass. Gives its reply, and the session that it is about.
fn run_in(
    mut context: Context<'_>,
    call: &ReadyCall,
    guards: &[Guard],
) -> Result<(Reply, Option<String>), Abort> {
    // Whether it may call at all does not depend on what it sees.
    context.beyond_policies(|context| {
        guards.iter().try_for_each(|guard| guard(context, call.reducer))
    })?;
    let reply = call.call.run(&mut context)?;
    Ok((reply, context.session_id().map(str::to_owned)))
}

impl Transaction for Executor {
    fn get(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<Option<Row>, Abort> {
        self.known(table, key)
    }

    fn find(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<Vec<Row>, Abort> {
        self.flush().map_err(broken)?;
        self.store.find(table, clause, params).map_err(broken)
    }

    fn count(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        self.count_in(table.name, clause, params)
    }

    fn judge_policy(
        &mut self,
        table: &str,
        condition: Option<&str>,
        hidden: &[String],
    ) -> Result<(), Abort> {
        let Some(judge) = &self.judge else { return Ok(()) };
        judge.judge(table, condition, hidden).map_err(Abort::Refused)
    }

    fn insert(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<Row, Abort> {
        let row = self.store.insert(table, row).map_err(refused)?;
        self.wrote = true;
        self.reach.note(table);
        self.overlay.change(table, &table.key_of(&row), None, Some(row.clone()), false);
        Ok(row)
    }

    fn update(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort> {
        let key = table.key_of(&row);
        let before = self.known(table, &key)?;
        assert!(before.is_some(), "a reducer updates a row of {} that is not there", table.name);
        if let Some(stored) = self.overlay.stored(table, &key) {
            self.store.update(table, &stored, &row).map_err(refused)?;
        }
        self.wrote = true;
        self.reach.note(table);
        self.overlay.change(table, &key, before, Some(row.into()), false);
        Ok(())
    }

    fn touch(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort> {
        let key = table.key_of(&row);
        let before = self.known(table, &key)?;
        assert!(before.is_some(), "a reducer touches a row of {} that is not there", table.name);
        self.wrote = true;
        self.reach.note(table);
        self.overlay.change(table, &key, before, Some(row.into()), true);
        Ok(())
    }

    fn delete(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<(), Abort> {
        let before = self.known(table, key)?;
        assert!(before.is_some(), "a reducer deletes a row of {} that is not there", table.name);
        self.store.delete(table, key).map_err(refused)?;
        self.wrote = true;
        self.reach.note(table);
        self.overlay.change(table, key, before, None, false);
        Ok(())
    }
}

/// A failed write: where a constraint said so, that is an answer; all else is a breakage.
fn refused(error: StoreError) -> Abort {
    match error {
        StoreError::Constraint { .. } => Abort::Refused(error.to_refusal()),
        error => broken(error),
    }
}

pub(crate) fn broken(error: StoreError) -> Abort {
    Abort::Broken(Box::new(error))
}

/// What an abort tells its caller.
pub(crate) fn refusal_of(abort: &Abort) -> Refusal {
    match abort {
        Abort::Refused(refusal) => refusal.clone(),
        Abort::Broken(error) => match error.downcast_ref::<StoreError>() {
            Some(error) => error.to_refusal(),
            None => Refusal::new(Code::Internal, format!("the reducer broke: {error}")),
        },
    }
}
