//! The listener process: WebSockets that all watch one row, and calls on the first of them that change it. Both
//! ends of a measurement use the same clock.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::{JoinSet, LocalSet};

use super::process::raise_open_files;
use super::socket::{self, Reader, Writer};

/// Options of the listener process.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The server's address.
    #[arg(long)]
    address: SocketAddr,
    /// Number of WebSockets.
    #[arg(long)]
    listeners: usize,
    /// Number of sequential calls, each sent when all listeners have the previous delta.
    #[arg(long, default_value_t = 0)]
    calls: usize,
    /// Or the duration in seconds.
    #[arg(long, default_value_t = 0.0)]
    seconds: f64,
    /// Maximum number of calls in flight.
    #[arg(long, default_value_t = 1)]
    in_flight: usize,
    /// Calls per second, evenly spaced; 0: as fast as they are answered.
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
}

/// Number of sockets that are opened concurrently.
const OPENED_AT_A_TIME: usize = 64;
const SUBSCRIBE: &str = concat!(
    r#"{"op":"subscribe","id":"q","params":{"id":"c"},"#,
    r#""sql":"SELECT id, value FROM counters WHERE id = :id"}"#,
);
const CALL: &str = r#"{"op":"call","id":"c","reducer":"count","args":{"id":"c"}}"#;

/// The messages that the sockets have received.
struct Received {
    /// Number of deltas on all sockets.
    deltas: Cell<usize>,
    /// The time when that number was reached.
    at: Cell<(usize, Instant)>,
    /// Number of answers to calls, and the seq of the last one.
    answers: Arc<AtomicUsize>,
    last_answer: Cell<(i64, Instant)>,
    /// The seq up to which each socket has received deltas.
    output: RefCell<Vec<i64>>,
    changed: Notify,
}

/// Connects, subscribes, sends calls, and prints the results as JSON.
pub(crate) fn run(options: &Options) {
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    LocalSet::new().block_on(&runtime.expect("a tokio runtime"), async {
        let received = Rc::new(Received {
            deltas: Cell::new(0),
            at: Cell::new((usize::MAX, Instant::now())),
            answers: Arc::default(),
            last_answer: Cell::new((0, Instant::now())),
            output: RefCell::new(vec![0; options.listeners]),
            changed: Notify::new(),
        });
        let mut writers = Vec::with_capacity(options.listeners);
        let mut opening = JoinSet::new();
        for number in 0..options.listeners {
            if opening.len() >= OPENED_AT_A_TIME {
                writers.extend(opening.join_next().await);
            }
            opening.spawn_local(begin(options.address, number, Rc::clone(&received)));
        }
        writers.extend(opening.join_all().await.into_iter().map(Ok));
        let mut writers: Vec<(usize, Writer)> =
            writers.into_iter().collect::<Result<_, _>>().expect("every socket subscribes");
        writers.sort_by_key(|(number, _)| *number);
        let caller = &mut writers[0].1;
        if options.calls > 0 {
            call_one_by_one(options, caller, &received).await;
        } else {
            call_in_flight(options, caller, &received).await;
        }
    });
}

/// Connects, subscribes, and starts a task that reads.
async fn begin(address: SocketAddr, number: usize, received: Rc<Received>) -> (usize, Writer) {
    let (mut reader, mut writer) = socket::connect(address).await;
    writer.send(SUBSCRIBE, 1).await;
    let snapshot = reader.next().await;
    let prefix = br#"{"op":"snapshot","id":"q","seq":"#;
    let seq = snapshot.strip_prefix(prefix).map(|rest| leading_number(rest).0);
    received.output.borrow_mut()[number] =
        seq.unwrap_or_else(|| panic!("no snapshot: {}", String::from_utf8_lossy(snapshot)));
    tokio::task::spawn_local(listen(reader, number, received));
    (number, writer)
}

async fn listen(mut reader: Reader, number: usize, received: Rc<Received>) {
    loop {
        while let Some(message) = reader.buffered() {
            received.handle_message(number, message);
        }
        received.changed.notify_one();
        reader.fill().await;
    }
}

impl Received {
    fn handle_message(&self, number: usize, message: &[u8]) {
        if let Some(rest) = message.strip_prefix(br#"{"op":"delta","from":"#) {
            let (from, rest) = leading_number(rest);
            let (to, _) = leading_number(rest.strip_prefix(br#","to":"#).expect("a delta's form"));
            let before = std::mem::replace(&mut self.output.borrow_mut()[number], to);
            assert!(from <= before && before < to, "received up to {before}, then {from} to {to}");
            let deltas = self.deltas.get() + 1;
            self.deltas.set(deltas);
            if deltas == self.at.get().0 {
                self.at.set((deltas, Instant::now()));
            }
        } else if let Some(rest) = message.strip_prefix(br#"{"op":"result","id":"c","seq":"#) {
            self.answers.fetch_add(1, Ordering::Relaxed);
            self.last_answer.set((leading_number(rest).0, Instant::now()));
        } else if let Some(rest) = message.strip_prefix(br#"{"op":"progress","seq":"#) {
            self.output.borrow_mut()[number] = leading_number(rest).0;
        } else {
            panic!("unexpected message: {}", String::from_utf8_lossy(message));
        }
    }

    fn answer_count(&self) -> usize {
        self.answers.load(Ordering::Relaxed)
    }

    async fn wait_until(&self, reached: impl Fn(&Received) -> bool) {
        while !reached(self) {
            self.changed.notified().await;
        }
    }

    fn has_everyone_received(&self, seq: i64) -> bool {
        self.output.borrow().iter().all(|output| *output >= seq)
    }
}

/// Parses the number at the start of a text. Returns it with the rest.
fn leading_number(text: &[u8]) -> (i64, &[u8]) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    (number.iter().fold(0, |number, digit| 10 * number + i64::from(digit - b'0')), rest)
}

async fn call_one_by_one(options: &Options, caller: &mut Writer, received: &Received) {
    let mut answer_ms = Vec::new();
    let mut last_ms = Vec::new();
    let warm_up = options.calls / 10 + 1;
    for call in 0..warm_up + options.calls {
        let answers = received.answer_count() + 1;
        let deltas = received.deltas.get() + options.listeners;
        received.at.set((deltas, Instant::now()));
        let started = Instant::now();
        caller.send(CALL, 1).await;
        received
            .wait_until(|received| {
                received.answer_count() == answers && received.deltas.get() == deltas
            })
            .await;
        if call >= warm_up {
            let ms = |at: Instant| at.duration_since(started).as_secs_f64() * 1e3;
            answer_ms.push(ms(received.last_answer.get().1));
            last_ms.push(ms(received.at.get().1));
        }
    }
    println!("{}", json!({"answer_ms": answer_ms, "last_ms": last_ms}));
}

async fn call_in_flight(options: &Options, caller: &mut Writer, received: &Received) {
    let started = Instant::now();
    let ends = started + Duration::from_secs_f64(options.seconds);
    let called = if options.rate > 0.0 {
        call_evenly(options, caller, received, ends).await
    } else {
        call_when_answered(options, caller, received, ends).await
    };
    received.wait_until(|received| received.answer_count() == called).await;
    let called_s = started.elapsed().as_secs_f64();
    let last = received.last_answer.get().0;
    received.wait_until(|received| received.has_everyone_received(last)).await;
    let seconds = started.elapsed().as_secs_f64();
    let deltas = received.deltas.get();
    let found =
        json!({"calls": called, "called_s": called_s, "deltas": deltas, "seconds": seconds});
    println!("{found}");
}

/// Sends a call whenever fewer than the maximum are in flight. Returns the number of calls.
async fn call_when_answered(
    options: &Options,
    caller: &mut Writer,
    received: &Received,
    ends: Instant,
) -> usize {
    let mut called = 0;
    while Instant::now() < ends {
        let room = options.in_flight - (called - received.answer_count());
        if room > 0 {
            caller.send(CALL, room).await;
            called += room;
        }
        received.changed.notified().await;
    }
    called
}

/// Sends calls at a rate, while fewer than the maximum are in flight. Returns the number of calls.
async fn call_evenly(
    options: &Options,
    caller: &mut Writer,
    received: &Received,
    ends: Instant,
) -> usize {
    let mut writer = caller.for_thread();
    let answers = Arc::clone(&received.answers);
    let in_flight = options.in_flight;
    let period = Duration::from_secs_f64(1.0 / options.rate);
    let call = move || {
        let mut called = 0;
        let mut due = Instant::now();
        while due < ends {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if called - answers.load(Ordering::Relaxed) < in_flight {
                writer.send(CALL);
                called += 1;
            }
            due += period;
        }
        called
    };
    tokio::task::spawn_blocking(call).await.expect("the caller's thread")
}
