//! Limits of a statement that a caller wrote: time, steps and memory. SQLite's own limits (a single
//! value, a pattern) are set here as well.
//!
//! The reasons for each limit:
//! - **time**: readers are few, and there is only one writer;
//! - **steps** of SQLite's virtual machine: time is unreliable on a busy machine, but an endless
//!   recursive query stops at the same step everywhere. The functions of [`crate::functions`] count
//!   their work as steps, and stop within a call;
//! - **memory**: sorted, grouped or materialised rows are held in memory (temporary tables must
//!   never touch a disk), and SQLite has no memory limit for one connection. So the memory that
//!   SQLite holds for the thread is counted ([`crate::memory`]): the statement ends if it has grown
//!   by more than the limit since the statement began;
//! - **a value**: a few values are created between two checks, so none may be large;
//! - **a pattern** of LIKE and GLOB: it is compared at each position of the text;
//! - **arguments** of one function: each path of `json_set` reads the whole document.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abide_schema::limits;
use rusqlite::Connection;
use rusqlite::limits::Limit;

use crate::error::StoreError;
use crate::memory;

/// Steps of SQLite's virtual machine between two checks. A few values of the maximum size may be
/// created in between.
const STEPS_BETWEEN_CHECKS: i32 = 200;

/// Bytes that a function reads or writes in about the time of one step.
const BYTES_OF_A_STEP: u64 = 16;

/// Steps that a row counts which a restricted caller sees: to reach it by an index, to evaluate the conditions that make
/// it visible, and to join its owner.
const STEPS_OF_A_VISIBLE_ROW: u64 = 100;

/// Work of one function, in bytes, between two checks of the clock.
const BYTES_BETWEEN_CHECKS: u64 = 16 << 10;

/// The limits of a query.
#[derive(Clone, Copy, Debug)]
pub struct QueryLimits {
    /// Columns of a row to return, the first ones.
    pub columns: usize,
    /// Rows of its result.
    pub rows: usize,
    /// Bytes of its result.
    pub bytes: usize,
    /// The maximum run time.
    pub time: Duration,
    /// Whether `time` is processor time of the thread instead of wall-clock time.
    pub of_processor: bool,
    /// Steps of SQLite's virtual machine.
    pub steps: u64,
    /// Steps that [`VISIBLE_FUNCTION`](crate::VISIBLE_FUNCTION) counts for rows that a restricted caller sees. They do
    /// not depend on hidden rows.
    pub visible_steps: u64,
    /// Whether time and steps are those of one row, instead of the whole result: they start again after each row.
    pub of_each_row: bool,
    /// Bytes by which SQLite's memory may grow during the query; `usize::MAX` for no limit.
    pub memory_bytes: usize,
    /// Bytes of one value.
    pub value_bytes: usize,
}

/// Why a statement was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum InterruptReason {
    /// Not interrupted.
    Nothing,
    /// The time limit.
    Time,
    /// The step limit.
    Steps,
    /// The memory limit.
    Memory,
    /// The engine is shutting down.
    Closing,
    /// Its caller no longer waits for the result.
    Cancelled,
    /// Its snapshot prevents a checkpoint.
    Checkpoint,
}

/// The remaining allowance of a statement. The progress handler is installed once and reads this
/// state.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<Budgets>);

#[derive(Debug)]
struct Budgets {
    epoch: Instant,
    /// The deadline in microseconds after the epoch; `u64::MAX` while no limit is set.
    until_us: AtomicU64,
    /// The deadline in processor time of this thread, in microseconds; `u64::MAX` if only the wall
    /// clock counts.
    cpu_until_us: AtomicU64,
    steps_left: AtomicI64,
    visible_steps_left: AtomicI64,
    /// Steps for visible rows, until they are read.
    visible_worked: AtomicU64,
    /// Steps that functions counted, until they are read.
    worked: AtomicU64,
    /// Bytes by which the memory may grow.
    memory: AtomicU64,
    /// The memory at the start.
    held_before: AtomicI64,
    closing: AtomicBool,
    cancelled: AtomicBool,
    for_checkpoint: AtomicBool,
    reason: AtomicU8,
    value_bytes: usize,
}

impl Interrupt {
    /// Installs the limits on a connection. `value_bytes` is the default limit of a value. The replaced
    /// functions use them too: `functions::install` does both.
    pub(crate) fn install(
        connection: &mut Connection,
        value_bytes: usize,
    ) -> rusqlite::Result<Interrupt> {
        set_value_bytes(connection, value_bytes)?;
        let bytes = i32::try_from(limits::PATTERN_BYTES).expect("the limit fits SQLite's own");
        connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, bytes)?;
        let arguments = i32::try_from(limits::FUNCTION_ARGUMENTS).expect("the limit is small");
        connection.set_limit(Limit::SQLITE_LIMIT_FUNCTION_ARG, arguments)?;
        let state = Budgets {
            epoch: Instant::now(),
            until_us: AtomicU64::new(u64::MAX),
            cpu_until_us: AtomicU64::new(u64::MAX),
            steps_left: AtomicI64::new(0),
            visible_steps_left: AtomicI64::new(0),
            visible_worked: AtomicU64::new(0),
            worked: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            held_before: AtomicI64::new(0),
            closing: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            for_checkpoint: AtomicBool::new(false),
            reason: AtomicU8::new(InterruptReason::Nothing as u8),
            value_bytes,
        };
        let interrupt = Interrupt(Arc::new(state));
        let checked = interrupt.clone();
        connection.progress_handler(
            STEPS_BETWEEN_CHECKS,
            Some(move || checked.0.exceeds_limit(i64::from(STEPS_BETWEEN_CHECKS))),
        )?;
        Ok(interrupt)
    }

    /// Counts the work of a function, in bytes. Returns `false` if the statement must end here.
    #[must_use]
    pub(crate) fn charge(&self, bytes: u64) -> bool {
        let state = &*self.0;
        let steps = bytes / BYTES_OF_A_STEP;
        state.worked.fetch_add(steps, Ordering::Relaxed);
        if state.until_us.load(Ordering::Relaxed) == u64::MAX {
            return true;
        }
        let steps = steps.cast_signed();
        if bytes >= BYTES_BETWEEN_CHECKS {
            return !state.exceeds_limit(steps);
        }
        if state.steps_left.fetch_sub(steps, Ordering::Relaxed) < steps {
            state.reason.store(InterruptReason::Steps as u8, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Counts a row that a restricted caller sees, and bytes that its functions read of such rows.
    /// Returns `false` if the statement must end here.
    #[must_use]
    pub(crate) fn charge_visible(&self, rows: u64, bytes: u64) -> bool {
        let state = &*self.0;
        let steps = rows * STEPS_OF_A_VISIBLE_ROW + bytes / BYTES_OF_A_STEP;
        state.visible_worked.fetch_add(steps, Ordering::Relaxed);
        if state.until_us.load(Ordering::Relaxed) == u64::MAX {
            return true;
        }
        let steps = steps.cast_signed();
        if state.visible_steps_left.fetch_sub(steps, Ordering::Relaxed) < steps {
            state.reason.store(InterruptReason::Steps as u8, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The steps for visible rows since the last call.
    pub(crate) fn take_visible_worked(&self) -> u64 {
        self.0.visible_worked.swap(0, Ordering::Relaxed)
    }

    /// The steps that functions counted since the last call.
    pub(crate) fn take_worked(&self) -> u64 {
        self.0.worked.swap(0, Ordering::Relaxed)
    }

    /// Limits one statement, until the returned guard is dropped.
    pub(crate) fn start(&self, limits: &QueryLimits) -> RunningStatement<'_> {
        self.open(limits);
        RunningStatement(self)
    }

    /// Limits all statements together, until [`Interrupt::close`].
    pub(crate) fn open(&self, limits: &QueryLimits) {
        let state = &*self.0;
        state.reason.store(InterruptReason::Nothing as u8, Ordering::Relaxed);
        state.memory.store(limits.memory_bytes as u64, Ordering::Relaxed);
        state.held_before.store(memory::held(), Ordering::Relaxed);
        self.allow_time_and_steps(limits);
    }

    fn allow_time_and_steps(&self, limits: &QueryLimits) {
        let state = &*self.0;
        let steps = i64::try_from(limits.steps).unwrap_or(i64::MAX);
        let visible_steps = i64::try_from(limits.visible_steps).unwrap_or(i64::MAX);
        state.steps_left.store(steps, Ordering::Relaxed);
        state.visible_steps_left.store(visible_steps, Ordering::Relaxed);
        let now = state.epoch.elapsed();
        let cpu = if limits.of_processor {
            cpu_us().saturating_add(as_micros(limits.time))
        } else {
            u64::MAX
        };
        state.cpu_until_us.store(cpu, Ordering::Relaxed);
        state.until_us.store(as_micros(now.saturating_add(limits.time)), Ordering::Relaxed);
    }

    /// Limits all statements of a connection together, with this limit of a value, or lifts the
    /// limits.
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

    /// Lifts all limits.
    pub(crate) fn close(&self) {
        self.0.until_us.store(u64::MAX, Ordering::Relaxed);
    }

    /// Interrupts the running statement and all later limited ones.
    pub(crate) fn end(&self) {
        self.0.closing.store(true, Ordering::Relaxed);
    }

    /// Interrupts the running statement and all later limited ones while it is set.
    pub(crate) fn cancel(&self, cancelled: bool) {
        self.0.cancelled.store(cancelled, Ordering::Relaxed);
    }

    /// Like [`Interrupt::cancel`], for a checkpoint.
    pub(crate) fn interrupt_for_checkpoint(&self, interrupts: bool) {
        self.0.for_checkpoint.store(interrupts, Ordering::Relaxed);
    }

    /// Returns why the last statement was interrupted.
    pub(crate) fn reason(&self) -> InterruptReason {
        let reason = self.0.reason.load(Ordering::Relaxed);
        let all = [
            InterruptReason::Time,
            InterruptReason::Steps,
            InterruptReason::Memory,
            InterruptReason::Closing,
            InterruptReason::Cancelled,
            InterruptReason::Checkpoint,
        ];
        all.into_iter().find(|known| *known as u8 == reason).unwrap_or(InterruptReason::Nothing)
    }
}

impl Budgets {
    /// Counts so many more steps. Returns `true` if the statement must end here.
    fn exceeds_limit(&self, steps: i64) -> bool {
        let until_us = self.until_us.load(Ordering::Relaxed);
        if until_us == u64::MAX {
            return false;
        }
        let now_us = as_micros(self.epoch.elapsed());
        let over = if self.closing.load(Ordering::Relaxed) {
            InterruptReason::Closing
        } else if self.cancelled.load(Ordering::Relaxed) {
            InterruptReason::Cancelled
        } else if self.for_checkpoint.load(Ordering::Relaxed) {
            InterruptReason::Checkpoint
        } else if now_us >= until_us && self.is_out_of_time(now_us) {
            InterruptReason::Time
        } else if self.steps_left.fetch_sub(steps, Ordering::Relaxed) < steps {
            InterruptReason::Steps
        } else if self.holds_too_much() {
            InterruptReason::Memory
        } else {
            return false;
        };
        self.reason.store(over as u8, Ordering::Relaxed);
        true
    }

    /// Whether the thread used up its processor time. If other threads had the processor, some of
    /// it is left after the wall-clock deadline.
    fn is_out_of_time(&self, now_us: u64) -> bool {
        let cpu_until_us = self.cpu_until_us.load(Ordering::Relaxed);
        if cpu_until_us == u64::MAX {
            return true;
        }
        let left = cpu_until_us.saturating_sub(cpu_us());
        self.until_us.store(now_us + left, Ordering::Relaxed);
        left == 0
    }

    fn holds_too_much(&self) -> bool {
        let grown = memory::held() - self.held_before.load(Ordering::Relaxed);
        let grown = u64::try_from(grown).unwrap_or(0);
        grown > self.memory.load(Ordering::Relaxed)
    }
}

/// A statement that runs with limits.
#[derive(Debug)]
pub(crate) struct RunningStatement<'a>(&'a Interrupt);

impl RunningStatement<'_> {
    /// Allows the time and the steps of the limits from now on.
    pub(crate) fn restart(&self, limits: &QueryLimits) {
        self.0.allow_time_and_steps(limits);
    }
}

impl Drop for RunningStatement<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Runs a statement of the engine that reads undo images, which are longer than the values of other statements.
pub(crate) fn with_undo_images<T>(
    connection: &Connection,
    read: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let max = i32::try_from(limits::UNDO_IMAGES_BYTES).unwrap_or(i32::MAX);
    let former = connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, max)?;
    let done = read();
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, former)?;
    done
}

/// Sets the maximum size of a value.
pub(crate) fn set_value_bytes(connection: &Connection, bytes: usize) -> rusqlite::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, bytes).map(drop)
}

/// The processor time of this thread.
#[must_use]
pub fn processor_time() -> Duration {
    Duration::from_micros(cpu_us())
}

fn as_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX - 1)
}

/// The processor time of this thread.
fn cpu_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let us = time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1_000);
    u64::try_from(us).unwrap_or(0)
}
