//! One subscription of a connection: the client's state of its result, and its updates.

use std::sync::Arc;

use abide_live::Binding;
use abide_schema::wire::Opening;
use abide_schema::{Checksum, Refusal, Row, Seq, Value, limits};
use serde_json::{Map, Value as JsonValue};

use super::Wanted;
use super::anew::Was;
use super::stale::Stale;
use super::update::{Change, Ready, SnapshotPart, Update};
use crate::hub::HeldDelta;
use crate::rerun::Version;
use crate::resume::Resumed;
use crate::shared_results::SharedResult;
use crate::writer::Listening;

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) id: Arc<str>,
    pub(super) binding: Binding,
    /// The original query, for replanning.
    pub(super) sql: String,
    pub(super) params: Map<String, JsonValue>,
    /// The client's state, if it is of older policies.
    pub(super) was: Option<Was>,
    /// Whether its statements are included.
    explain: bool,
    /// What its first answer contains besides rows.
    pub(super) opening: Arc<Opening>,
    /// The client received its result up to here.
    pub(super) seq: Seq,
    /// Checksum of the client's rows, if requested.
    checksum: Option<Checksum>,
    /// Set while its deltas are too expensive.
    pub(super) stale: Option<Stale>,
    /// Its result as it was told last, if it was told by a rerun.
    pub(super) held: Option<Version>,
    pub(super) listening: Listening,
}

impl Subscription {
    /// A subscription before its first answer.
    pub(super) fn new(wanted: &Wanted<'_>, binding: Binding, listening: Listening) -> Subscription {
        let bounded = binding.is_bounded();
        let mut subscription = Subscription {
            id: wanted.id.into(),
            // Only restricted callers' queries are ever replanned.
            sql: if bounded { wanted.sql.to_owned() } else { String::new() },
            params: if bounded { wanted.params.clone() } else { Map::new() },
            was: None,
            // The statements of a restricted query reveal the policies.
            explain: wanted.explain && !bounded,
            opening: binding.opening(),
            binding,
            seq: Seq::ZERO,
            checksum: wanted.checksum.then(Checksum::default),
            stale: None,
            held: None,
            listening,
        };
        subscription.opening = subscription.opening_of();
        subscription
    }

    /// What its first answer contains besides rows.
    pub(super) fn opening_of(&self) -> Arc<Opening> {
        let opening = self.binding.opening();
        if !self.explain {
            return opening;
        }
        Arc::new(Opening { plan: self.binding.plan(true), ..Opening::clone(&opening) })
    }

    /// The first answer. A delta in it starts where all subscriptions of the connection are, this one
    /// included: the client received everything up to `told`.
    pub(super) fn answer(&mut self, resumed: Resumed, told: Seq) -> Vec<Ready> {
        match resumed {
            Resumed::Snapshot { seq, rows, refetch } => self.snapshot(seq, rows, refetch),
            Resumed::Past { past, rows, seq, delta } => {
                let mut answer = self.snapshot(past, rows, None);
                let change = self.change(seq, delta);
                answer.push(frame(past, seq, change, told));
                answer
            }
            Resumed::Delta { from, seq, delta, checksum } => {
                let opening = Some(Arc::clone(&self.opening));
                let change = self.change(seq, delta);
                self.checksum = checksum;
                // Included even without changes: it is the answer.
                vec![frame(from.min(seq), seq, Change { checksum, opening, ..change }, told)]
            }
        }
    }

    /// Its whole result, in parts; with a reason if it replaces earlier rows.
    pub(super) fn snapshot(
        &mut self,
        seq: Seq,
        result: Arc<SharedResult>,
        refetch: Option<Refusal>,
    ) -> Vec<Ready> {
        (self.seq, self.held) = (seq, None);
        self.checksum = self.checksum.map(|_| Checksum::of(result.iter()));
        let (mut parts, reset) = (Vec::new(), refetch.is_some());
        if let Some(refusal) = refetch {
            let update = Update::Error { id: Arc::clone(&self.id), refusal };
            parts.push(Ready::only_for(&self.id, update));
        }
        let mut rest = &result[..];
        loop {
            let (part, after) = rest.split_at(part_of(rest));
            let more = !after.is_empty();
            rest = after;
            let part = SnapshotPart {
                id: Arc::clone(&self.id),
                seq,
                opening: Arc::clone(&self.opening),
                rows: part.to_vec(),
                more,
                reset,
                checksum: self.checksum.filter(|_| !more),
                result: Arc::clone(&result),
            };
            parts.push(Ready::only_for(&self.id, Update::Snapshot(part)));
            if !more {
                return parts;
            }
        }
    }

    /// That it may have changed, nobody knows yet how.
    pub(super) fn unknown(&self, delta: HeldDelta) -> Change {
        Change { id: Arc::clone(&self.id), delta, checksum: None, opening: None }
    }

    /// A change of its result, which leads up to a seq.
    pub(super) fn change(&mut self, to: Seq, delta: HeldDelta) -> Change {
        (self.seq, self.held) = (to, None);
        self.checksum = self.checksum.map(|sum| sum.plus(delta.checksum_change()));
        Change { id: Arc::clone(&self.id), delta, checksum: self.checksum, opening: None }
    }
}

/// Number of rows in the next part.
fn part_of(rows: &[Row]) -> usize {
    let mut bytes = 0;
    let fits = |row: &&Row| {
        bytes += row.iter().map(Value::size).sum::<usize>();
        bytes <= limits::SNAPSHOT_PART_BYTES
    };
    let count = rows.iter().take(limits::SNAPSHOT_PART_ROWS).take_while(fits).count();
    count.max(1).min(rows.len())
}

/// A frame for one subscription, on a connection that received everything up to a seq.
fn frame(from: Seq, to: Seq, change: Change, told: Seq) -> Ready {
    let update = Update::Delta { from: from.min(told), to, changes: vec![change] };
    Ready::answer(update, told.min(to))
}
