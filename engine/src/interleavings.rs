//! What threads share, in every order that a model checker can think of (`cargo xtask interleave`): the
//! queue, and the outbox of a client that does not keep up. Every lock is a place where another thread may
//! go on.

use std::sync::Arc;

use abide_live::Delta;
use abide_schema::{Seq, Value, limits};
use shuttle::sync::Mutex;
use shuttle::thread;

use crate::hub::{Frame, Mail, Outbox, SharedDelta, SubscriptionKey};
use crate::metrics::Metrics;
use crate::queue::{Queue, Rejected};

/// Orders of a test.
const ORDERS: usize = 20_000;

/// Two who give and wait for room, one who gives and does not wait, one taker, and an end: everything that
/// was taken in comes out once, each giver's in its order, and nobody waits for ever.
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
            let hasty = thread::spawn(move || match hasty.push((3, 0), 1) {
                Ok(()) => 1,
                Err(Rejected::Full(_)) => 0,
                Err(Rejected::Closed(_)) => panic!("it is closed when all have given"),
            });
            let from = Arc::clone(&queue);
            let taker = thread::spawn(move || {
                let (mut all, mut taken) = (Vec::new(), Vec::new());
                loop {
                    from.take(2, &mut taken);
                    assert!(taken.len() <= 2, "no more than was asked for");
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
            let of = |name: u32| all.iter().filter(move |item| item.0 == name).map(|item| item.1);
            assert_eq!(of(1).collect::<Vec<_>>(), [0, 1, 2]);
            assert_eq!(of(2).collect::<Vec<_>>(), [0, 1, 2]);
            assert_eq!(of(3).count(), hasty);
            assert_eq!(queue.weight(), 0);
        },
        ORDERS,
    );
}

/// A client reads while frames come faster than its outbox holds. Where frames were dropped it reads the
/// state and goes on from there; what it holds at the end is everything, in order, and never more than
/// an outbox waits for it.
#[test]
fn a_slow_client_is_caught_up() {
    const COMMITS: i64 = 4;
    shuttle::check_random(
        || {
            let (outbox, metrics) = (Arc::new(Outbox::default()), Arc::new(Metrics::default()));
            // The last commit that can be read.
            let state = Arc::new(Mutex::new(0_i64));
            let (to, committed) = (Arc::clone(&outbox), Arc::clone(&state));
            let publisher = thread::spawn(move || {
                for seq in 1..=COMMITS {
                    *committed.lock().expect("nobody panics") = seq;
                    to.push(heavy_frame(Seq(seq)), &metrics);
                }
            });
            let mut at = 0;
            while at < COMMITS {
                match outbox.take() {
                    Mail::Frame(frame) if frame.to.0 <= at => {}
                    Mail::Frame(frame) => {
                        assert_eq!(frame.to.0, at + 1, "a gap");
                        at = frame.to.0;
                    }
                    Mail::Lagging => {
                        let seen = *state.lock().expect("nobody panics");
                        assert!(seen >= at, "a state of before");
                        at = seen;
                    }
                    Mail::Empty => thread::yield_now(),
                    Mail::Ended(why) => panic!("{why}"),
                }
            }
            publisher.join().expect("it publishes");
        },
        ORDERS,
    );
}

/// Two of them are more than an outbox holds.
fn heavy_frame(to: Seq) -> Frame {
    let text = Value::from("x".repeat(limits::OUTBOX_BYTES * 3 / 5));
    let mut delta = Delta::default();
    delta.inserts.push(vec![text].into());
    Frame { to, changes: vec![(SubscriptionKey(0), SharedDelta::new(Ok(delta)))] }
}
