//! Turns at the writer: tenants with many identities, and calls that take long.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use abide_engine::{CommittedCall, EngineThread, FaultPoint, StepScheduler};
use abide_schema::reducer::Caller;
use abide_schema::{Abort, Context, Json, Module, Refusal, reducer, table};
use abide_tests::world::{World, run};
use serde_json::json;

use crate::visibility::caller;

/// Holds the writer before its next group, until it is released.
#[derive(Debug, Default)]
struct HeldWriter {
    is_holding: AtomicBool,
    is_held: (Mutex<bool>, Condvar),
}

impl StepScheduler for HeldWriter {
    fn wait(&self, _: EngineThread) -> bool {
        false
    }

    fn at_fault_point(&self, point: FaultPoint) {
        if point == FaultPoint::Begun && self.is_holding.swap(false, Ordering::SeqCst) {
            let (is_held, changed) = &self.is_held;
            *is_held.lock().unwrap() = true;
            changed.notify_all();
            drop(changed.wait_while(is_held.lock().unwrap(), |is_held| *is_held).unwrap());
        }
    }
}

impl HeldWriter {
    fn wait_until_held(&self) {
        let (is_held, changed) = &self.is_held;
        drop(changed.wait_while(is_held.lock().unwrap(), |is_held| !*is_held).unwrap());
    }

    fn release(&self) {
        let (is_held, changed) = &self.is_held;
        *is_held.lock().unwrap() = false;
        changed.notify_all();
    }
}

/// Calls of `take_long` that have begun.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

/// Whether `take_long` may end.
static MAY_END: AtomicBool = AtomicBool::new(false);

/// A call of `take_long`.
#[table(name = "slow_calls", shared)]
struct SlowCall {
    /// Its number.
    #[column(key)]
    id: i64,
}

/// Takes longer than a group may.
#[reducer]
fn take_long(ctx: &mut Context<'_>) -> Result<Json, Abort> {
    let began = Instant::now();
    BEGUN.fetch_add(1, Ordering::SeqCst);
    while began.elapsed() < Duration::from_millis(40) || !MAY_END.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    ctx.insert(SlowCall { id: 0 })?;
    Ok(Json::from(json!(null)))
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<CommittedCall, Refusal>> + 'a>>;

/// Starts a call: it is in the queue when this returns.
fn start<'a>(world: &'a World, by: &'a Caller, reducer: &'static str) -> Call<'a> {
    let mut call: Call<'a> = Box::pin(async move {
        let args = match reducer {
            "take_long" => json!({}),
            _ => json!({"agent": "x"}),
        };
        world.engine().call(by, reducer, &args, None).await
    });
    let poll = call.as_mut().poll(&mut TaskContext::from_waker(Waker::noop()));
    assert!(matches!(poll, Poll::Pending), "it waits for the writer");
    call
}

fn held_world(writer: &Arc<HeldWriter>) -> World {
    let mut world = World::new(abide_reducers::modules);
    world.close();
    let mut modules = abide_reducers::modules();
    modules.push(Module::new("slow").table::<SlowCall>().reducer(take_long::definition()));
    let mut config = world.config(modules);
    config.scheduler = Arc::clone(writer) as Arc<dyn StepScheduler>;
    world.open_with(config);
    world
}

fn tenant_caller(tenant: &str, id: usize) -> Caller {
    caller(&id.to_string(), "admin", &["*"], &[("tenant", tenant)])
}

/// Each identity took a turn of its own, so a tenant whose admin had made 24 tokens had 24 of 25 turns, and the write of
/// another tenant waited for all of them. The class: a share that grows with the number of identities.
#[test]
fn a_tenant_with_many_identities_has_one_turn() {
    let writer = Arc::new(HeldWriter::default());
    let world = held_world(&writer);
    run(async {
        let gate = caller("gate", "app", &[], &[]);
        let zeta: Vec<Caller> = (0..24).map(|id| tenant_caller("zeta", id)).collect();
        let acme = tenant_caller("acme", 0);
        writer.is_holding.store(true, Ordering::SeqCst);
        let gate = start(&world, &gate, "create_session");
        writer.wait_until_held();
        let calls = zeta.iter().flat_map(|by| [by; 8]);
        let flood: Vec<Call<'_>> = calls.map(|by| start(&world, by, "create_session")).collect();
        let own = start(&world, &acme, "create_session");
        writer.release();
        let first = gate.await.unwrap().seq.0;
        let own = own.await.unwrap().seq.0;
        assert!(own - first <= 17, "{} calls of another tenant ran before it", own - first - 1);
        for call in flood {
            call.await.unwrap();
        }
    });
}

/// All waiting calls were one group, which ran to its end: a call that came meanwhile waited for each of them, however long
/// they took. The class: work that was taken in one turn and takes as long as many.
#[test]
fn calls_that_take_long_give_their_turns_back() {
    let writer = Arc::new(HeldWriter::default());
    let world = held_world(&writer);
    run(async {
        let gate = caller("gate", "app", &[], &[]);
        let zeta: Vec<Caller> = (0..4).map(|id| tenant_caller("zeta", id)).collect();
        let acme = tenant_caller("acme", 0);
        writer.is_holding.store(true, Ordering::SeqCst);
        let gate = start(&world, &gate, "create_session");
        writer.wait_until_held();
        let flood: Vec<Call<'_>> = zeta.iter().map(|by| start(&world, by, "take_long")).collect();
        writer.release();
        gate.await.unwrap();
        while BEGUN.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let own = start(&world, &acme, "create_session");
        MAY_END.store(true, Ordering::SeqCst);
        let own = own.await.unwrap().seq;
        let mut seqs = Vec::new();
        for call in flood {
            seqs.push(call.await.unwrap().seq);
        }
        assert!(seqs.is_sorted(), "each caller's call keeps its place: {seqs:?}");
        let before = seqs.iter().filter(|seq| **seq < own).count();
        assert_eq!(before, 1, "of {seqs:?} before {own}");
    });
}
