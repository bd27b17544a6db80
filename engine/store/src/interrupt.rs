//! When a stranger's statement is interrupted: it runs too long, takes too many steps, or makes the process
//! hold too much. What SQLite itself bounds of it (a single value, a pattern) is set here as well.
//!
//! The one place for what a statement may cost, and why each bound is needed:
//! - **time**, because a reader is one of few;
//! - **steps** of SQLite's virtual machine, because time says little on a busy machine: a recursive query
//!   without an end stops at the same place everywhere;
//! - **memory**: what is sorted, grouped or materialised is held in memory (temporary tables must never touch
//!   a disk), and SQLite has no bound for that of one connection. So the process is looked at: where it
//!   has grown by more than a statement may hold since the statement began, the statement ends. Others
//!   that run at the time may have made it grow; they are few, and whoever is ended in error can ask again.
//!   The system tells on Linux only; elsewhere time alone bounds it;
//! - **a value**: between two looks some values are made, so none may be large;
//! - **a pattern** of LIKE and GLOB: each place of the text is held against it within a single step.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abide_schema::limits;
use rusqlite::Connection;
use rusqlite::limits::Limit;

use crate::reader::QueryLimits;

/// Steps of SQLite's virtual machine between two looks: between them a few values are made, each of which may
/// be as large as one may be.
const STEPS_BETWEEN_LOOKS: i32 = 200;

/// Between two looks at the memory, which ask the system.
const LOOK_AT_MEMORY: Duration = Duration::from_micros(200);

/// Why a statement was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Why {
    /// It was not.
    Nothing,
    /// It ran too long.
    Time,
    /// It took too many steps.
    Steps,
    /// The process came to hold too much.
    Memory,
}

/// What a statement may still take. The handler is set once; this is what it looks at.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<State>);

#[derive(Debug)]
struct State {
    epoch: Instant,
    /// Microseconds after the epoch; `u64::MAX` while nothing of a stranger's runs.
    until_us: AtomicU64,
    steps_left: AtomicI64,
    /// Bytes by which the process may grow.
    memory: AtomicU64,
    /// When the memory was looked at last, in microseconds after the epoch.
    looked_us: AtomicU64,
    /// Bytes that it may hold; 0 until they are found out at the first look.
    most: AtomicU64,
    held: Memory,
    why: AtomicU8,
}

impl Interrupt {
    /// Bounds what runs on a connection from now on.
    pub(crate) fn install(connection: &mut Connection) -> rusqlite::Result<Interrupt> {
        let bytes = i32::try_from(limits::QUERY_VALUE_BYTES).expect("the bound fits SQLite's own");
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, bytes)?;
        let bytes = i32::try_from(limits::PATTERN_BYTES).expect("the bound fits SQLite's own");
        connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, bytes)?;
        let state = State {
            epoch: Instant::now(),
            until_us: AtomicU64::new(u64::MAX),
            steps_left: AtomicI64::new(0),
            memory: AtomicU64::new(0),
            looked_us: AtomicU64::new(0),
            most: AtomicU64::new(0),
            held: Memory::new(),
            why: AtomicU8::new(Why::Nothing as u8),
        };
        let interrupt = Interrupt(Arc::new(state));
        let looked_at = interrupt.clone();
        connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(move || looked_at.look()))?;
        Ok(interrupt)
    }

    /// Whether what runs is over a bound.
    fn look(&self) -> bool {
        let state = &*self.0;
        let until_us = state.until_us.load(Ordering::Relaxed);
        if until_us == u64::MAX {
            return false;
        }
        let now_us = us(state.epoch.elapsed());
        let steps = i64::from(STEPS_BETWEEN_LOOKS);
        let over = if now_us >= until_us {
            Why::Time
        } else if state.steps_left.fetch_sub(steps, Ordering::Relaxed) < steps {
            Why::Steps
        } else if state.holds_too_much(now_us) {
            Why::Memory
        } else {
            return false;
        };
        state.why.store(over as u8, Ordering::Relaxed);
        true
    }

    /// Bounds a statement, until what is returned is dropped.
    pub(crate) fn start(&self, limits: &QueryLimits) -> Running<'_> {
        let state = &*self.0;
        let steps = i64::try_from(limits.steps).unwrap_or(i64::MAX);
        let now = state.epoch.elapsed();
        state.why.store(Why::Nothing as u8, Ordering::Relaxed);
        state.steps_left.store(steps, Ordering::Relaxed);
        state.memory.store(limits.memory_bytes as u64, Ordering::Relaxed);
        // Most statements end before the first look.
        state.looked_us.store(us(now), Ordering::Relaxed);
        state.most.store(0, Ordering::Relaxed);
        state.until_us.store(us(now + limits.time), Ordering::Relaxed);
        Running(self)
    }

    /// Why the last statement was interrupted.
    pub(crate) fn why(&self) -> Why {
        match self.0.why.load(Ordering::Relaxed) {
            why if why == Why::Time as u8 => Why::Time,
            why if why == Why::Steps as u8 => Why::Steps,
            why if why == Why::Memory as u8 => Why::Memory,
            _ => Why::Nothing,
        }
    }
}

impl State {
    fn holds_too_much(&self, now_us: u64) -> bool {
        if now_us - self.looked_us.load(Ordering::Relaxed) < us(LOOK_AT_MEMORY) {
            return false;
        }
        self.looked_us.store(now_us, Ordering::Relaxed);
        let Some(held) = self.held.bytes() else { return false };
        match self.most.load(Ordering::Relaxed) {
            0 => {
                self.most.store(held + self.memory.load(Ordering::Relaxed), Ordering::Relaxed);
                false
            }
            most => held > most,
        }
    }
}

/// A statement that runs within bounds.
pub(crate) struct Running<'a>(&'a Interrupt);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.0.until_us.store(u64::MAX, Ordering::Relaxed);
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX - 1)
}

/// What this process holds in memory, as Linux tells it (proc_pid_statm(5)).
#[derive(Debug)]
struct Memory {
    file: Option<File>,
    page_bytes: u64,
}

impl Memory {
    fn new() -> Memory {
        let file = File::open("/proc/self/statm").ok();
        Memory { file, page_bytes: rustix::param::page_size() as u64 }
    }

    fn bytes(&self) -> Option<u64> {
        let mut file = self.file.as_ref()?;
        let mut text = [0; 64];
        file.rewind().ok()?;
        let length = file.read(&mut text).ok()?;
        let text = std::str::from_utf8(&text[..length]).ok()?;
        // The second number: pages in memory.
        let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
        Some(pages * self.page_bytes)
    }
}
