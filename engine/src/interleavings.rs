//! Shared state of the threads, under interleavings explored by a model checker (`cargo xtask interleave`): the queue,
//! the outbox of a slow client, the start and end of subscriptions between commits, the release of answers after a
//! sync, and the drain of the readers. A thread switch can happen at every lock.

use std::sync::Arc;

use abide_live::{Binding, BindingId, Catalog, Delta, Planner, Router};
use abide_schema::share::ShareKey;
use abide_schema::{Caller, Seq, Table as _, Value, limits};
use abide_store::{EventRow, InterruptHandle, Layout, Store, Tuning};
use serde_json::Map;
use shuttle::sync::Mutex;
use shuttle::thread;
use tokio::sync::{oneshot, watch};

use crate::access::tenants::Tenants;
use crate::commit::durable::{self, Commit, Syncer};
use crate::commit::fair_queue::Turn;
use crate::commit::queue::{Queue, Rejected};
use crate::commit::unit::{ReplyEnvelope, UnitResult};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ports::FreeRunning;
use crate::queries::reader_drain::ReaderDrain;
use crate::subscriptions::buffers::{BufferLimits, Buffers};
use crate::subscriptions::hub::Hub;
use crate::subscriptions::outbox::{Frame, Outbox, OutboxItem, SubscriptionKey};
use crate::subscriptions::shared_delta::{QueuedDelta, ResultChange, SharedDelta};

/// Number of interleavings per test.
const ORDERS: usize = 20_000;

/// Returns the turn of a caller without a scope, which is a tenant of its own.
fn turn_of(caller: &str) -> Turn {
    Turn { tenant: caller.into(), caller: caller.into() }
}

/// Two producers that wait for room, one that does not, one consumer, and a close: every accepted item
/// is taken once, in its producer's order, and no thread waits for ever.
#[test]
fn a_queue_loses_nothing() {
    shuttle::check_random(
        || {
            let queue = Arc::new(Queue::new(2));
            let giver = |name: u32| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || (0..3).for_each(|nth| queue.push_wait((name, nth), 1)))
            };
            let givers = [giver(1), giver(2)];
            let hasty = Arc::clone(&queue);
            let turn = turn_of("hasty");
            let hasty = thread::spawn(move || match hasty.push(Some(&turn), (3, 0), 1) {
                Ok(()) => 1,
                Err(Rejected::Full(_)) => 0,
                Err(Rejected::Closed(_)) => panic!("it is closed when all have given"),
            });
            let from = Arc::clone(&queue);
            let taker = thread::spawn(move || {
                let mut all = Vec::new();
                let mut taken = Vec::new();
                loop {
                    from.take(2, &mut taken);
                    assert!(taken.len() <= 2, "at most the requested number");
                    if taken.is_empty() {
                        return all;
                    }
                    all.append(&mut taken);
                }
            });
            givers.into_iter().for_each(|giver| giver.join().expect("it gives"));
            let hasty = hasty.join().expect("it gives");
            queue.close();
            let all = taker.join().expect("it takes");
            let items_of =
                |name: u32| all.iter().filter(move |item| item.0 == name).map(|item| item.1);
            assert_eq!(items_of(1).collect::<Vec<_>>(), [0, 1, 2]);
            assert_eq!(items_of(2).collect::<Vec<_>>(), [0, 1, 2]);
            assert_eq!(items_of(3).count(), hasty);
            assert_eq!(queue.weight(), 0);
        },
        ORDERS,
    );
}

/// Two takers of single items, of which only one of a caller may be in progress: every item is taken once, none waits
/// for ever, and no caller has two in progress.
#[test]
fn takers_of_single_items_lose_nothing() {
    shuttle::check_random(
        || {
            let queue = Arc::new(Queue::shared(2, 8, 1));
            let in_progress = Arc::new(Mutex::new([0; 2]));
            let takers = [0, 1].map(|number| {
                let queue = Arc::clone(&queue);
                let in_progress = Arc::clone(&in_progress);
                thread::spawn(move || {
                    let mut taken = Vec::new();
                    while let Some((item, turn)) = queue.take_one(number) {
                        let (caller, _): (usize, u32) = item;
                        let count = |by: i32| {
                            let mut in_progress = in_progress.lock().expect("no panic");
                            in_progress[caller] += by;
                            in_progress[caller]
                        };
                        assert_eq!(count(1), 1, "one item of a caller at a time");
                        thread::yield_now();
                        count(-1);
                        drop(turn);
                        taken.push(item);
                    }
                    taken
                })
            });
            for item in [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)] {
                let turn = turn_of(["ann", "bob"][item.0]);
                assert_eq!(queue.push(Some(&turn), item, 1), Ok(()));
            }
            queue.close();
            let taken = takers.map(|taker| taker.join().expect("it takes"));
            let mut taken = taken.concat();
            taken.sort_unstable();
            assert_eq!(taken, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]);
        },
        ORDERS,
    );
}

/// A client reads while frames arrive faster than its outbox holds. After dropped frames it reads the
/// state and continues from there; in the end it holds everything, in order, and the outbox never exceeds
/// its limit.
#[test]
fn a_slow_client_is_caught_up() {
    const COMMITS: i64 = 4;
    shuttle::check_random(
        || {
            let outbox = Arc::new(outbox());
            let metrics = Arc::new(Metrics::default());
            // The last commit that can be read.
            let state = Arc::new(Mutex::new(0_i64));
            let to = Arc::clone(&outbox);
            let committed = Arc::clone(&state);
            let publisher = thread::spawn(move || {
                for seq in 1..=COMMITS {
                    *committed.lock().expect("no thread panics") = seq;
                    to.push(heavy_frame(Seq(seq)), &metrics);
                }
            });
            let mut at = 0;
            while at < COMMITS {
                match outbox.take() {
                    OutboxItem::Frame(frame) if frame.to.0 <= at => {}
                    OutboxItem::Frame(frame) => {
                        assert_eq!(frame.to.0, at + 1, "a gap");
                        at = frame.to.0;
                    }
                    OutboxItem::Lagging => {
                        let seen = *state.lock().expect("no thread panics");
                        assert!(seen >= at, "a state of before");
                        at = seen;
                    }
                    OutboxItem::Empty => thread::yield_now(),
                    OutboxItem::Ended(why) => panic!("{why}"),
                }
            }
            publisher.join().expect("it publishes");
        },
        ORDERS,
    );
}

/// Jobs of the writer.
enum Job {
    Commit,
    /// By the number of the connection.
    Attach(u64),
}

/// The threads of a subscription's start, and their shared state. The locks are the engine's; the
/// file holds a number that each commit increments.
struct Fixture {
    jobs: Queue<Job>,
    commits: Queue<(Seq, BindingId)>,
    hub: Hub,
    file: Mutex<i64>,
    outboxes: [Arc<Outbox>; 2],
    attached: Mutex<[Option<BindingId>; 2]>,
}

impl Fixture {
    /// Attaches subscriptions between two commits. Commits with subscribers produce deltas.
    fn write(&self, binding: &Binding, mut router: Router) {
        let mut jobs = Vec::new();
        let mut bound = None;
        loop {
            self.jobs.take(1, &mut jobs);
            match jobs.pop() {
                None => return self.commits.close(),
                Some(Job::Commit) => {
                    let mut file = self.file.lock().expect("no thread panics");
                    *file += 1;
                    let seq = Seq(*file);
                    drop(file);
                    if let Some(id) = bound {
                        self.commits.push_wait((seq, id), 1);
                    }
                }
                Some(Job::Attach(connection)) => {
                    let id = router.attach(binding, &ShareKey::Operator).expect("there is room");
                    let at = usize::try_from(connection).expect("it is small");
                    self.hub.listen(id, connection, SubscriptionKey(0), &self.outboxes[at]);
                    self.attached.lock().expect("no thread panics")[at] = Some(id);
                    bound = Some(id);
                }
            }
        }
    }

    fn publish(&self) {
        let metrics = Metrics::default();
        let mut taken = Vec::new();
        loop {
            self.commits.take(2, &mut taken);
            if taken.is_empty() {
                return;
            }
            for (to, id) in taken.drain(..) {
                let delta = SharedDelta::new(ResultChange::Rows(Delta::default()));
                self.hub.publish(to, &[(id, delta)], &metrics);
            }
        }
    }

    /// Starts like a connection: attach, then read, then drop frames that the read result includes. Ends after
    /// it has received a commit.
    fn listen(&self, connection: u64, until: i64) {
        let at = usize::try_from(connection).expect("it is small");
        self.jobs.push_wait(Job::Attach(connection), 1);
        let id = loop {
            match self.attached.lock().expect("no thread panics")[at] {
                Some(id) => break id,
                None => thread::yield_now(),
            }
        };
        let mut received = *self.file.lock().expect("no thread panics");
        while received < until {
            match self.outboxes[at].take() {
                OutboxItem::Frame(frame) if frame.to.0 <= received => {}
                OutboxItem::Frame(frame) => {
                    assert_eq!(frame.to.0, received + 1, "a gap");
                    received = frame.to.0;
                }
                OutboxItem::Empty => thread::yield_now(),
                mail @ (OutboxItem::Lagging | OutboxItem::Ended(_)) => panic!("{mail:?}"),
            }
        }
        self.hub.unlisten(id, connection, SubscriptionKey(0));
    }
}

/// Subscriptions start at any moment between commits, and one ends while the other continues: each
/// receives every commit after its read state, once, in order.
#[test]
fn a_subscription_begins_without_a_gap() {
    const COMMITS: i64 = 3;
    shuttle::check_random(
        || {
            let catalog = Arc::new(Catalog::new(vec![EventRow::SPEC], Vec::new()));
            let binding =
                Planner::new(Arc::clone(&catalog)).bind("SELECT seq FROM events", &Map::new());
            let binding = binding.expect("it can be live");
            let router = Router::new(catalog);
            let fixture = Arc::new(Fixture {
                jobs: Queue::new(4),
                commits: Queue::new(4),
                hub: Hub::starting_at(Seq(0)),
                file: Mutex::new(0),
                outboxes: [Arc::new(outbox()), Arc::new(outbox())],
                attached: Mutex::new([None; 2]),
            });
            let spawn = |work: Box<dyn FnOnce(&Fixture) + Send>| {
                let fixture = Arc::clone(&fixture);
                thread::spawn(move || work(&fixture))
            };
            let writer = spawn(Box::new(move |fixture| fixture.write(&binding, router)));
            let publisher = spawn(Box::new(Fixture::publish));
            let listeners = [
                spawn(Box::new(|fixture| fixture.listen(0, COMMITS))),
                spawn(Box::new(|fixture| fixture.listen(1, 1))),
            ];
            (0..COMMITS).for_each(|_| fixture.jobs.push_wait(Job::Commit, 1));
            listeners
                .into_iter()
                .for_each(|listener| listener.join().expect("it receives every commit"));
            fixture.jobs.close();
            [writer, publisher].into_iter().for_each(|thread| thread.join().expect("it ends"));
        },
        ORDERS / 4,
    );
}

/// The disk: what was written, and how much of it was synced. The sync with the given number fails.
struct FakeDisk {
    written: Mutex<i64>,
    synced: Mutex<(i64, u32)>,
    fails: u32,
}

impl FakeDisk {
    fn sync(&self) -> std::io::Result<()> {
        let written = *self.written.lock().expect("no thread panics");
        // Concurrent writes are not part of this sync.
        thread::yield_now();
        let mut synced = self.synced.lock().expect("no thread panics");
        synced.1 += 1;
        if synced.1 == self.fails {
            return Err(std::io::Error::other("the disk is gone"));
        }
        synced.0 = written;
        Ok(())
    }

    fn has(&self, seq: i64) -> bool {
        self.synced.lock().expect("no thread panics").0 >= seq
    }
}

/// A waiter for durability, and its view.
#[derive(Clone)]
struct DurabilityWaiter {
    platter: Arc<FakeDisk>,
    durable: watch::Receiver<Seq>,
    health: Arc<Health>,
}

impl DurabilityWaiter {
    /// Waits for a state, or for the last written one, as a query does.
    fn read(self, state: Option<i64>) {
        let seen = state.unwrap_or_else(|| *self.platter.written.lock().expect("no thread panics"));
        let waited = durable::reached(&self.durable, Seq(seen), &self.health);
        match shuttle::future::block_on(waited) {
            Ok(()) => assert!(self.platter.has(seen), "it saw {seen}"),
            Err(refusal) => assert!(self.platter.fails > 0, "{refusal}"),
        }
    }

    /// Writes a commit, for a caller that then waits for the answer.
    fn write(&self, seq: i64, commits: &Queue<Commit>) -> thread::JoinHandle<()> {
        let (reply, answer) = oneshot::channel();
        let outcome = Ok(UnitResult { calls: Vec::new(), duplicate: false });
        *self.platter.written.lock().expect("no thread panics") = seq;
        let answers = vec![ReplyEnvelope { reply, outcome }];
        commits.push_wait(Commit { to: Seq(seq), answers, deltas: Vec::new(), segment: None }, 1);
        let platter = Arc::clone(&self.platter);
        thread::spawn(move || match shuttle::future::block_on(answer) {
            Ok(Ok(_)) => assert!(platter.has(seq), "{seq} is acknowledged"),
            Ok(Err(_)) => assert!(platter.fails > 0, "{seq} is refused"),
            Err(_) => panic!("{seq} is never answered"),
        })
    }
}

/// Callers wait for their answers, and readers for a state that they read or a future one, while
/// commits are synced and at most one sync fails: no answer precedes durability,
/// and no waiter hangs. (A query whose commit's sync failed once did.)
#[test]
fn no_answer_precedes_durability() {
    for fails in 0..=2 {
        shuttle::check_random(move || commit_and_listen(fails), ORDERS / 4);
    }
}

fn commit_and_listen(fails: u32) {
    const COMMITS: i64 = 3;
    let written = Mutex::new(0);
    let synced = Mutex::new((0, 0));
    let platter = Arc::new(FakeDisk { written, synced, fails });
    let hub = Arc::new(Hub::starting_at(Seq(0)));
    let health = Arc::new(Health::new(Arc::clone(&hub)));
    let (sender, durable) = watch::channel(Seq(0));
    let commits = Arc::new(Queue::new(8));
    let to_publish = Arc::new(Queue::new(8));
    let disk = Arc::clone(&platter);
    let syncer = Syncer {
        commits: Arc::clone(&commits),
        to_publish: Arc::clone(&to_publish),
        sync: Box::new(move |_| disk.sync()),
        displaced: Box::new(|| None),
        durable: sender,
        hub,
        health: Arc::clone(&health),
        metrics: Arc::default(),
        scheduler: Arc::new(FreeRunning),
    };
    let syncer = thread::spawn(move || syncer.run());
    let desk = DurabilityWaiter { platter: Arc::clone(&platter), durable, health };
    let readers = [None, Some(COMMITS)].map(|state| {
        let desk = desk.clone();
        thread::spawn(move || desk.read(state))
    });
    let callers: Vec<_> = (1..=COMMITS).map(|seq| desk.write(seq, &commits)).collect();
    callers.into_iter().for_each(|caller| caller.join().expect("it is answered"));
    readers.into_iter().for_each(|reader| reader.join().expect("it is let go"));
    commits.close();
    syncer.join().expect("it ends");
    let mut published = Vec::new();
    to_publish.take(usize::MAX, &mut published);
    let all = published.iter().all(|commit| platter.has(commit.to.0));
    assert!(all, "subscribers receive only durable commits");
}

/// No query runs while the readers are drained, and no thread waits for ever. In a model, waits have no time limit.
#[test]
fn drained_readers_run_no_query() {
    let folder = tempfile::tempdir().expect("a folder");
    let layout = Layout { modules: Vec::new() };
    let store = Store::open(&folder.path().join("a.db"), layout, Tuning::default());
    let reader = std::sync::Mutex::new(store.expect("it opens").reader().expect("it opens"));
    let handle = move || reader.lock().expect("nothing panics").interrupt_handle();
    shuttle::check_random(
        move || {
            let drain = Arc::new(ReaderDrain::default());
            let running = Arc::new(Mutex::new(0));
            let reader = |handles: [InterruptHandle; 2]| {
                let drain = Arc::clone(&drain);
                let running = Arc::clone(&running);
                thread::spawn(move || {
                    for handle in handles {
                        let admitted = drain.admit(handle);
                        *running.lock().expect("nothing panics") += 1;
                        *running.lock().expect("nothing panics") -= 1;
                        drop(admitted);
                    }
                })
            };
            let readers = [reader([handle(), handle()]), reader([handle(), handle()])];
            for _ in 0..2 {
                let drained = drain.drain();
                assert_eq!(*running.lock().expect("nothing panics"), 0, "a query runs");
                drop(drained);
            }
            readers.into_iter().for_each(|reader| reader.join().expect("it ends"));
        },
        ORDERS,
    );
}

/// Two of them exceed an outbox.
fn heavy_frame(to: Seq) -> Frame {
    let text = Value::from("x".repeat(limits::OUTBOX_BYTES * 3 / 5));
    let mut delta = Delta::default();
    delta.inserts.push(vec![text].into());
    Frame {
        to,
        changes: vec![(
            SubscriptionKey(0),
            QueuedDelta::uncounted(SharedDelta::new(ResultChange::Rows(delta))),
        )],
    }
}

fn outbox() -> Outbox {
    let account =
        Buffers::new(BufferLimits::default(), Tenants::default()).account(&Caller::local());
    Outbox::new(account, Arc::default())
}
