//! When a statement that a caller wrote is interrupted: it runs too long, takes too many steps, or makes the
//! process hold too much. What SQLite itself bounds of it (a single value, a pattern) is set here as well.
//!
//! The one place for what a statement may cost, and why each bound is needed:
//! - **time**, because a reader is one of few, and the writer is the only one;
//! - **steps** of SQLite's virtual machine, because time says little on a busy machine: a recursive query
//!   without an end stops at the same place everywhere. The functions of [`crate::functions`] count their work as
//!   steps, and stop within a call;
//! - **memory**: what is sorted, grouped or materialised is held in memory (temporary tables must never touch
//!   a disk), and SQLite has no bound for that of one connection. So the process is looked at: where it
//!   has grown by more than a statement may hold since the statement began, the statement ends. Others
//!   that run at the time may have made it grow; they are few, and whoever is ended in error can ask again.
//!   The system tells on Linux only; elsewhere time alone bounds it;
//! - **a value**: between two looks some values are made, so none may be large;
//! - **a pattern** of LIKE and GLOB: each place of the text is held against it;
//! - **arguments** of one function: each path of `json_set` reads the whole document.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abide_schema::limits;
use rusqlite::Connection;
use rusqlite::limits::Limit;

use crate::error::StoreError;
use crate::functions;
use crate::reader::QueryLimits;

/// Steps of SQLite's virtual machine between two looks: between them a few values are made, each of which may
/// be as large as one may be.
const STEPS_BETWEEN_LOOKS: i32 = 200;

/// Between two looks at the memory, which ask the system.
const LOOK_AT_MEMORY: Duration = Duration::from_micros(200);

/// Bytes that a function reads or writes in the time of one step, about.
const BYTES_OF_A_STEP: u64 = 16;

/// Work of one function, in bytes, from which the clock is looked at.
const BYTES_BETWEEN_LOOKS: u64 = 16 << 10;

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
    /// The engine is closing.
    Closing,
}

/// What a statement may still take. The handler is set once; this is what it looks at.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<State>);

#[derive(Debug)]
struct State {
    epoch: Instant,
    /// Microseconds after the epoch; `u64::MAX` while nothing that is bounded runs.
    until_us: AtomicU64,
    /// The processor time of this thread at which the statement ends, in microseconds; `u64::MAX` where the time above
    /// is the bound by itself.
    cpu_until_us: AtomicU64,
    steps_left: AtomicI64,
    /// Steps that functions counted as their work, until they are asked for.
    worked: AtomicU64,
    /// Bytes by which the process may grow.
    memory: AtomicU64,
    /// When the memory was looked at last, in microseconds after the epoch.
    looked_us: AtomicU64,
    /// Bytes that it may hold; 0 until they are found out at the first look.
    most: AtomicU64,
    held: Memory,
    closing: AtomicBool,
    why: AtomicU8,
    value_bytes: usize,
}

impl Interrupt {
    /// Bounds what runs on a connection from now on, and replaces the functions whose calls could not be
    /// interrupted. Values have so many bytes at most, where nothing else is said.
    pub(crate) fn install(
        connection: &mut Connection,
        value_bytes: usize,
    ) -> rusqlite::Result<Interrupt> {
        set_value_bytes(connection, value_bytes)?;
        let bytes = i32::try_from(limits::PATTERN_BYTES).expect("the bound fits SQLite's own");
        connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, bytes)?;
        let arguments = i32::try_from(limits::FUNCTION_ARGUMENTS).expect("the bound is small");
        connection.set_limit(Limit::SQLITE_LIMIT_FUNCTION_ARG, arguments)?;
        let state = State {
            epoch: Instant::now(),
            until_us: AtomicU64::new(u64::MAX),
            cpu_until_us: AtomicU64::new(u64::MAX),
            steps_left: AtomicI64::new(0),
            worked: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            looked_us: AtomicU64::new(0),
            most: AtomicU64::new(0),
            held: Memory::new(),
            closing: AtomicBool::new(false),
            why: AtomicU8::new(Why::Nothing as u8),
            value_bytes,
        };
        let interrupt = Interrupt(Arc::new(state));
        let looked_at = interrupt.clone();
        let look = move || looked_at.0.look(i64::from(STEPS_BETWEEN_LOOKS));
        connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(look))?;
        functions::install(connection, &interrupt)?;
        Ok(interrupt)
    }

    /// Counts the work of a function, in bytes. False where the statement ends here.
    #[must_use]
    pub(crate) fn charge(&self, bytes: u64) -> bool {
        let state = &*self.0;
        let steps = bytes / BYTES_OF_A_STEP;
        state.worked.fetch_add(steps, Ordering::Relaxed);
        if state.until_us.load(Ordering::Relaxed) == u64::MAX {
            return true;
        }
        let steps = steps.cast_signed();
        if bytes >= BYTES_BETWEEN_LOOKS {
            return !state.look(steps);
        }
        if state.steps_left.fetch_sub(steps, Ordering::Relaxed) < steps {
            state.why.store(Why::Steps as u8, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The steps that functions counted since this was last asked.
    pub(crate) fn take_worked(&self) -> u64 {
        self.0.worked.swap(0, Ordering::Relaxed)
    }

    /// Bounds a statement, until what is returned is dropped.
    pub(crate) fn start(&self, limits: &QueryLimits) -> Running<'_> {
        self.open(limits);
        Running(self)
    }

    /// Bounds all statements together, until [`Interrupt::close`].
    pub(crate) fn open(&self, limits: &QueryLimits) {
        let state = &*self.0;
        let steps = i64::try_from(limits.steps).unwrap_or(i64::MAX);
        let now = state.epoch.elapsed();
        state.why.store(Why::Nothing as u8, Ordering::Relaxed);
        state.steps_left.store(steps, Ordering::Relaxed);
        state.memory.store(limits.memory_bytes as u64, Ordering::Relaxed);
        // Most statements end before the first look.
        state.looked_us.store(us(now), Ordering::Relaxed);
        state.most.store(0, Ordering::Relaxed);
        let cpu =
            if limits.of_processor { cpu_us().saturating_add(us(limits.time)) } else { u64::MAX };
        state.cpu_until_us.store(cpu, Ordering::Relaxed);
        state.until_us.store(us(now + limits.time), Ordering::Relaxed);
    }

    /// Bounds all statements of a connection together, with values of so many bytes at most, or nothing any more.
    pub(crate) fn allow(
        &self,
        connection: &Connection,
        limits: Option<&QueryLimits>,
    ) -> Result<(), StoreError> {
        let bytes = limits.map_or(self.0.value_bytes, |limits| limits.value_bytes);
        set_value_bytes(connection, bytes)?;
        match limits {
            Some(limits) => self.open(limits),
            None => self.close(),
        }
        Ok(())
    }

    /// Bounds nothing any more.
    pub(crate) fn close(&self) {
        self.0.until_us.store(u64::MAX, Ordering::Relaxed);
    }

    /// Ends what runs, and everything that is bounded from now on.
    pub(crate) fn end(&self) {
        self.0.closing.store(true, Ordering::Relaxed);
    }

    /// Why the last statement was interrupted.
    pub(crate) fn why(&self) -> Why {
        let why = self.0.why.load(Ordering::Relaxed);
        let all = [Why::Time, Why::Steps, Why::Memory, Why::Closing];
        all.into_iter().find(|known| *known as u8 == why).unwrap_or(Why::Nothing)
    }
}

impl State {
    /// Whether what runs is over a bound, after so many steps more.
    fn look(&self, steps: i64) -> bool {
        let until_us = self.until_us.load(Ordering::Relaxed);
        if until_us == u64::MAX {
            return false;
        }
        let now_us = us(self.epoch.elapsed());
        let over = if self.closing.load(Ordering::Relaxed) {
            Why::Closing
        } else if now_us >= until_us && self.is_out_of_time(now_us) {
            Why::Time
        } else if self.steps_left.fetch_sub(steps, Ordering::Relaxed) < steps {
            Why::Steps
        } else if self.holds_too_much(now_us) {
            Why::Memory
        } else {
            return false;
        };
        self.why.store(over as u8, Ordering::Relaxed);
        true
    }

    /// Whether the time that is over on the clock was this thread's own; where others had the processor, there is some
    /// left.
    fn is_out_of_time(&self, now_us: u64) -> bool {
        let cpu_until_us = self.cpu_until_us.load(Ordering::Relaxed);
        if cpu_until_us == u64::MAX {
            return true;
        }
        let left = cpu_until_us.saturating_sub(cpu_us());
        self.until_us.store(now_us + left, Ordering::Relaxed);
        left == 0
    }

    fn holds_too_much(&self, now_us: u64) -> bool {
        let memory = self.memory.load(Ordering::Relaxed);
        if memory == u64::MAX
            || now_us - self.looked_us.load(Ordering::Relaxed) < us(LOOK_AT_MEMORY)
        {
            return false;
        }
        self.looked_us.store(now_us, Ordering::Relaxed);
        let Some(held) = self.held.bytes() else { return false };
        match self.most.load(Ordering::Relaxed) {
            0 => {
                self.most.store(held + memory, Ordering::Relaxed);
                false
            }
            most => held > most,
        }
    }
}

/// A statement that runs within bounds.
#[derive(Debug)]
pub(crate) struct Running<'a>(&'a Interrupt);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Sets how long a value may be.
pub(crate) fn set_value_bytes(connection: &Connection, bytes: usize) -> rusqlite::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, bytes).map(drop)
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX - 1)
}

/// The processor time that this thread has had.
fn cpu_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let us = time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1_000);
    u64::try_from(us).unwrap_or(0)
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
