//! A panic at every named point of every thread ([`FaultPoint`]). Callers, queries, subscribers and
//! timers have pending work when it happens: each must get a response, the engine must close, and
//! its file must contain what was acknowledged.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use abide_engine::{Budget, Connection, Engine, FaultPoint, Start, SubscribeRequest, Update};
use abide_schema::wire::BatchCall;
use abide_schema::{Caller, Code, Refusal};
use serde_json::{Map, json};

use crate::checks::{Finding, acknowledged, log, rows};
use crate::disk::{Fault, Machine};
use crate::history::History;
use crate::rig::{Rig, STRANGER, SimRequest, VirtualClock, caller, folder};

const NAME: &str = "a panic leaves no caller waiting";

/// Rounds of traffic within which the point must be reached.
const ROUNDS: usize = 12;

/// The subscribed queries. Their groups exceed the budget, so that readers fill accumulators.
const QUERIES: [&str; 3] = [
    "SELECT id, status FROM sessions",
    "SELECT role, count(*) AS n, max(id) AS last FROM agent_state GROUP BY role",
    "SELECT s.id, a.id AS message FROM sessions s JOIN agent_state a ON a.session_id = s.id",
];

/// Messages that exist before the panic: a group of many rows.
const MESSAGES: usize = 400;

type Work<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs a case: the panic on the nth visit of the point. Returns how many requests were refused
/// because of it.
///
/// # Errors
/// A finding, or the point is never reached.
pub fn run(point: FaultPoint, nth: u64, closes: bool) -> Result<usize, Finding> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without sockets can be had");
    let _inside = runtime.enter();
    let folder = folder();
    let clock = VirtualClock::new();
    let machine = Arc::new(Machine::new(Fault::None, nth));
    let budget = Budget { average: 1_000, max: 2_000, commit: 1_000_000, ..Budget::UNLIMITED };
    let rig = Rig::open_with(folder.path(), &machine, &clock, |config| {
        config.live_budget = budget;
        // A short run performs a checkpoint in every round.
        config.tuning.checkpoint_bytes = 1;
    });
    let mut traffic = Traffic::begin(rig.expect("it opens"))?;
    traffic.rig.director.panic_at(point, nth);
    for round in 0..ROUNDS {
        traffic.round(round, point)?;
        if traffic.rig.director.has_panicked() {
            traffic.after(point)?;
            return traffic.end(folder.path(), &machine, &clock, closes);
        }
    }
    Err(Finding::new(NAME, format!("{point:?} was not reached {nth} times")))
}

/// An engine under load, and its responses.
struct Traffic {
    rig: Rig,
    listener: Connection,
    history: History,
    /// Requests refused because of the panic.
    refused: usize,
}

impl Traffic {
    fn begin(rig: Rig) -> Result<Traffic, Finding> {
        let mut listener = rig.engine().connect(&Caller::local());
        let mut history = History::default();
        for (session, messages) in [("s1", MESSAGES), ("s2", 1)] {
            let mut calls =
                vec![call("create_session", json!({"agent": "support", "id": session}))];
            calls.extend((0..messages).map(|nth| say(session, nth)));
            let ask = SimRequest { caller: "app", calls, request_id: session.to_owned() };
            let output = rig.run(ask.send(rig.engine())).map_err(|why| Finding::new(NAME, why))?;
            history.acknowledged.push((ask, output));
        }
        for (nth, sql) in QUERIES.into_iter().enumerate() {
            let id = format!("q{nth}");
            let params = Map::new();
            rig.run(listener.subscribe(&SubscribeRequest::new(&id, sql, &params)))
                .map_err(|why| Finding::new(NAME, why))?;
        }
        Ok(Traffic { rig, listener, history, refused: 0 })
    }

    /// Submits requests of all kinds, runs the engine, and collects all responses.
    fn round(&mut self, round: usize, point: FaultPoint) -> Result<(), Finding> {
        let engine = self.rig.engine().clone();
        let due =
            json!({"id": format!("t{round}"), "in_ms": 1, "session_id": "s2", "message": "now"});
        let asks = [
            ask("app", round, 0, vec![say("s1", round), say("s2", round)]),
            ask("app", round, 1, vec![call("set_timer", due)]),
            ask("app", round, 2, vec![say("s1", round)]),
            ask(STRANGER, round, 3, vec![say("s1", round)]),
        ];
        engine.note_denied(&caller(STRANGER), "a request", "it is not permitted");
        self.rig.clock.advance_ms(1_000);
        let head = engine.durable_seq();
        let mut calls: Vec<_> = asks.iter().map(|ask| Box::pin(ask.send(&engine))).collect();
        let mut others: Vec<Work<'_, Result<(), Refusal>>> = vec![
            Box::pin(async {
                engine.query(&Caller::local(), QUERIES[0], &Map::new(), None).await.map(drop)
            }),
            Box::pin(async {
                engine.query(&Caller::local(), QUERIES[1], &Map::new(), Some(head)).await.map(drop)
            }),
            Box::pin(subscribe(&engine, Start::Now)),
            Box::pin(subscribe(&engine, Start::AsOf(head))),
            Box::pin(subscribe(&engine, Start::After(head))),
            Box::pin(async { engine.live_templates().await.map(drop) }),
            Box::pin(async { engine.fire_due().await }),
        ];
        let mut output: Vec<_> = calls.iter().map(|_| None).collect();
        let mut refusals = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            for (call, output) in calls.iter_mut().zip(&mut output) {
                if output.is_none()
                    && let Poll::Ready(answer) = call.as_mut().poll(&mut context)
                {
                    *output = Some(answer);
                }
            }
            others.retain_mut(|other| match other.as_mut().poll(&mut context) {
                Poll::Ready(answer) => {
                    refusals.extend(answer.err());
                    false
                }
                Poll::Pending => true,
            });
            while self.listener.try_next().is_some() {}
            if !self.rig.step() {
                break;
            }
        }
        self.rig.checkpoint();
        let waiting = output.iter().filter(|output| output.is_none()).count() + others.len();
        if waiting > 0 {
            let what = format!("{waiting} requests still wait, but the engine is idle");
            return Err(Finding::new(NAME, what));
        }
        drop((calls, others));
        for (ask, answer) in asks.into_iter().zip(output) {
            match answer.expect("all are answered") {
                Ok(output) => self.history.acknowledged.push((ask, output)),
                Err(refusal) if refusal.code == Code::Denied => {}
                Err(refusal) => {
                    self.history.open.push(ask);
                    refusals.push(refusal);
                }
            }
        }
        self.evaluate(&refusals, point)
    }

    /// Only the panic may refuse requests, with the right code.
    fn evaluate(&mut self, refusals: &[Refusal], point: FaultPoint) -> Result<(), Finding> {
        let code = if point.is_contained() { Code::Internal } else { Code::EngineFailed };
        self.refused += refusals.len();
        match refusals.iter().find(|refusal| refusal.code != code) {
            Some(refusal) => Err(Finding::new(NAME, format!("[{}] {refusal}", refusal.code))),
            None => Ok(()),
        }
    }

    /// Checks the state after the panic.
    fn after(&mut self, point: FaultPoint) -> Result<(), Finding> {
        let fault = |what: String| Err(Finding::new(NAME, what));
        if point.is_contained() {
            let before = self.refused;
            if before > 1 {
                return fault(format!("{before} requests were refused because of one query"));
            }
            // Each reader takes a turn again, including the one that panicked.
            (0..4).try_for_each(|nth| self.round(100 + nth, point))?;
            self.rig.engine().ready().map_err(|why| Finding::new(NAME, why))?;
            return if self.refused == before {
                Ok(())
            } else {
                fault("a later request was refused".into())
            };
        }
        match self.rig.engine().ready() {
            Err(refusal) if refusal.code == Code::EngineFailed => {}
            other => return fault(format!("its status is {other:?}")),
        }
        let late = ask("app", 99, 0, vec![say("s1", 99)]);
        match self.rig.run(late.send(self.rig.engine())) {
            Err(refusal) if refusal.code == Code::EngineFailed => self.history.open.push(late),
            other => return fault(format!("the next call returned {other:?}")),
        }
        // Earlier updates come first. Then each subscription ends once.
        let mut ended = 0;
        while ended < QUERIES.len() {
            if let Update::Error { refusal, .. } = self.rig.run(self.listener.next()) {
                if refusal.code != Code::EngineFailed {
                    return fault(format!("a subscription received {refusal}"));
                }
                ended += 1;
            }
        }
        match self.rig.run(subscribe(self.rig.engine(), Start::Now)) {
            Err(refusal) if refusal.code == Code::EngineFailed => Ok(()),
            other => fault(format!("the next subscription returned {other:?}")),
        }
    }

    /// The engine closes, or its process is killed; then all checks run on the file.
    fn end(
        self,
        folder: &std::path::Path,
        machine: &Arc<Machine>,
        clock: &Arc<VirtualClock>,
        closes: bool,
    ) -> Result<usize, Finding> {
        let Traffic { rig, listener, history, refused } = self;
        drop(listener);
        if closes {
            rig.close();
        } else {
            machine.cut_power(); // Simulates a kill.
            drop(rig);
            machine.revive(Fault::None);
        }
        let rig = Rig::open(folder, machine, clock)
            .map_err(|why| Finding::new("the file opens again", why))?;
        acknowledged::check(&rig, &history)?;
        rig.close();
        let file = folder.join("abide.db");
        log::check(&file)?;
        rows::check(&file, folder)?;
        Ok(refused)
    }
}

async fn subscribe(engine: &Engine, start: Start) -> Result<(), Refusal> {
    let mut connection = engine.connect(&Caller::local());
    let params = Map::new();
    for (id, sql) in [("a", QUERIES[0]), ("b", QUERIES[2])] {
        connection
            .subscribe(&SubscribeRequest { start, ..SubscribeRequest::new(id, sql, &params) })
            .await?;
    }
    connection.unsubscribe("a");
    Ok(())
}

fn ask(caller: &'static str, round: usize, nth: usize, calls: Vec<BatchCall>) -> SimRequest {
    SimRequest { caller, calls, request_id: format!("r{round}.{nth}") }
}

fn say(session: &str, nth: usize) -> BatchCall {
    let args = json!({"session_id": session, "role": "user", "content": format!("message {nth}")});
    call("append_message", args)
}

fn call(reducer: &str, args: serde_json::Value) -> BatchCall {
    BatchCall { reducer: reducer.to_owned(), args }
}

/// All cases: each point, on its first visits.
#[must_use]
pub fn all_cases() -> Vec<(FaultPoint, u64, bool)> {
    // Accumulators are filled only once.
    let max = |point| {
        if matches!(point, FaultPoint::Backfill | FaultPoint::Fill | FaultPoint::FillBegun) {
            1
        } else {
            3
        }
    };
    FaultPoint::ALL
        .into_iter()
        .flat_map(|point| (1..=max(point)).map(move |nth| (point, nth, nth % 2 == 1)))
        .collect()
}
