//! Whole results that wait to be sent. Connections that request the same query at the same seq share one.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use abide_live::Binding;
use abide_schema::{Refusal, Row, Seq, limits};

use crate::subscriptions::buffers::{Account, Share, SharedBytes, size_of_rows};

/// The rows of a result. A connection holds them as a [`SharedResult`], which counts them.
#[derive(Debug)]
pub(crate) struct ResultRows {
    rows: Vec<Row>,
    /// `None` if they are small.
    bytes: Option<Arc<SharedBytes>>,
}

impl ResultRows {
    pub(crate) fn new(rows: Vec<Row>) -> Arc<ResultRows> {
        let size = size_of_rows(&rows);
        let bytes = (size >= limits::COUNTED_BYTES).then(|| SharedBytes::new(size));
        Arc::new(ResultRows { rows, bytes })
    }

    /// Returns the rows for one connection of a caller.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) fn share(
        self: &Arc<ResultRows>,
        account: &Account,
    ) -> Result<Arc<SharedResult>, Refusal> {
        let share = self.bytes.as_ref().map(|bytes| bytes.share(account)).transpose()?;
        Ok(Arc::new(SharedResult { rows: Arc::clone(self), share }))
    }
}

impl Deref for ResultRows {
    type Target = [Row];

    fn deref(&self) -> &[Row] {
        &self.rows
    }
}

/// The rows of a result for one connection. They count for its caller until it is dropped.
#[derive(Debug)]
pub(crate) struct SharedResult {
    rows: Arc<ResultRows>,
    share: Option<Share>,
}

impl SharedResult {
    /// Returns the counted bytes; zero if they are few.
    pub(crate) fn counted_bytes(&self) -> usize {
        self.share.as_ref().map_or(0, Share::bytes)
    }
}

impl Deref for SharedResult {
    type Target = [Row];

    fn deref(&self) -> &[Row] {
        &self.rows
    }
}

/// Pending results by query. Clients that subscribe to the same query at one seq share its rows, and the query runs
/// once.
#[derive(Debug, Default)]
pub(crate) struct ResultCache(Mutex<HashMap<Binding, CachedResult>>);

/// The shared results, for a connection of one caller.
#[derive(Clone, Debug)]
pub(crate) struct SharedResults {
    pub(crate) cache: Arc<ResultCache>,
    pub(crate) account: Account,
}

impl SharedResults {
    /// Returns the result of a query at a seq, if another connection has it.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) fn find(
        &self,
        binding: &Binding,
        seq: Seq,
    ) -> Result<Option<Arc<SharedResult>>, Refusal> {
        let found = self.lock().get(binding).and_then(|cached| cached.at(seq));
        found.map(|rows| rows.share(&self.account)).transpose()
    }

    /// Counts a result, and shares it. Small results are cheaper to read again than to keep.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) fn keep(
        &self,
        binding: &Binding,
        seq: Seq,
        rows: Vec<Row>,
    ) -> Result<Arc<SharedResult>, Refusal> {
        let rows = ResultRows::new(rows);
        if rows.bytes.is_none() {
            return rows.share(&self.account);
        }
        let mut cache = self.lock();
        if let Some(other) = cache.get(binding).and_then(|cached| cached.at(seq)) {
            return other.share(&self.account);
        }
        let result = rows.share(&self.account)?;
        cache.retain(|_, cached| cached.rows.strong_count() > 0);
        cache.insert(binding.clone(), CachedResult { seq, rows: Arc::downgrade(&rows) });
        Ok(result)
    }

    /// Counts a result that is not shared.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) fn keep_unshared(&self, rows: Vec<Row>) -> Result<Arc<SharedResult>, Refusal> {
        ResultRows::new(rows).share(&self.account)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Binding, CachedResult>> {
        self.cache.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A result while a connection has it.
#[derive(Debug)]
struct CachedResult {
    seq: Seq,
    rows: Weak<ResultRows>,
}

impl CachedResult {
    /// Returns the rows if they are those of this seq.
    fn at(&self, seq: Seq) -> Option<Arc<ResultRows>> {
        if self.seq == seq { self.rows.upgrade() } else { None }
    }
}
