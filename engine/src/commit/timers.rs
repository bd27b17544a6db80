//! Deadlines: rows that are due at a time, and the calls made when it has come.
//!
//! The due times are in the rows, as modules declare ([`Deadline`]); this module keeps, for each kind, a
//! lower bound of the next due time, and the rows that are due now. So a million waiting rows cost nothing: the index
//! is read when the bound is reached, each row once.
//!
//! The writer checks before each of its transactions. Due rows run first, as ordinary calls of the
//! caller `system`, so no call sees a state with overdue rows (unless more are
//! due than one transaction processes). A row's due time is in the event's arguments: a replay runs the
//! same calls again without a clock. Rows that became due while no process had the file open run at the start.
//!
//! Due rows wait in one lane for each tenant, and a transaction takes the oldest row of each lane in turn: a tenant
//! with many due rows delays only itself. Each kind has its own room in memory, and each lane a part of it: rows beyond
//! that are passed over, and read again when the lane is empty. Until then the lane takes no rows, because those that
//! come later would run first. A row in a lane can have changed since it was read, or be there twice, so it is looked
//! up once more before its call.
//!
//! Leases have a clock of their own ([`LeaseClock`]): the time in which no process had the file open need not count for
//! them, because their holders could not renew them. It differs from the clock of events for a while after the start only.
//!
//! A row can also stand for the rest of a call ([`Continuation`](abide_schema::reducer::Continuation)). Then its call
//! is one of the caller that began the work, and its lane is that of the scope in which the work is done.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use abide_schema::caller::{Caller, Scope};
use abide_schema::reducer::Deadline;
use abide_schema::table::Kind;
use abide_schema::{Code, Micros, Module, Refusal, Row, TableSpec, Value, integers, limits};
use abide_store::{StoreError, Writer};
use serde_json::{Map, Value as JsonValue, json};

use crate::access::row_owners::RowOwners;
use crate::access::tenants::Tenants;
use crate::commit::overlay::NetChange;

/// The longest sleep of the writer while rows wait: the machine's clock may be changed, or the
/// machine suspended, and neither ends a wait.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Pause after a storage error, and of a kind that is suspended.
const PAUSE_MS: i64 = 1_000;

/// Rows looked up for one that runs, before a transaction takes no more: the others have changed since they were read.
const LOOKUPS_PER_ROW: usize = 4;

/// The clock by which leases from before the start expire. Until a time it is behind the clock of events, by the time
/// since the last event before the start: leases that holders could not renew meanwhile expire as if the file had been
/// open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseClock {
    /// How much it is behind, in microseconds.
    behind: i64,
    /// When it is the clock of events again.
    until: Micros,
}

impl LeaseClock {
    /// Returns the clock of an engine that starts now, on a log whose last event has this time. The time between them does
    /// not count until `grace` has passed. After that it does, so that a row that nobody holds any more does not wait for a
    /// whole downtime.
    pub(crate) fn starting(now: Micros, last_event: Micros, grace: Duration) -> LeaseClock {
        let grace = i64::try_from(grace.as_micros()).unwrap_or(i64::MAX);
        let behind = if grace == 0 { 0 } else { now.0.saturating_sub(last_event.0).max(0) };
        LeaseClock { behind, until: Micros(now.0.saturating_add(grace)) }
    }

    /// Returns `true` if it is behind the clock of events at this time.
    fn is_behind(&self, now: Micros) -> bool {
        self.behind > 0 && now < self.until
    }

    /// Returns the time of this clock.
    fn now(&self, now: Micros) -> Micros {
        if now < self.until { Micros(now.0.saturating_sub(self.behind)) } else { now }
    }

    /// Returns when this clock reaches a time.
    fn reaches(&self, at: Micros) -> Micros {
        at.max(self.until).min(Micros(at.0.saturating_add(self.behind)))
    }
}

/// A due row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DueRow {
    /// The reducer to call.
    pub(crate) reducer: &'static str,
    /// The row's key and due time, by name.
    pub(crate) arguments: JsonValue,
    /// Who calls it.
    pub(crate) caller: Caller,
    /// The call that it continues.
    pub(crate) continued: Option<ContinuedCall>,
    key: Vec<Value>,
    lane: Arc<str>,
    place: Place,
}

impl DueRow {
    fn id(&self) -> DueRowId {
        DueRowId { at: self.place.at, key: self.key.clone() }
    }
}

/// A row of a kind of deadline while it is due at this time. If its due time changes, it is another one.
#[derive(Clone, Debug, PartialEq)]
struct DueRowId {
    at: Micros,
    key: Vec<Value>,
}

/// The place of a row in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    kind: usize,
    at: Micros,
    /// Distinguishes rows that are due at the same time, in the order in which they were read.
    added: u64,
}

/// A call whose work goes on in later transactions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContinuedCall {
    /// Its reducer.
    pub(crate) reducer: &'static str,
    /// What the work is done for.
    pub(crate) subject: String,
    /// Why the work must end, after a step was refused.
    pub(crate) failure: Option<Refusal>,
}

/// A row that is still due.
struct WaitingRow {
    scope: String,
    /// The subject of a continuation, and its caller.
    continued: Option<(String, Caller)>,
}

/// One deadline: rows of one table with due times in one column.
#[derive(Debug)]
struct DeadlineKind {
    deadline: Deadline,
    column: usize,
    /// Reads the next rows that are due, in the order of their due times.
    next_rows: String,
    /// Finds the due time of the next row.
    next_time: String,
    /// Looks a row up.
    one_row: String,
    /// The place of the last row that was read.
    read_to: Vec<Value>,
    /// No unread row is due before this time. `None` if no rows wait.
    next: Option<Micros>,
    /// Rows that changed to a due time that was read already.
    changed: Vec<DueRowId>,
    /// The leases that were given or renewed since the start, by the time at which they are looked up: when they are
    /// due, or later if the kind is suspended. `None` if [`LeaseClock`] does not hold the rows of this kind back. Their
    /// holders can renew them, so they expire by the clock of events. There are at most as many as transactions write
    /// while the clock is behind.
    new_leases: Option<BTreeMap<Micros, Vec<DueRowId>>>,
    /// The lanes for which rows were passed over, and the earliest due time of these rows. They take no rows until they
    /// are empty.
    passed_over: BTreeMap<Arc<str>, Micros>,
    /// Rows whose calls run in the current transaction, or ran in the last one.
    running: Vec<DueRowId>,
    /// Rows whose call was refused or left them due: skipped while they still wait.
    skipped: Vec<DueRowId>,
    /// Rows of continuations whose step was refused, and why: their work must end.
    failed: Vec<(DueRowId, Refusal)>,
}

impl DeadlineKind {
    fn new(deadline: Deadline, owners: &RowOwners) -> DeadlineKind {
        let column = deadline
            .table
            .column(deadline.column)
            .expect("a deadline's column was looked up when it was declared");
        let scope = owners.scope(deadline.table, "r").unwrap_or_else(|| "'{}'".to_owned());
        DeadlineKind {
            deadline,
            column,
            next_rows: deadline.query(&scope),
            next_time: deadline.next_query(),
            one_row: deadline.row_query(&scope),
            read_to: place_before(&deadline, Micros(i64::MIN)),
            next: Some(Micros(i64::MIN)),
            changed: Vec::new(),
            new_leases: None,
            passed_over: BTreeMap::new(),
            running: Vec::new(),
            skipped: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Returns the arguments of the call for one row: its due time and its key, by name.
    fn arguments(&self, row: &DueRowId) -> JsonValue {
        let table = self.deadline.table;
        let mut arguments = Map::new();
        arguments.insert(self.deadline.column.to_owned(), JsonValue::from(row.at.0));
        for (column, cell) in table.key.iter().zip(&row.key) {
            arguments.insert(table.columns[*column].name.to_owned(), cell.to_json());
        }
        JsonValue::Object(arguments)
    }

    /// Returns a row that is due; `None` if it is not due at this time any more.
    fn find(&self, store: &Writer, id: &DueRowId) -> Result<Option<WaitingRow>, StoreError> {
        let mut params = vec![Value::Integer(id.at.0)];
        params.extend(id.key.iter().cloned());
        let mut found = None;
        store.run(&self.one_row, &params, &mut |row| {
            let continued = self.deadline.continuation.map(|_| {
                let authority = match row.get(3) {
                    Some(Value::Text(authority)) => Some(&**authority),
                    _ => None,
                };
                (text_cell(row.get(1)), Caller::recorded(&text_cell(row.get(2)), authority))
            });
            found = Some(WaitingRow { scope: text_cell(row.first()), continued });
        })?;
        Ok(found)
    }

    /// Returns the call for a row that was looked up.
    fn due_row(&self, found: WaitingRow, lane: Arc<str>, place: Place, key: Vec<Value>) -> DueRow {
        let id = DueRowId { at: place.at, key };
        let mut arguments = self.arguments(&id);
        let reducer = self.deadline.reducer.name;
        let mut caller = Caller::system();
        let mut continued = None;
        if let (Some((subject, by)), Some(continuation)) =
            (found.continued, self.deadline.continuation)
        {
            let failed = self.failed.iter().find(|(row, _)| *row == id);
            let failure = failed.map(|(_, refusal)| refusal.clone());
            match &failure {
                Some(Refusal { code, detail, .. }) => {
                    arguments["error"] = json!({"code": code.as_str(), "message": detail});
                }
                None => caller = by,
            }
            continued = Some(ContinuedCall { reducer: continuation.reducer, subject, failure });
        }
        DueRow { reducer, arguments, caller, continued, key: id.key, lane, place }
    }

    /// Reads at most `max` due rows behind those that were read, and records when to look again. Returns their number.
    fn read_due(
        &mut self,
        store: &Writer,
        now: Micros,
        max: usize,
        mut each: impl FnMut(Micros, Vec<Value>, &str),
    ) -> Result<usize, StoreError> {
        let place = self.read_to.len();
        let keys = self.deadline.table.key.len();
        let mut params = vec![Value::Integer(max as i64)];
        params.extend(self.read_to.iter().cloned());
        params.push(Value::Integer(now.0));
        let mut count = 0;
        let mut read_to = None;
        store.run(&self.next_rows, &params, &mut |row| {
            let Some(Value::Integer(at)) = row.first() else { return };
            count += 1;
            read_to = Some(row[..place].to_vec());
            each(Micros(*at), row[place..place + keys].to_vec(), &text_cell(row.get(place + keys)));
        })?;
        if let Some(read_to) = read_to {
            self.read_to = read_to;
        }
        params.truncate(1);
        params.extend(self.read_to.iter().cloned());
        let mut next = None;
        store.run(&self.next_time, &params, &mut |row| {
            if let Some(Value::Integer(at)) = row.first() {
                next = Some(Micros(*at));
            }
        })?;
        self.next = next;
        Ok(count)
    }

    /// Returns when the next lease that was given since the start is looked up.
    fn next_new_lease(&self) -> Option<Micros> {
        self.new_leases.as_ref()?.keys().next().copied()
    }

    /// Marks the leases that were given since the start and are due now as rows to look up. They are forgotten when the
    /// clock of leases is not behind any more.
    fn release_new_leases(&mut self, now: Micros, is_behind: bool) {
        let Some(leases) = &mut self.new_leases else { return };
        while let Some(first) = leases.first_entry()
            && *first.key() <= now
        {
            self.changed.extend(first.remove());
        }
        if !is_behind {
            self.new_leases = None;
        }
    }

    /// `true` if there are rows to read or to look up.
    fn has_work(&self, now: Micros) -> bool {
        let is_due = self.next.is_some_and(|next| next <= now);
        is_due || self.has_rows() || !self.running.is_empty()
    }

    /// `true` if there are due rows that are in no lane.
    fn has_rows(&self) -> bool {
        !self.changed.is_empty() || !self.passed_over.is_empty()
    }

    /// Records that a row was passed over.
    fn pass_over(&mut self, lane: Arc<str>, at: Micros) {
        let first = self.passed_over.entry(lane).or_insert(at);
        *first = at.min(*first);
    }

    /// Reads the rows again that were passed over for a lane that is empty now. First all others are read, since they
    /// may be those of other tenants.
    fn return_to_passed_over(&mut self, lanes: &DueLanes, kind: usize, now: Micros) {
        if self.next.is_some_and(|next| next <= now) {
            return;
        }
        let empty = self.passed_over.extract_if(.., |lane, _| lanes.count(lane, kind) == 0);
        if let Some(first) = empty.map(|(_, at)| at).min() {
            self.read_to = place_before(&self.deadline, first);
            self.next = Some(first);
        }
    }

    /// Reads all rows again, at this time of their clock. `taken`: the rows of this kind that were taken out of their
    /// lanes for it.
    fn start_again(&mut self, next: Micros, lease_clock: LeaseClock, taken: Vec<DueRowId>) {
        self.read_to = place_before(&self.deadline, Micros(i64::MIN));
        self.next = Some(next);
        self.passed_over.clear();
        let changed = std::mem::take(&mut self.changed);
        // Their clock may be behind, and then new leases that are due by the clock of events are not read again. Other
        // rows among them are read, too; a row that is there twice runs once.
        if let Some(leases) = &mut self.new_leases {
            let at = lease_clock.reaches(next);
            for row in changed.into_iter().chain(taken) {
                leases.entry(at.max(row.at)).or_default().push(row);
            }
        }
    }

    /// Records that a row is skipped.
    fn skip(&mut self, row: DueRowId, refusal: &Refusal) {
        let reducer = self.deadline.reducer.name;
        let arguments = self.arguments(&row);
        tracing::error!(
            name: "deadline_refused",
            reducer,
            %arguments,
            %refusal,
            "a deadline call was refused"
        );
        self.skipped.push(row);
    }

    /// Skips the rows of the last transaction that are still due. A reducer that leaves its row due would be called
    /// again and again for ever, with an event each time. (The same happens for a row that only the index of a damaged
    /// file contains.)
    fn check_last(&mut self, store: &Writer) -> Result<(), StoreError> {
        for row in std::mem::take(&mut self.running) {
            if self.find(store, &row)?.is_some() {
                let why = Refusal::new(Code::Internal, "the reducer left its deadline due");
                self.skip(row, &why);
            }
        }
        Ok(())
    }

    /// `true` if so many rows are skipped that the reducer is considered broken.
    fn is_suspended(&mut self, store: &Writer) -> Result<bool, StoreError> {
        if self.skipped.len() < limits::DUE_STUCK {
            return Ok(false);
        }
        for row in std::mem::take(&mut self.skipped) {
            if self.find(store, &row)?.is_some() {
                self.skipped.push(row);
            }
        }
        Ok(self.skipped.len() >= limits::DUE_STUCK)
    }
}

/// Returns a place before all rows that are due at a time or later: the smallest key, or the smallest rowid.
fn place_before(deadline: &Deadline, at: Micros) -> Vec<Value> {
    let table = deadline.table;
    let mut place = vec![Value::Integer(at.0)];
    if !table.without_rowid {
        place.push(Value::Integer(i64::MIN));
        return place;
    }
    place.extend(table.key.iter().map(|column| match table.columns[*column].kind {
        Kind::Integer | Kind::Real => Value::Integer(i64::MIN),
        _ => Value::Text(String::new()),
    }));
    place
}

fn text_cell(cell: Option<&Value>) -> String {
    match cell {
        Some(Value::Text(text)) => text.to_string(),
        _ => String::new(),
    }
}

/// The due rows of one tenant.
#[derive(Debug)]
struct DueLane {
    rows: BTreeMap<Place, Vec<Value>>,
    /// The number of rows of each kind.
    counts: Vec<usize>,
}

impl DueLane {
    fn new(kinds: usize) -> DueLane {
        DueLane { rows: BTreeMap::new(), counts: vec![0; kinds] }
    }

    /// Returns the place of the oldest row of a kind.
    fn first(&self, kind: usize) -> Option<Place> {
        let start = Place { kind, at: Micros(i64::MIN), added: 0 };
        let end = Place { kind: kind + 1, ..start };
        self.rows.range(start..end).next().map(|(place, _)| *place)
    }
}

/// The due rows in memory.
#[derive(Debug)]
struct DueLanes {
    tenants: Tenants,
    /// Maximum number of rows of each kind in a lane.
    max_of_a_tenant: usize,
    lanes: BTreeMap<Arc<str>, DueLane>,
    /// The number of rows of each kind.
    counts: Vec<usize>,
    /// The lanes, the next one first.
    turn: VecDeque<Arc<str>>,
    /// The lanes before them for which the current transaction has no room.
    without_room: VecDeque<Arc<str>>,
    /// Rows so far.
    added: u64,
}

impl DueLanes {
    fn new(tenants: Tenants, kinds: usize, max_of_a_tenant: usize) -> DueLanes {
        DueLanes {
            tenants,
            max_of_a_tenant,
            lanes: BTreeMap::new(),
            counts: vec![0; kinds],
            turn: VecDeque::new(),
            without_room: VecDeque::new(),
            added: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Returns the number of rows of a kind in a lane.
    fn count(&self, lane: &str, kind: usize) -> usize {
        self.lanes.get(lane).map_or(0, |lane| lane.counts[kind])
    }

    /// `true` if a lane has as many rows of a kind as it may.
    fn is_full(&self, lane: &str, kind: usize) -> bool {
        self.count(lane, kind) >= self.max_of_a_tenant
    }

    /// Returns the lane of a scope, as its row says. It is not cached: which keys all scopes have, and so the tenant of a
    /// scope, changes with the callers, and rows that are overdue at the start are read before the first caller.
    fn lane_for(&self, scope: &str) -> Arc<str> {
        let scope: Scope = serde_json::from_str(scope).unwrap_or_default();
        self.tenants.key_for_scope(&scope).into()
    }

    /// Adds a row behind those that are due at the same time.
    fn add(&mut self, lane: Arc<str>, kind: usize, at: Micros, key: Vec<Value>) {
        self.added += 1;
        self.add_at(lane, Place { kind, at, added: self.added }, key);
    }

    /// Adds a row at its place. A new lane has the last turn.
    fn add_at(&mut self, lane: Arc<str>, place: Place, key: Vec<Value>) {
        if !self.lanes.contains_key(&lane) {
            self.turn.push_back(Arc::clone(&lane));
        }
        self.insert(lane, place, key);
    }

    /// Puts rows back that were taken and did not run. Their lanes have the first turns, in this order.
    fn put_back(&mut self, rows: Vec<DueRow>) {
        for DueRow { lane, place, key, .. } in rows.into_iter().rev() {
            self.turn.retain(|other| *other != lane);
            self.turn.push_front(Arc::clone(&lane));
            self.insert(lane, place, key);
        }
    }

    fn insert(&mut self, lane: Arc<str>, place: Place, key: Vec<Value>) {
        let kinds = self.counts.len();
        let lane = self.lanes.entry(lane).or_insert_with(|| DueLane::new(kinds));
        self.counts[place.kind] += 1;
        lane.counts[place.kind] += 1;
        lane.rows.insert(place, key);
    }

    /// Takes the oldest row of the next lane that has one of a kind with room.
    fn take(&mut self, room: &[usize]) -> Option<(Arc<str>, Place, Vec<Value>)> {
        loop {
            let name = self.turn.pop_front()?;
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            let kinds = (0..room.len()).filter(|kind| room[*kind] > 0);
            let first = kinds.filter_map(|kind| lane.first(kind));
            let Some(place) = first.min_by_key(|place| (place.at, *place)) else {
                // Its rows have no room later in this transaction either.
                self.without_room.push_back(name);
                continue;
            };
            let key = lane.rows.remove(&place)?;
            lane.counts[place.kind] -= 1;
            self.counts[place.kind] -= 1;
            if lane.rows.is_empty() {
                self.lanes.remove(&name);
            } else {
                self.turn.push_back(Arc::clone(&name));
            }
            return Some((name, place, key));
        }
    }

    /// Ends the turns of a transaction. The lanes without room are the first of the next one: for kinds with few rows
    /// in a transaction, the lane that had its turn must come after those that had none.
    fn end_turns(&mut self) {
        while let Some(lane) = self.without_room.pop_back() {
            self.turn.push_front(lane);
        }
    }

    /// Takes all rows of a kind out of their lanes.
    fn take_kind(&mut self, kind: usize) -> Vec<DueRowId> {
        let mut taken = Vec::with_capacity(self.counts[kind]);
        for lane in self.lanes.values_mut() {
            let rows = lane.rows.extract_if(.., |place, _| place.kind == kind);
            taken.extend(rows.map(|(place, key)| DueRowId { at: place.at, key }));
            lane.counts[kind] = 0;
        }
        self.counts[kind] = 0;
        self.lanes.retain(|_, lane| !lane.rows.is_empty());
        let lanes = &self.lanes;
        self.turn.retain(|lane| lanes.contains_key(lane));
        taken
    }
}

/// All deadlines. See the module.
#[derive(Debug)]
pub(crate) struct Timers {
    kinds: Vec<DeadlineKind>,
    lanes: DueLanes,
    /// Nothing is processed before this time.
    paused_until: Option<Micros>,
    lease_clock: LeaseClock,
}

impl Timers {
    /// Returns the deadlines of these modules.
    pub(crate) fn new(
        modules: &[Module],
        tenants: Tenants,
        max_of_a_tenant: usize,
        lease_clock: LeaseClock,
    ) -> Timers {
        let deadlines = modules.iter().flat_map(|module| &module.deadlines);
        let tables: Vec<&'static TableSpec> =
            modules.iter().flat_map(|module| module.tables.iter().copied()).collect();
        let owners = RowOwners::new(&tables);
        let mut kinds: Vec<DeadlineKind> =
            deadlines.map(|deadline| DeadlineKind::new(*deadline, &owners)).collect();
        if lease_clock.behind > 0 {
            for kind in kinds.iter_mut().filter(|kind| kind.deadline.is_lease) {
                kind.new_leases = Some(BTreeMap::new());
            }
        }
        let lanes = DueLanes::new(tenants, kinds.len(), max_of_a_tenant);
        Timers { lanes, kinds, paused_until: None, lease_clock }
    }

    /// Returns the time by which the rows of a kind are due.
    fn time_of(&self, kind: &DeadlineKind, now: Micros) -> Micros {
        if kind.deadline.is_lease { self.lease_clock.now(now) } else { now }
    }

    /// Returns the time until something is due; `None` if no rows wait.
    pub(crate) fn due_in(&self, now: Micros) -> Option<Duration> {
        let has_rows = !self.lanes.is_empty() || self.kinds.iter().any(DeadlineKind::has_rows);
        let unread = self.kinds.iter().filter_map(|kind| {
            let next = kind.next?;
            Some(if kind.deadline.is_lease { self.lease_clock.reaches(next) } else { next })
        });
        let new_leases = self.kinds.iter().filter_map(DeadlineKind::next_new_lease);
        let earliest = unread.chain(new_leases).chain(has_rows.then_some(now)).min()?;
        let next = earliest.max(self.paused_until.unwrap_or(earliest));
        let us = u64::try_from(next.0.saturating_sub(now.0)).unwrap_or(0);
        Some(Duration::from_micros(us).min(LONGEST_SLEEP))
    }

    /// Returns the rows due now, the oldest of each tenant in turn: as many as one transaction processes.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) fn take_due(
        &mut self,
        store: &Writer,
        now: Micros,
    ) -> Result<Vec<DueRow>, StoreError> {
        let due = self.try_take_due(store, now);
        if due.is_err() {
            // The rows that were taken have not run, and are in no lane any more.
            for kind in &mut self.kinds {
                kind.changed.append(&mut kind.running);
            }
            self.lanes.end_turns();
            self.read_again();
        }
        due
    }

    fn try_take_due(&mut self, store: &Writer, now: Micros) -> Result<Vec<DueRow>, StoreError> {
        if self.paused_until.is_some_and(|until| now < until) {
            return Ok(Vec::new());
        }
        self.paused_until = None;
        let is_behind = self.lease_clock.is_behind(now);
        for kind in &mut self.kinds {
            kind.release_new_leases(now, is_behind);
        }
        let has_work = self.kinds.iter().any(|kind| kind.has_work(self.time_of(kind, now)));
        if self.lanes.is_empty() && !has_work {
            return Ok(Vec::new());
        }
        let mut reads = limits::DUE_READ_PER_COMMIT;
        for nth in 0..self.kinds.len() {
            let due_by = self.time_of(&self.kinds[nth], now);
            self.read_kind(nth, store, due_by, &mut reads)?;
        }
        let mut room: Vec<usize> = self.kinds.iter().map(|kind| kind.deadline.per_commit).collect();
        let mut due = Vec::new();
        self.lanes.end_turns();
        for _ in 0..limits::DUE_PER_COMMIT * LOOKUPS_PER_ROW {
            if due.len() == limits::DUE_PER_COMMIT {
                break;
            }
            let Some((lane, place, key)) = self.lanes.take(&room) else { break };
            let kind = &mut self.kinds[place.kind];
            let row = DueRowId { at: place.at, key };
            if kind.skipped.contains(&row) || kind.running.contains(&row) {
                continue;
            }
            let found = kind.find(store, &row).inspect_err(|_| kind.changed.push(row.clone()))?;
            let Some(found) = found else { continue };
            room[place.kind] -= 1;
            kind.running.push(row.clone());
            due.push(kind.due_row(found, lane, place, row.key));
        }
        self.lanes.end_turns();
        Ok(due)
    }

    /// Puts rows back that the transaction had no time for.
    pub(crate) fn put_back(&mut self, rows: Vec<DueRow>) {
        for row in &rows {
            let id = row.id();
            self.kinds[row.place.kind].running.retain(|running| *running != id);
        }
        self.lanes.put_back(rows);
    }

    /// Reads due rows of a kind into the lanes.
    fn read_kind(
        &mut self,
        nth: usize,
        store: &Writer,
        now: Micros,
        reads: &mut usize,
    ) -> Result<(), StoreError> {
        let kind = &mut self.kinds[nth];
        kind.check_last(store)?;
        if kind.is_suspended(store)? {
            let taken = self.lanes.take_kind(nth);
            kind.start_again(now.plus_ms(PAUSE_MS), self.lease_clock, taken);
            return Ok(());
        }
        while let Some(row) = self.kinds[nth].changed.pop() {
            let kind = &mut self.kinds[nth];
            let found = kind.find(store, &row).inspect_err(|_| kind.changed.push(row.clone()))?;
            let Some(found) = found else { continue };
            let lane = self.lanes.lane_for(&found.scope);
            self.add(nth, lane, row.at, row.key);
        }
        self.read_next(nth, store, now, reads)?;
        self.kinds[nth].return_to_passed_over(&self.lanes, nth, now);
        self.read_next(nth, store, now, reads)
    }

    /// Reads the next due rows of a kind into the lanes, as many as there is room for.
    fn read_next(
        &mut self,
        nth: usize,
        store: &Writer,
        now: Micros,
        reads: &mut usize,
    ) -> Result<(), StoreError> {
        let kind = &mut self.kinds[nth];
        let room = limits::DUE_IN_MEMORY.saturating_sub(self.lanes.counts[nth]);
        let max = room.min(*reads);
        if max == 0 || kind.next.is_none_or(|next| next > now) {
            return Ok(());
        }
        let lanes = &self.lanes;
        let mut found = Vec::new();
        *reads -= kind.read_due(store, now, max, |at, key, scope| {
            found.push((lanes.lane_for(scope), at, key));
        })?;
        for (lane, at, key) in found {
            self.add(nth, lane, at, key);
        }
        Ok(())
    }

    /// Adds a due row to its lane, or passes it over: the lane is full, or older rows were passed over for it. If the
    /// lane took later rows meanwhile, it would not be empty as long as such rows come, and the older ones would never
    /// run.
    fn add(&mut self, nth: usize, lane: Arc<str>, at: Micros, key: Vec<Value>) {
        let kind = &mut self.kinds[nth];
        if kind.passed_over.contains_key(&lane) || self.lanes.is_full(&lane, nth) {
            kind.pass_over(lane, at);
        } else {
            self.lanes.add(lane, nth, at, key);
        }
    }

    /// Processes the changes of a transaction: a row may be due earlier than the bound.
    pub(crate) fn record_changes(&mut self, changes: &[NetChange]) {
        for change in changes {
            let Some(new) = &change.new else { continue };
            for kind in &mut self.kinds {
                if kind.deadline.table.name == change.table.name {
                    kind.record_change(new);
                }
            }
        }
    }

    /// Records that a row was not processed. After a transient storage error it is retried later; after a refusal it is
    /// skipped, because the reducer would refuse again. The work of a continuation is ended.
    pub(crate) fn refused(&mut self, due: &DueRow, refusal: &Refusal, now: Micros) {
        let kind = &mut self.kinds[due.place.kind];
        let row = due.id();
        kind.running.retain(|running| *running != row);
        if refusal.code.retryable() {
            self.lanes.add_at(Arc::clone(&due.lane), due.place, due.key.clone());
            return self.pause(now);
        }
        if due.continued.as_ref().is_some_and(|continued| continued.failure.is_none()) {
            kind.failed.push((row, refusal.clone()));
            return self.lanes.add_at(Arc::clone(&due.lane), due.place, due.key.clone());
        }
        kind.skip(row, refusal);
    }

    /// Records that a row was processed.
    pub(crate) fn done(&mut self, due: &DueRow) {
        let id = due.id();
        self.kinds[due.place.kind].failed.retain(|(failed, _)| *failed != id);
    }

    /// Returns the unfinished work of a call that has returned this result, if its reducer has continuations: what the
    /// work is done for.
    pub(crate) fn unfinished(
        &self,
        store: &Writer,
        reducer: &str,
        result: &str,
    ) -> Result<Option<ContinuedCall>, StoreError> {
        let mut continuations = self.kinds.iter().filter_map(|kind| kind.deadline.continuation);
        let Some(continuation) = continuations.find(|found| found.reducer == reducer) else {
            return Ok(None);
        };
        let result: JsonValue = integers::parse(result).unwrap_or_default();
        let Some(subject) = result[continuation.subject].as_str() else { return Ok(None) };
        let continued = ContinuedCall {
            reducer: continuation.reducer,
            subject: subject.to_owned(),
            failure: None,
        };
        Ok(self.is_unfinished(store, &continued)?.then_some(continued))
    }

    /// `true` if the work of a call goes on.
    pub(crate) fn is_unfinished(
        &self,
        store: &Writer,
        call: &ContinuedCall,
    ) -> Result<bool, StoreError> {
        let mut is_left = false;
        for Deadline { table, continuation, .. } in self.kinds.iter().map(|kind| kind.deadline) {
            let Some(continuation) = continuation.filter(|found| found.reducer == call.reducer)
            else {
                continue;
            };
            let column = continuation.subject;
            let sql = format!("SELECT 1 FROM {} WHERE {column} = ?1 LIMIT 1", table.name);
            store.run(&sql, &[Value::from(call.subject.as_str())], &mut |_| is_left = true)?;
        }
        Ok(is_left)
    }

    /// Pauses all deadlines: the storage could not be read.
    pub(crate) fn pause(&mut self, now: Micros) {
        self.paused_until = Some(now.plus_ms(PAUSE_MS));
    }

    /// Reads all due rows again: the rows of a transaction were put back, and may have other places.
    pub(crate) fn read_again(&mut self) {
        for (nth, kind) in self.kinds.iter_mut().enumerate() {
            let taken = self.lanes.take_kind(nth);
            kind.start_again(Micros(i64::MIN), self.lease_clock, taken);
        }
    }
}

impl DeadlineKind {
    /// Processes a new row.
    fn record_change(&mut self, row: &Row) {
        let Value::Integer(at) = row[self.column] else { return };
        let is_read = matches!(self.read_to[0], Value::Integer(read_to) if at <= read_to);
        let at = Micros(at);
        if let Some(leases) = &mut self.new_leases {
            let key = self.deadline.table.key_of(row);
            leases.entry(at).or_default().push(DueRowId { at, key });
        }
        // The condition decides whether the row waits; an unnecessary look is harmless.
        if !is_read {
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
            return;
        }
        let changed = DueRowId { at, key: self.deadline.table.key_of(row) };
        // Those that run are looked up when their calls are done.
        if !self.running.contains(&changed) {
            self.changed.push(changed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The writer sleeps until the time that `reaches` returns. It must be the first one that `now` maps to a due time.
    #[test]
    fn the_clock_of_leases_reaches_a_time_when_it_shows_it() {
        let second = 1_000_000;
        for (down, grace) in [(0, 0), (100, 0), (100, 30), (5, 30), (30, 30), (-5, 30)] {
            let start = Micros(1_000 * second);
            let last_event = Micros(start.0 - down * second);
            let grace = Duration::from_secs(grace);
            let clock = LeaseClock::starting(start, last_event, grace);
            for at in (-150..150).map(|seconds| Micros(start.0 + seconds * second)) {
                let reached = clock.reaches(at);
                assert!(
                    clock.now(reached) >= at,
                    "{down} {grace:?} {at:?}: not yet at {reached:?}"
                );
                let before = Micros(reached.0 - 1);
                assert!(clock.now(before) < at, "{down} {grace:?} {at:?}: before {reached:?}");
                assert!(reached >= at, "a lease does not expire early");
            }
        }
    }

    /// A lane was once cached by its scope: rows that were overdue at the start, before a caller had shown which keys
    /// all scopes have, gave each user of a tenant a lane, and a turn, of its own.
    #[test]
    fn scopes_of_one_tenant_share_a_lane_as_soon_as_its_key_is_known() {
        let tenants = Tenants::default();
        let lanes = DueLanes::new(tenants.clone(), 1, 1);
        let [ann, bob] = [r#"{"tenant":"a","user":"ann"}"#, r#"{"tenant":"a","user":"bob"}"#];
        assert_ne!(lanes.lane_for(ann), lanes.lane_for(bob));
        let scope = Scope::from([("tenant".to_owned(), "b".to_owned())]);
        let caller = Caller::with("eve", "app", BTreeSet::new(), scope);
        assert_eq!(tenants.key(&caller), "tenant=b/");
        for scope in [ann, bob] {
            assert_eq!(&*lanes.lane_for(scope), "tenant=a/");
        }
    }
}
