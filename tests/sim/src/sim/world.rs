//! The simulated world and its actions, one after another, by the seed.

use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use abide_engine::EngineThread;
use abide_schema::reducer::Caller;
use abide_schema::{Refusal, Row, Seq, Value, limits};
use serde_json::Map;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::clients::SimClients;
use super::exchange::{Exchange, ParsedReply};
use super::session::{self, PendingWork, Shared};
use super::watcher::{QUERIES, Watcher};
use super::{ACTIONS, Report, Trace};
use crate::checks::{Finding, acknowledged, bounds, leases, log, rows, subscribers, visibility};
use crate::disk::{Fault, Kind, Machine};
use crate::history::History;
use crate::random::Random;
use crate::rig::{Rig, VirtualClock, folder};

/// A subscriber's connection.
struct Link {
    pipe: Shared,
    session: PendingWork<()>,
}

/// A subscriber, connected or not.
struct WatcherSlot {
    watcher: Watcher,
    link: Option<Link>,
    /// Whether it reads rarely.
    slow: bool,
    /// Its tenant, if any.
    tenant: Option<usize>,
}

impl WatcherSlot {
    fn caller(&self) -> Caller {
        self.tenant.map_or_else(|| Caller::new("watcher"), visibility::caller)
    }
}

/// See the [module](self).
pub(super) struct World<'a> {
    random: Random,
    trace: Trace,
    runtime: &'a Runtime,
    root: TempDir,
    folder: PathBuf,
    lives: u32,
    machine: Arc<Machine>,
    clock: Arc<VirtualClock>,
    rig: Option<Rig>,
    clients: SimClients,
    exchanges: Vec<Exchange>,
    seats: Vec<WatcherSlot>,
    /// Pending timer processing.
    due: Vec<PendingWork<Result<(), Refusal>>>,
    /// Pending queries of an auditor.
    audits: Vec<PendingWork<String>>,
    history: History,
    report: Report,
    /// Whether the network is reliable, at the end of a run.
    calm: bool,
    /// Engine failures since then.
    calm_failures: usize,
}

/// The maximum number of engine failures after the faults end: earlier faults may be detected late.
const CALM_FAILURES: usize = 20;

impl<'a> World<'a> {
    pub(super) fn new(seed: u64, trace: Trace, runtime: &'a Runtime) -> Result<World<'a>, Finding> {
        let root = folder();
        let mut random = Random::new(seed);
        let seats = (0..3).map(|nth| {
            let queries: Vec<_> = QUERIES.into_iter().skip(nth).step_by(1 + nth).collect();
            WatcherSlot {
                watcher: Watcher::new(&queries),
                link: None,
                slow: nth == 1,
                tenant: None,
            }
        });
        let bounded = (0..visibility::TENANTS.len()).map(|nth| {
            let queries: Vec<_> = QUERIES.into_iter().skip(nth).step_by(2).collect();
            let watcher = Watcher::new(&queries);
            WatcherSlot { watcher, link: None, slow: nth == 1, tenant: Some(nth) }
        });
        let mut world = World {
            folder: root.path().join("0"),
            machine: Arc::new(Machine::new(Fault::None, random.draw())),
            seats: seats.chain(bounded).collect(),
            random,
            trace,
            runtime,
            root,
            lives: 0,
            clock: VirtualClock::new(),
            rig: None,
            clients: SimClients::default(),
            exchanges: Vec::new(),
            due: Vec::new(),
            audits: Vec::new(),
            history: History::default(),
            report: Report::default(),
            calm: false,
            calm_failures: 0,
        };
        create_folder(&world.folder);
        world.open()?;
        world.exchanges = world.clients.begin().into_iter().map(Exchange::new).collect();
        Ok(world)
    }

    /// Runs to the end.
    pub(super) fn run(mut self) -> Result<Report, Finding> {
        for nth in 0..ACTIONS {
            self.act(nth)?;
            self.check_engine()?;
        }
        self.run_until_idle()?;
        self.end()
    }

    fn rig(&self) -> &Rig {
        self.rig.as_ref().expect("an engine is open")
    }

    /// Performs one action.
    fn act(&mut self, nth: usize) -> Result<(), Finding> {
        let choice = self.random.below(100);
        self.trace.note(&format!("{nth} {choice}"));
        match choice {
            0..=46 => self.step(),
            47..=56 => {
                if self.exchanges.len() < 24 {
                    let ask = self.clients.next_request(&mut self.random);
                    self.trace.note(&format!("ask {ask:?}"));
                    self.exchanges.push(Exchange::new(ask));
                }
                Ok(())
            }
            57..=75 => self.exchange(),
            76..=87 => self.watch(),
            88..=92 => {
                self.move_clock();
                Ok(())
            }
            93..=94 => {
                self.rig().checkpoint();
                Ok(())
            }
            95..=96 => {
                self.audit();
                Ok(())
            }
            97 => {
                let nth = self.machine.tally().calls[Kind::Sync as usize] + 1;
                if self.random.one_in(12) {
                    self.machine.plan(Fault::Fail { kind: Kind::Sync, nth, lasting: false });
                }
                Ok(())
            }
            98 if self.random.one_in(3) => self.crash(),
            _ => Ok(()),
        }
    }

    /// A thread of the engine performs one step.
    fn step(&mut self) -> Result<(), Finding> {
        let waiting = self.rig().engine().waiting();
        let mut able = Vec::new();
        // A thread whose successor's queue is full would block.
        if waiting.jobs > 0 && waiting.commits + 24 < limits::UNSYNCED_COMMITS {
            able.push(EngineThread::Writer);
        }
        if waiting.commits > 0 && waiting.publications + waiting.commits < limits::UNSYNCED_COMMITS
        {
            able.push(EngineThread::Sync);
        }
        if waiting.publications > 0 {
            able.push(EngineThread::Publish);
        }
        if waiting.reads > 0 {
            able.push(EngineThread::Reader(self.random.below(limits::READERS)));
        }
        if able.is_empty() {
            return Ok(());
        }
        let stage = *self.random.pick(&able);
        self.trace.note(&format!("step {stage:?} of {waiting:?}"));
        self.rig().director.step(stage);
        self.poll()
    }

    /// Polls everything that waits for the engine.
    fn poll(&mut self) -> Result<(), Finding> {
        let mut context = Context::from_waker(Waker::noop());
        let durable = self.rig().engine().durable_seq();
        for exchange in &mut self.exchanges {
            if exchange.poll(&mut context)
                && let Some(text) = exchange.answers.last()
            {
                self.trace.note(text);
                if let ParsedReply::Yes(output, _) = Exchange::read(text)? {
                    let seq = output.results.iter().map(|(seq, _)| *seq).max().unwrap_or_default();
                    subscribers::check_durable("an answer", seq, durable)?;
                }
            }
        }
        for seat in &mut self.seats {
            if let Some(link) = &mut seat.link {
                // The session never ends.
                let _ = link.session.as_mut().poll(&mut context);
            }
        }
        self.due.retain_mut(|due| due.as_mut().poll(&mut context).is_pending());
        let mut answers = Vec::new();
        self.audits.retain_mut(|audit| match audit.as_mut().poll(&mut context) {
            std::task::Poll::Ready(text) => {
                answers.push(text);
                false
            }
            std::task::Poll::Pending => true,
        });
        answers.iter().try_for_each(|text| self.receive_audit(text))
    }

    /// The network acts on a request or its response.
    fn exchange(&mut self) -> Result<(), Finding> {
        if self.exchanges.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.exchanges.len());
        let lost = !self.calm && self.random.one_in(8);
        let doubled = !self.calm && self.random.one_in(10);
        let engine = self.rig().engine().clone();
        let exchange = &mut self.exchanges[at];
        if exchange.is_idle() {
            exchange.waited += 1;
            exchange.sent = 1;
            return Ok(());
        }
        if doubled {
            exchange.sent += 1;
        }
        if !exchange.answers.is_empty() {
            let text = exchange.answers.remove(0);
            if lost {
                self.report.lost += 1;
                return Ok(());
            }
            return self.receive(at, &text);
        }
        if exchange.sent > 0 {
            if lost {
                exchange.sent -= 1;
                self.report.lost += 1;
                return Ok(());
            }
            exchange.arrive(&engine);
            drop(engine);
            return self.poll();
        }
        Ok(())
    }

    /// A response arrives.
    fn receive(&mut self, at: usize, text: &str) -> Result<(), Finding> {
        self.trace.note(&format!("heard {text}"));
        match Exchange::read(text)? {
            ParsedReply::Perhaps => Ok(()), // The client retries.
            ParsedReply::No => {
                self.exchanges.remove(at);
                Ok(())
            }
            ParsedReply::Yes(output, first) => {
                let exchange = self.exchanges.remove(at);
                if let Some(tenant) = visibility::tenant(exchange.ask.caller) {
                    let asked = exchange.ask.calls.iter().map(|call| &call.args);
                    asked
                        .chain([&first])
                        .try_for_each(|output| visibility::check(tenant, output))?;
                }
                self.clients.receive(&exchange.ask, &first);
                self.history.acknowledged.push((exchange.ask, output));
                Ok(())
            }
        }
    }

    /// An event at a subscriber.
    fn watch(&mut self) -> Result<(), Finding> {
        let at = self.random.below(self.seats.len());
        let cut = !self.calm && self.random.one_in(25);
        let lazy = self.seats[at].slow && !self.calm && self.random.below(6) > 0;
        if self.seats[at].link.is_none() {
            self.connect(at);
            return self.poll();
        }
        let seat = &mut self.seats[at];
        let Some(link) = &seat.link else { return Ok(()) };
        if cut {
            self.trace.note(&format!("watcher {at} is cut off"));
            seat.link = None;
            return Ok(());
        }
        if lazy {
            return Ok(());
        }
        let text = link.pipe.borrow_mut().to_client.pop_front();
        if let Some(text) = text {
            self.trace.note(&format!("watcher {at} hears {text}"));
            let before = seat.watcher.furthest;
            if let Some(tenant) = seat.tenant {
                visibility::check(tenant, &serde_json::from_str(&text).unwrap_or_default())?;
            }
            seat.watcher.receive(&text)?;
            if seat.watcher.furthest > before {
                let output = seat.watcher.furthest;
                let durable = self.rig().engine().durable_seq();
                subscribers::check_durable("a frame", output, durable)?;
            }
            return self.poll();
        }
        Ok(())
    }

    fn connect(&mut self, at: usize) {
        let engine = self.rig().engine().clone();
        let seat = &mut self.seats[at];
        let pipe: Shared = Rc::default();
        pipe.borrow_mut().to_server.extend(seat.watcher.subscribe());
        let session = Box::pin(session::serve(engine, seat.caller(), Rc::clone(&pipe)));
        seat.link = Some(Link { pipe, session });
        self.trace.note(&format!("watcher {at} connects"));
    }

    /// The clock advances or jumps.
    fn move_clock(&mut self) {
        let ms = match self.random.below(12) {
            0 => 45_000,
            1 => -3_000,
            2..=4 => 6_000,
            _ => i64::try_from(self.random.below(900)).unwrap_or(0),
        };
        self.trace.note(&format!("time {ms}"));
        self.clock.advance_ms(ms);
        let real = Duration::from_millis(ms.unsigned_abs());
        self.runtime.block_on(tokio::time::advance(real));
        if self.due.len() < 2 {
            let engine = self.rig().engine().clone();
            self.due.push(Box::pin(async move { engine.fire_due().await }));
        }
    }

    fn audit(&mut self) {
        let engine = self.rig().engine().clone();
        let sql = "SELECT count(*), coalesce(max(seq), 0) FROM events";
        let message = serde_json::json!({"op": "sql", "id": "a", "sql": sql}).to_string();
        self.audits.push(Box::pin(session::answer(engine, Caller::new("auditor"), message)));
    }

    fn receive_audit(&mut self, text: &str) -> Result<(), Finding> {
        self.trace.note(text);
        let answer: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        if answer["op"] != "rows" {
            return Ok(()); // Refused: the engine is poisoned.
        }
        let row = &answer["rows"][0];
        if row[0] != row[1] || row[1] != answer["seq"] {
            return Err(Finding::new("the log verifies", format!("an auditor read {text}")));
        }
        let seq = Seq(row[1].as_i64().unwrap_or_default());
        let durable = self.rig().engine().durable_seq();
        subscribers::check_durable("an auditor's result", seq, durable)
    }

    /// After each action: checks the bounds, and whether the engine still runs.
    fn check_engine(&mut self) -> Result<(), Finding> {
        let engine = self.rig().engine();
        let frames = self
            .seats
            .iter()
            .map(|seat| seat.link.as_ref().map_or(0, |link| link.pipe.borrow().to_client.len()))
            .max()
            .unwrap_or_default();
        bounds::check(engine.waiting(), engine.backlog(), frames)?;
        let Err(why) = engine.ready() else { return Ok(()) };
        // A supervisor restarts it; but a file that fails without a fault is damaged.
        self.calm_failures += usize::from(self.calm);
        if self.calm_failures > CALM_FAILURES {
            return Err(subscribers::broken(format!("it never becomes idle: {why}")));
        }
        self.crash()
    }

    /// The process ends, possibly with a power failure; then it restarts.
    fn crash(&mut self) -> Result<(), Finding> {
        self.report.crashes += 1;
        for exchange in &mut self.exchanges {
            exchange.cut();
        }
        self.seats.iter_mut().for_each(|seat| seat.link = None);
        self.due.clear();
        self.audits.clear();
        let closes = self.random.one_in(4);
        let power = self.random.below(3) > 0;
        self.trace.note(&format!("crash, closes {closes}, power {power}"));
        let rig = self.rig.take().expect("an engine is open");
        if closes {
            rig.settle();
            rig.close();
        } else {
            self.machine.cut_power();
            drop(rig);
        }
        if power {
            self.lives += 1;
            self.folder = self.root.path().join(self.lives.to_string());
            create_folder(&self.folder);
            let seed = self.random.draw();
            self.machine.restart(&self.folder, seed).expect("the folder takes files");
            self.machine = Arc::new(Machine::new(Fault::None, self.random.draw()));
        } else {
            self.machine.revive(Fault::None);
        }
        self.open()?;
        self.check_survived()
    }

    fn open(&mut self) -> Result<(), Finding> {
        let rig = Rig::open(&self.folder, &self.machine, &self.clock).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|why| format!(": {why}"));
            Finding::new("the file opens again", format!("{error}{}", cause.unwrap_or_default()))
        })?;
        self.trace.note(&format!("open at {}", rig.engine().durable_seq()));
        self.rig = Some(rig);
        Ok(())
    }

    /// Checks that everything acknowledged or published before the crash survived.
    fn check_survived(&self) -> Result<(), Finding> {
        let head = self.rig().engine().durable_seq();
        for seat in &self.seats {
            subscribers::check_durable("a watcher before the crash", seat.watcher.furthest, head)?;
        }
        let asked = self.query("SELECT seq, request_id FROM events ORDER BY seq")?;
        for (ask, output) in &self.history.acknowledged {
            let seqs = output.results.iter().map(|(seq, _)| *seq);
            let seq = seqs.max().unwrap_or_default();
            let row = usize::try_from(seq.0 - 1).ok().and_then(|at| asked.get(at));
            let there = row.is_some_and(|row| row[0] == Value::Integer(seq.0));
            let own = row.is_some_and(|row| {
                output.duplicate || row[1] == Value::Text(ask.request_id.clone())
            });
            if !there || !own {
                let what = format!(
                    "{} was acknowledged at {seq}, but the log ends at {head}",
                    ask.request_id
                );
                return Err(Finding::new("acknowledged is durable", what));
            }
        }
        Ok(())
    }

    fn query(&self, sql: &str) -> Result<Vec<Row>, Finding> {
        self.query_as(&Caller::local(), sql)
    }

    fn query_as(&self, caller: &Caller, sql: &str) -> Result<Vec<Row>, Finding> {
        let rig = self.rig();
        let answer = rig.run(rig.engine().query(caller, sql, &Map::new(), None));
        answer.map(|answer| answer.rows).map_err(|refusal| Finding::new("it answers", refusal))
    }

    /// Stops all faults, and waits until every request has its response and every subscriber is up
    /// to date.
    fn run_until_idle(&mut self) -> Result<(), Finding> {
        self.calm = true;
        self.machine.plan(Fault::None);
        for _ in 0..20_000 {
            self.rig().settle();
            self.poll()?;
            self.check_engine()?;
            self.exchange()?;
            self.watch()?;
            if self.exchanges.is_empty() && self.all_level()? {
                return Ok(());
            }
        }
        let waits = self.exchanges.iter().map(|exchange| &exchange.ask).collect::<Vec<_>>();
        Err(subscribers::broken(format!("it never becomes idle: {waits:?}")))
    }

    /// Whether every subscriber has received everything. Commits without effect on it arrive as
    /// progress.
    fn all_level(&mut self) -> Result<bool, Finding> {
        let head = self.rig().engine().durable_seq();
        if self.seats.iter().all(|seat| seat.link.is_some() && seat.watcher.is_level(head)) {
            return Ok(true);
        }
        if self.random.one_in(20) {
            let progress = Duration::from_millis(limits::PROGRESS_MS);
            self.runtime.block_on(tokio::time::advance(progress));
            self.poll()?;
        }
        Ok(false)
    }

    /// Runs all final checks.
    fn end(mut self) -> Result<Report, Finding> {
        for seat in &self.seats {
            for replica in seat.watcher.replicas.values() {
                let fresh = self.query_as(&seat.caller(), replica.sql)?;
                subscribers::check_rows(replica.sql, replica.seq, &replica.rows, &fresh)?;
            }
            self.report.deltas += seat.watcher.deltas;
        }
        self.clients.effects.check()?;
        leases::check(&self.lease_steps()?)?;
        self.seats.clear();
        let answers_read_again = History { acknowledged: Vec::new(), ..History::default() };
        acknowledged::check(self.rig(), &answers_read_again)?;
        self.check_survived()?;
        self.report.acknowledged = self.history.acknowledged.len();
        self.report.effects = self.clients.effects.count();
        self.rig.take().expect("an engine is open").close();
        let file = self.folder.join("abide.db");
        self.report.events = log::check(&file)?.events.0;
        rows::check(&file, &self.folder)?;
        self.trace.note(&format!("{} events", self.report.events));
        self.report.trace = self.trace.end();
        Ok(self.report)
    }

    fn lease_steps(&self) -> Result<Vec<leases::Step>, Finding> {
        let rows =
            self.query("SELECT seq, at, reducer, arguments, outcome FROM events ORDER BY seq")?;
        let json = |cell: &Value| match cell {
            Value::Text(text) => serde_json::from_str(text).unwrap_or_default(),
            _ => serde_json::Value::Null,
        };
        let steps = rows.iter().filter_map(|row| match (&row[0], &row[1], &row[2]) {
            (Value::Integer(seq), Value::Integer(at), Value::Text(reducer)) => Some(leases::Step {
                seq: *seq,
                at: *at,
                reducer: reducer.to_string(),
                arguments: json(&row[3]),
                outcome: json(&row[4]),
            }),
            _ => None,
        });
        Ok(steps.collect())
    }
}

fn create_folder(folder: &std::path::Path) {
    fs::create_dir(folder).expect("the folder is new");
}
