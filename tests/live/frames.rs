//! Subscriptions of the real engine over a connection that drops, duplicates and reorders frames. A
//! client's state always equals the query at the client's seq, and gaps are detected.
//!
//! The client follows the protocol alone: a result at seq `s` applies a frame if and only if `from
//! ≤ s < to`; a frame with `to ≤ s` is a duplicate; one with `from > s` shows a gap, and the client
//! resumes from `s`. Until that reply it applies nothing else. The reply to a subscribe starts at
//! the subscription's seq, not the connection's, so where frames can be lost it says nothing about
//! other subscriptions.

use std::collections::{BTreeMap, VecDeque};

use abide_engine::{Change, Connection, Delta, Start, SubscribeRequest, Update};
use abide_schema::reducer::Caller;
use abide_schema::{Code, Row, Seq, Value};

use crate::client::Client;
use crate::engine::{EngineFixture, tables};
use crate::proof::grammar::{self, Fidelity, Query};
use crate::proof::schema::Schema;
use crate::seed_budget::{TestBudget, each_seed};
use crate::world::Random;

const SHARE: TestBudget = TestBudget::Engines(WHOLE);
const WHOLE: u64 = 12;

/// The number of subscribed queries and of steps: for the first seeds, and for a longer run.
const LONG: (usize, usize) = (12, 60);
const SHORT: (usize, usize) = (6, 40);

/// The content of a frame, by id.
#[derive(Clone)]
struct Frame {
    from: Seq,
    to: Seq,
    /// Whether it is the reply to a subscribe.
    answer: bool,
    changes: Vec<(String, Delta)>,
}

/// The state of one subscription.
struct HeldResult {
    query: Query,
    client: Option<Client>,
    seq: Seq,
    /// Whether it was ever subscribed.
    asked: bool,
    /// Set until the reply to a subscribe arrives.
    waits: bool,
    /// Rows of an incomplete snapshot.
    parts: Vec<Row>,
}

/// A client and its unreliable connection.
struct LossyClient {
    /// `None` while the engine is closed.
    connection: Option<Connection>,
    held: BTreeMap<String, HeldResult>,
    /// Delayed frames.
    late: VecDeque<Frame>,
    /// The number of frames delivered at once, dropped, duplicated, delayed.
    fates: [u64; 4],
    gaps: u64,
    duplicates: u64,
}

impl LossyClient {
    fn new(fixture: &EngineFixture) -> LossyClient {
        let connection = Some(fixture.engine().connect(&Caller::local()));
        let held = BTreeMap::new();
        let late = VecDeque::new();
        LossyClient { connection, held, late, fates: [0; 4], gaps: 0, duplicates: 0 }
    }

    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("the engine is open")
    }

    /// Subscribes, from a seq if there is one.
    async fn ask(&mut self, id: &str) {
        let held = self.held.get_mut(id).expect("the subscription is known");
        let from = held.client.is_some().then_some(held.seq);
        (held.asked, held.waits) = (true, true);
        let text = held.query.text();
        let params = held.query.named();
        self.connection().unsubscribe(id);
        let wanted = SubscribeRequest {
            start: from.map_or(Start::Now, Start::After),
            ..SubscribeRequest::new(id, &text, &params)
        };
        if self.connection().subscribe(&wanted).await.is_err() {
            // The query now fails, or cannot be live.
            self.held.remove(id);
        }
    }

    /// Takes the next update off the connection, if there is one or one must come before `head`,
    /// and delivers a frame according to chance.
    async fn take(&mut self, head: Seq, random: &mut Random, fair: bool) {
        let connection = self.connection();
        let update = match connection.try_next() {
            None if connection.sent_up_to() < head => connection.next().await,
            None => return,
            Some(update) => update,
        };
        match update {
            Update::Snapshot(part) => {
                let held = self.held.get_mut(&*part.id).expect("it is subscribed");
                held.parts.extend(part.rows);
                if !part.more {
                    let rows = std::mem::take(&mut held.parts);
                    let top_n = !held.query.limit.text().is_empty();
                    held.client = Some(Client::from_shape(&part.info.shape, top_n, rows));
                    (held.seq, held.waits) = (part.seq, false);
                }
            }
            // It has no start, so it is useless where frames may be missing.
            Update::Progress { .. } => {}
            Update::Rerun { .. } => unreachable!("a result whose change is not known is given up"),
            Update::Error { id, refusal } => {
                if refusal.code != Code::ResyncRequired {
                    self.held.remove(&*id);
                }
            }
            Update::Delta { from, to, changes } => {
                let answer = changes.iter().any(|change| change.info.is_some());
                let (unknown, known): (Vec<Change>, Vec<Change>) =
                    changes.into_iter().partition(|change| change.delta.is_stale());
                // Every delta is within the budget; one that fails is not known.
                for change in unknown {
                    self.connection().unsubscribe(&change.id);
                    self.held.remove(&*change.id);
                }
                let known =
                    known.iter().map(|change| (change.id.to_string(), change.delta.rows().clone()));
                let frame = Frame { from, to, answer, changes: known.collect() };
                self.deliver(frame, random, fair).await;
            }
        }
    }

    async fn deliver(&mut self, frame: Frame, random: &mut Random, fair: bool) {
        // Losing a reply means losing the connection; the restarts test that.
        let safe = fair || frame.answer;
        let fate = if safe { 0 } else { *random.pick(&[0, 0, 0, 0, 0, 1, 2, 3]) };
        self.fates[fate] += 1;
        match fate {
            0 => self.receive(&frame).await,
            1 => {}
            2 => {
                self.receive(&frame).await;
                self.late.push_back(frame);
            }
            _ => self.late.push_back(frame),
        }
        if !self.late.is_empty() && (fair || random.below(3) == 0) {
            let at = random.below(self.late.len());
            if let Some(late) = self.late.remove(at) {
                self.receive(&late).await;
            }
        }
    }

    /// Applies the rule of the protocol.
    async fn receive(&mut self, frame: &Frame) {
        let mut gaps = Vec::new();
        for (id, held) in &mut self.held {
            let named = frame.changes.iter().find(|(of, _)| of == id);
            let meant =
                if held.waits || frame.answer { frame.answer && named.is_some() } else { true };
            if held.client.is_none() || !meant {
                continue;
            }
            if frame.to <= held.seq && !held.waits {
                self.duplicates += u64::from(named.is_some());
            } else if frame.from <= held.seq && held.seq <= frame.to {
                if let (Some((_, delta)), Some(client)) = (named, &mut held.client) {
                    client.apply(delta).unwrap_or_else(|why| {
                        let from = frame.from;
                        let to = frame.to;
                        panic!("{}: {why} in {from}..{to} at {}", held.query.inlined(), held.seq)
                    });
                }
                (held.seq, held.waits) = (frame.to, false);
            } else if frame.from > held.seq && !held.waits {
                gaps.push(id.clone());
            }
        }
        for id in gaps {
            self.gaps += 1;
            Box::pin(self.ask(&id)).await;
        }
    }

    /// Checks that every result equals the query as of its seq.
    async fn check(&self, fixture: &EngineFixture, what: &str) {
        for (id, held) in self.held.iter().filter(|(_, held)| !held.waits) {
            let Some(client) = &held.client else { continue };
            let text = held.query.text();
            let params = held.query.named();
            if held.query.fidelity == Fidelity::Open || !held.query.limit.text().is_empty() {
                continue;
            }
            let asked =
                fixture.engine().query(&Caller::local(), &text, &params, Some(held.seq)).await;
            let Ok(answer) = asked else { continue };
            // Rows of a past state are scanned in another order, and SQLite rounds a sum of reals
            // at every step: its last bits are undefined, and so is the result of cancellation
            // (seed 6037).
            let rounds = ["sum(", "total(", "avg("].iter().any(|sum| text.contains(sum));
            let sorted = |rows: &[Row]| {
                let row = |row: &Row| {
                    row.iter()
                        .map(|value| match value {
                            Value::Real(_) if rounds => "some real".to_owned(),
                            exact => format!("{exact:?}"),
                        })
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                let mut texts: Vec<String> = rows.iter().map(row).collect();
                texts.sort();
                texts
            };
            let ours = sorted(&client.visible());
            let theirs = sorted(&answer.rows);
            assert_eq!(ours, theirs, "{what}, {id} at {}: {}", held.seq, held.query.inlined());
        }
    }
}

#[test]
fn gaps_are_detected_and_closed() {
    let played = each_seed("a lossy line", SHARE, |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().expect("a runtime");
        let mut restarts = 0;
        let line = runtime.block_on(play(seed, &mut restarts));
        (line.fates, [line.gaps, line.duplicates, restarts])
    });
    let seeds = played.len() as u64;
    let mut fates = [0; 4];
    let mut sums = [0; 3];
    for (fate, sum) in played {
        fates.iter_mut().zip(fate).for_each(|(all, one)| *all += one);
        sums.iter_mut().zip(sum).for_each(|(all, one)| *all += one);
    }
    // A single seed need not cover everything.
    if seeds > 1 {
        assert!(fates.iter().all(|count| *count > seeds), "{fates:?}");
        assert!(sums[0] > seeds && sums[1] > seeds && 3 * sums[2] > seeds, "{sums:?}");
    }
}

async fn play(seed: u64, restarts: &mut u64) -> LossyClient {
    let mut random = Random::new(seed ^ 0xf4a3e);
    let schema = Schema { tables: tables(), views: Vec::new() };
    let mut fixture = EngineFixture::new();
    let mut line = LossyClient::new(&fixture);
    let (queries, steps) = if seed < WHOLE { LONG } else { SHORT };
    for number in 0..queries {
        let query = grammar::query(&mut random, &schema);
        let id = format!("q{number}");
        let held = HeldResult {
            query,
            client: None,
            seq: Seq::ZERO,
            asked: false,
            waits: false,
            parts: Vec::new(),
        };
        line.held.insert(id.clone(), held);
    }
    let mut head = fixture.commit(&mut random).await;
    for step in 0..steps {
        if let Some(id) = waiting(&line) {
            line.ask(&id).await;
            continue;
        }
        match random.below(8) {
            0 => {
                // An unexpected second subscribe.
                let ids: Vec<String> = line.held.keys().cloned().collect();
                if !ids.is_empty() {
                    let id = random.pick(&ids).clone();
                    line.ask(&id).await;
                }
            }
            1 if step % 4 == 0 => {
                *restarts += 1;
                line.connection = None;
                fixture.restart();
                line.connection = Some(fixture.engine().connect(&Caller::local()));
                let ids: Vec<String> = line.held.keys().cloned().collect();
                for id in ids {
                    line.ask(&id).await;
                }
            }
            _ => head = fixture.commit(&mut random).await,
        }
        for _ in 0..random.below(3) {
            line.take(head, &mut random, false).await;
            line.check(&fixture, &format!("seed {seed}, step {step}")).await;
        }
    }
    // From here on the connection is reliable: every client catches up and is correct.
    for _ in 0..2 {
        head = head.max(fixture.commit(&mut random).await);
        while line.connection().sent_up_to() < head {
            line.take(head, &mut random, true).await;
        }
    }
    let ids: Vec<String> = line.held.keys().cloned().collect();
    for id in ids {
        line.ask(&id).await;
    }
    while line.held.values().any(|held| held.waits) {
        line.take(head, &mut random, true).await;
    }
    assert!(line.held.values().all(|held| held.seq >= head), "every subscription is at the head");
    line.check(&fixture, &format!("seed {seed}, at the end")).await;
    line
}

/// A query that was never subscribed.
fn waiting(line: &LossyClient) -> Option<String> {
    line.held.iter().find(|(_, held)| !held.asked).map(|(id, _)| id.clone())
}
