//! Regression tests for bugs found by crashes and faults.

use std::sync::Arc;

use abide_engine::{SubscribeRequest, Update, verify_file};
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Seq};
use abide_sim::disk::{Fault, Kind, Machine};
use abide_sim::rig::{Rig, SimRequest, VirtualClock, folder};
use serde_json::json;

fn create(id: &str) -> SimRequest {
    let args = json!({"agent": "support", "id": id});
    let calls = vec![BatchCall { reducer: "create_session".to_owned(), args }];
    SimRequest { caller: "app", calls, request_id: format!("make {id}") }
}

fn numbered(nth: u64) -> SimRequest {
    create(&format!("s{nth}"))
}

/// After a failed sync, the system considers the WAL's pages written and may read them back from
/// the disk. The engine refused further calls; but closing it, or the next run of the checkpointer,
/// copied the WAL into the file, including pages with other content than was written. The file was
/// damaged, far before the last acknowledged call.
#[test]
fn nothing_is_checkpointed_after_a_failed_sync() {
    for (seed, closes) in (0..12).flat_map(|seed| [(seed, true), (seed, false)]) {
        let folder = folder();
        let clock = VirtualClock::new();
        let machine = Arc::new(Machine::new(Fault::None, seed));
        let rig = Rig::open(folder.path(), &machine, &clock).unwrap();
        for nth in 0..20 {
            rig.run(create(&format!("s{nth}")).send(rig.engine())).unwrap();
        }
        machine.revive(Fault::Fail { kind: Kind::Sync, nth: 1, lasting: false });
        let refusal = rig.run(create("late").send(rig.engine())).unwrap_err();
        assert_eq!(refusal.code, Code::EngineFailed);
        rig.checkpoint();
        if closes {
            rig.close();
        } else {
            drop(rig);
        }
        machine.revive(Fault::None);
        let rig = Rig::open(folder.path(), &machine, &clock).unwrap();
        let head = rig.engine().durable_seq();
        assert!(head >= Seq(20), "seed {seed}: {head} is left of 20");
        rig.close();
        assert_eq!(
            verify_file(&folder.path().join("abide.db"), abide_reducers::modules(), &mut |_| {})
                .unwrap()
                .events,
            head
        );
    }
}

/// A server with a failed sync was restarted on the same running system. It read the WAL, synced
/// it, which the system reported as successful because it considered those pages clean, and
/// acknowledged new calls after it. When the power failed, both were lost.
#[test]
fn the_wal_of_a_failed_sync_is_rewritten_at_restart() {
    for seed in 0..24 {
        let folder_before = folder();
        let folder_after = folder();
        let clock = VirtualClock::new();
        let machine = Arc::new(Machine::new(Fault::None, seed));
        let rig = Rig::open(folder_before.path(), &machine, &clock).unwrap();
        rig.run(create("s1").send(rig.engine())).unwrap();
        machine.revive(Fault::Fail { kind: Kind::Sync, nth: 1, lasting: false });
        rig.run(create("s2").send(rig.engine())).unwrap_err();
        machine.cut_power(); // Simulates a kill.
        drop(rig);
        machine.revive(Fault::None);
        let rig = Rig::open(folder_before.path(), &machine, &clock).unwrap();
        let output = rig.run(create("s3").send(rig.engine())).unwrap();
        machine.cut_power();
        drop(rig);
        machine.restart(folder_after.path(), seed).unwrap();
        let machine = Arc::new(Machine::new(Fault::None, seed));
        let rig = Rig::open(folder_after.path(), &machine, &clock).unwrap();
        let again = rig.run(create("s3").send(rig.engine())).unwrap();
        assert_eq!((again.results, again.duplicate), (output.results, true), "seed {seed}");
    }
}

/// The disk failed while a new file was created. Only a writable connection can roll back the
/// journal that SQLite left next to it; the identification of the file was read-only, and failed
/// permanently with "cannot be written" or "is not a SQLite database".
#[test]
fn a_partly_created_file_is_completed() {
    for seed in 0..400 {
        let before = folder();
        let after = folder();
        let clock = VirtualClock::new();
        let fault = Fault::Fail { kind: Kind::Sync, nth: 1 + seed % 5, lasting: true };
        let machine = Arc::new(Machine::new(fault, seed));
        Rig::open(before.path(), &machine, &clock).unwrap_err();
        machine.revive(Fault::Crash { step: 1 + seed / 5 % 40 });
        let opened = Rig::open(before.path(), &machine, &clock).map(drop);
        assert!(opened.is_ok() || machine.is_down(), "seed {seed}: {opened:?}");
        machine.restart(after.path(), seed).unwrap();
        let machine = Arc::new(Machine::new(Fault::None, seed));
        let rig = Rig::open(after.path(), &machine, &clock)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        rig.run(create("s1").send(rig.engine())).unwrap();
    }
}

/// The writer, not the sync thread, detected the broken disk. Further calls were refused, but
/// subscribers received nothing and waited forever.
#[test]
fn subscribers_learn_that_the_disk_broke() {
    for kind in [Kind::Write, Kind::Sync] {
        let folder = folder();
        let clock = VirtualClock::new();
        let machine = Arc::new(Machine::new(Fault::None, 1));
        let rig = Rig::open(folder.path(), &machine, &clock).unwrap();
        let mut listener = rig.engine().connect(&Caller::local());
        let sql = "SELECT id FROM sessions";
        let params = serde_json::Map::new();
        rig.run(listener.subscribe(&SubscribeRequest::new("q", sql, &params))).unwrap();
        machine.revive(Fault::Fail { kind, nth: 1, lasting: true });
        let refusal = rig.run(create("s1").send(rig.engine())).unwrap_err();
        assert_eq!(refusal.code, Code::EngineFailed, "{kind}: {refusal}");
        assert!(matches!(rig.run(listener.next()), Update::Snapshot(_)));
        match rig.run(listener.next()) {
            Update::Error { refusal, .. } => assert_eq!(refusal.code, Code::EngineFailed, "{kind}"),
            other => panic!("{kind}: {other:?}"),
        }
    }
}

/// When an engine could not be opened because its last reader failed, the other readers stayed
/// behind: threads that waited forever, each with the file open.
#[test]
fn an_engine_that_fails_to_open_leaves_no_open_files() {
    let folder = folder();
    let clock = VirtualClock::new();
    let machine = Arc::new(Machine::new(Fault::None, 1));
    Rig::open(folder.path(), &machine, &clock).unwrap().close();
    assert_eq!(machine.handles(), 0);
    for kind in [Kind::Open, Kind::Read, Kind::Lock] {
        for nth in 1..200 {
            machine.revive(Fault::Fail { kind, nth, lasting: true });
            match Rig::open(folder.path(), &machine, &clock) {
                Err(_) => assert_eq!(machine.handles(), 0, "{kind} {nth}"),
                Ok(rig) => {
                    rig.close();
                    break;
                }
            }
        }
    }
}

/// The disk was full exactly when the index of the WAL had to grow. SQLite writes the index last: the commit is already
/// complete in the WAL, and rolled back only in memory. Its groups are in the journal, so nothing that was acknowledged
/// is lost; and no call is accepted until SQLite can commit again.
#[test]
fn a_commit_without_space_in_the_index_loses_nothing() {
    for (seed, loses_power) in [(1, false), (2, true), (3, true), (4, true)] {
        let before = folder();
        let after = folder();
        let clock = VirtualClock::new();
        let machine = Arc::new(Machine::new(Fault::None, seed));
        let rig = Rig::open(before.path(), &machine, &clock).unwrap();
        machine.revive(Fault::Fail { kind: Kind::Extend, nth: 1, lasting: true });
        let output = answered_until_full(&rig);
        let refusal = rig.run(numbered(output).send(rig.engine())).unwrap_err();
        assert_eq!(refusal.code, Code::DiskFull, "{refusal}");
        machine.cut_power(); // Simulates a kill.
        drop(rig);
        let folder = if loses_power { &after } else { &before };
        let machine = if loses_power {
            machine.restart(after.path(), seed).unwrap();
            Arc::new(Machine::new(Fault::None, seed))
        } else {
            machine.revive(Fault::None);
            machine
        };
        let rig = Rig::open(folder.path(), &machine, &clock).unwrap();
        for nth in 0..=output {
            let again = rig.run(numbered(nth).send(rig.engine())).unwrap();
            assert_eq!(again.duplicate, nth < output, "seed {seed}: call {nth} of {output}");
        }
    }
}

/// Calls, each committed by SQLite, until that fails. Returns the number of answered calls.
fn answered_until_full(rig: &Rig) -> u64 {
    for nth in 0..2_000 {
        rig.run(numbered(nth).send(rig.engine())).unwrap();
        if let Err(refusal) = rig.commit_rows() {
            assert_eq!(refusal.code, Code::DiskFull, "{refusal}");
            return nth + 1;
        }
    }
    panic!("the index has to grow after 4,062 pages")
}

/// A full disk without a kill: as soon as there is space, the engine continues, including with the refused
/// calls.
#[test]
fn a_disk_that_was_full_for_the_index_accepts_calls_again() {
    let folder = folder();
    let clock = VirtualClock::new();
    let machine = Arc::new(Machine::new(Fault::None, 1));
    let rig = Rig::open(folder.path(), &machine, &clock).unwrap();
    machine.revive(Fault::Fail { kind: Kind::Extend, nth: 1, lasting: true });
    let output = answered_until_full(&rig);
    for nth in output..output + 100 {
        let refusal = rig.run(numbered(nth).send(rig.engine())).unwrap_err();
        assert_eq!(refusal.code, Code::DiskFull, "{refusal}");
    }
    machine.plan(Fault::None);
    for nth in output..output + 100 {
        let answer = rig.run(numbered(nth).send(rig.engine())).unwrap();
        assert!(!answer.duplicate, "call {nth}");
    }
    let head = rig.engine().durable_seq();
    assert_eq!(rig.commit_rows(), Ok(()));
    rig.close();
    assert_eq!(
        verify_file(&folder.path().join("abide.db"), abide_reducers::modules(), &mut |_| {})
            .unwrap()
            .events,
        head
    );
}
