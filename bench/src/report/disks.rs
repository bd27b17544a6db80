//! The state of the disk in which a run was made. A virtual disk syncs fast from a cache, and for some time after much
//! was written ten times slower. Figures of both states do not compare.

use crate::record::{ReadsRecord, Record};

/// The state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    Quiet,
    Busy,
}

/// The time of a sync in microseconds from which a disk is busy, before a run.
const BUSY_US: f64 = 500.0;
/// During a run, when a probe waits for a processor and for other syncs, too.
const BUSY_DURING_US: f64 = 1_500.0;

impl Disk {
    /// The states of the runs.
    pub(super) fn list_in(records: &[Record]) -> Vec<Disk> {
        [Disk::Quiet, Disk::Busy]
            .into_iter()
            .filter(|disk| records.iter().any(|record| Disk::from_record(record) == Some(*disk)))
            .collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Disk::Quiet => "quiet disk",
            Disk::Busy => "busy disk",
        }
    }

    /// The runs in this state.
    pub(super) fn records(self, records: &[Record]) -> Vec<Record> {
        records.iter().filter(|record| Disk::from_record(record) == Some(self)).cloned().collect()
    }

    pub(super) fn from_reads(run: &ReadsRecord) -> Disk {
        Disk::from_probes(run.probe_us, run.probe_during_us)
    }

    fn from_record(record: &Record) -> Option<Disk> {
        match record {
            Record::Machine { .. } => None,
            Record::Turns(run) => Some(Disk::from_probes(run.probe_us, run.probe_during_us)),
            Record::Reads(run) => Some(Disk::from_reads(run)),
            Record::Delta(run) => Some(Disk::from_probes(run.probe_us, None)),
            Record::Open(run) => Some(Disk::from_probes(run.probe_us, None)),
        }
    }

    fn from_probes(before_us: f64, during_us: Option<f64>) -> Disk {
        let is_busy = before_us >= BUSY_US || during_us.is_some_and(|us| us >= BUSY_DURING_US);
        if is_busy { Disk::Busy } else { Disk::Quiet }
    }
}
