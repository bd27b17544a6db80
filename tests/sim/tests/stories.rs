//! Bugs that crashes and faults brought to light, as they went.

use std::sync::Arc;

use abide_engine::{Update, Wanted, verify_file};
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Seq};
use abide_sim::disk::{Fault, Kind, Machine};
use abide_sim::rig::{Ask, Rig, VirtualClock, folder};
use serde_json::json;

fn create(id: &str) -> Ask {
    let args = json!({"agent": "support", "id": id});
    let calls = vec![BatchCall { reducer: "create_session".to_owned(), args }];
    Ask { caller: "app", calls, request_id: format!("make {id}") }
}

fn numbered(nth: u64) -> Ask {
    create(&format!("s{nth}"))
}

/// After a sync that fails, the system takes the WAL's pages for written, and may read them back as
/// they were on the disk. The engine refused calls from then on; but closing it, or the next look of the
/// checkpointer, moved the WAL into the file all the same, and with it what was not what was written:
/// the file was damaged, far behind what had been acknowledged.
#[test]
fn nothing_is_moved_after_a_failed_sync() {
    for (seed, closes) in (0..12).flat_map(|seed| [(seed, true), (seed, false)]) {
        let (folder, clock) = (folder(), VirtualClock::new());
        let machine = Arc::new(Machine::new(Fault::None, seed));
        let rig = Rig::open(folder.path(), &machine, &clock).unwrap();
        for nth in 0..20 {
            rig.run(create(&format!("s{nth}")).put(rig.engine())).unwrap();
        }
        machine.revive(Fault::Fail { kind: Kind::Sync, nth: 1, lasting: false });
        let refusal = rig.run(create("late").put(rig.engine())).unwrap_err();
        assert_eq!(refusal.code, Code::Poisoned);
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
        assert_eq!(verify_file(&folder.path().join("abide.db"), &mut |_| {}).unwrap().events, head);
    }
}

/// A server whose sync failed was started again on a system that lived on. It found in the WAL what
/// had been written, synced it, which the system reported as done because it took those pages for
/// clean, and let it count: new calls were acknowledged behind it. When the power failed, both were
/// gone.
#[test]
fn what_a_failed_sync_left_is_written_again_before_it_counts() {
    for seed in 0..24 {
        let (folder_before, folder_after, clock) = (folder(), folder(), VirtualClock::new());
        let machine = Arc::new(Machine::new(Fault::None, seed));
        let rig = Rig::open(folder_before.path(), &machine, &clock).unwrap();
        rig.run(create("s1").put(rig.engine())).unwrap();
        machine.revive(Fault::Fail { kind: Kind::Sync, nth: 1, lasting: false });
        rig.run(create("s2").put(rig.engine())).unwrap_err();
        machine.cut_power(); // As far as this process can tell: it is killed.
        drop(rig);
        machine.revive(Fault::None);
        let rig = Rig::open(folder_before.path(), &machine, &clock).unwrap();
        let told = rig.run(create("s3").put(rig.engine())).unwrap();
        machine.cut_power();
        drop(rig);
        machine.restart(folder_after.path(), seed).unwrap();
        let machine = Arc::new(Machine::new(Fault::None, seed));
        let rig = Rig::open(folder_after.path(), &machine, &clock).unwrap();
        let again = rig.run(create("s3").put(rig.engine())).unwrap();
        assert_eq!((again.results, again.duplicate), (told.results, true), "seed {seed}");
    }
}

/// The disk failed while a new file was being made. The journal that SQLite had left beside it can only
/// be rolled back by who may write; the look at whose file it is was not allowed to, and said for ever
/// that the file "cannot be written", or "is not a SQLite database".
#[test]
fn a_file_that_was_half_made_is_made() {
    for seed in 0..400 {
        let (before, after, clock) = (folder(), folder(), VirtualClock::new());
        let fault = Fault::Fail { kind: Kind::Sync, nth: 1 + seed % 5, lasting: true };
        let machine = Arc::new(Machine::new(fault, seed));
        Rig::open(before.path(), &machine, &clock).unwrap_err();
        machine.revive(Fault::Crash { step: 1 + seed / 5 % 40 });
        let opened = Rig::open(before.path(), &machine, &clock).map(drop);
        assert!(opened.is_ok() || machine.is_down(), "seed {seed}: {opened:?}");
        machine.restart(after.path(), seed).unwrap();
        let machine = Arc::new(Machine::new(Fault::None, seed));
        let rig = Rig::open(after.path(), &machine, &clock);
        let rig = rig.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        rig.run(create("s1").put(rig.engine())).unwrap();
    }
}

/// It was the writer, and not the sync thread, that met the broken disk. Calls were refused from then on;
/// who only listened was told nothing, and waited for ever.
#[test]
fn who_listens_hears_that_the_disk_broke() {
    for kind in [Kind::Write, Kind::Sync] {
        let (folder, clock) = (folder(), VirtualClock::new());
        let machine = Arc::new(Machine::new(Fault::None, 1));
        let rig = Rig::open(folder.path(), &machine, &clock).unwrap();
        let mut listener = rig.engine().connect(&Caller::local());
        let (sql, params) = ("SELECT id FROM sessions", serde_json::Map::new());
        rig.run(listener.subscribe(&Wanted::new("q", sql, &params))).unwrap();
        machine.revive(Fault::Fail { kind, nth: 1, lasting: true });
        let refusal = rig.run(create("s1").put(rig.engine())).unwrap_err();
        assert_eq!(refusal.code, Code::Poisoned, "{kind}: {refusal}");
        assert!(matches!(rig.run(listener.next()), Update::Snapshot(_)));
        match rig.run(listener.next()) {
            Update::Error { refusal, .. } => assert_eq!(refusal.code, Code::Poisoned, "{kind}"),
            other => panic!("{kind}: {other:?}"),
        }
    }
}

/// An engine that could not be opened because its last reader could not left the other readers behind:
/// threads that waited for ever, each with the file open.
#[test]
fn an_engine_that_cannot_be_opened_leaves_nothing_open() {
    let (folder, clock) = (folder(), VirtualClock::new());
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

/// The disk was full just when the index of the WAL had to grow. SQLite writes it last: the commit was whole
/// in the WAL by then, undone in memory only. Its caller was told that nothing was written; the process was
/// killed, and there it was. (Before that was seen, the engine had taken it for a disk that is broken, and accepted
/// nothing more.)
#[test]
fn a_commit_without_room_in_the_index_is_not_there_after_a_crash() {
    for (seed, loses_power) in [(1, false), (2, true), (3, true), (4, true)] {
        let (before, after, clock) = (folder(), folder(), VirtualClock::new());
        let machine = Arc::new(Machine::new(Fault::None, seed));
        let rig = Rig::open(before.path(), &machine, &clock).unwrap();
        machine.revive(Fault::Fail { kind: Kind::Extend, nth: 1, lasting: true });
        let (told, refusal) = (0..2_000)
            .find_map(|nth| Some((nth, rig.run(numbered(nth).put(rig.engine())).err()?)))
            .expect("the index has to grow after 4,062 pages");
        assert_eq!(refusal.code, Code::DiskFull, "{refusal}");
        // What makes an end of it is on the disk before that is said: one sync more than there were calls.
        assert_eq!(machine.tally().calls[Kind::Sync as usize], told + 1);
        machine.cut_power(); // As far as this process can tell: it is killed.
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
        for nth in 0..=told {
            let again = rig.run(numbered(nth).put(rig.engine())).unwrap();
            assert_eq!(again.duplicate, nth < told, "seed {seed}: call {nth} of {told}");
        }
    }
}

/// The same, and nobody dies: as soon as there is room, the engine goes on, also with what it refused.
#[test]
fn a_disk_that_was_full_for_the_index_takes_calls_again() {
    let (folder, clock) = (folder(), VirtualClock::new());
    let machine = Arc::new(Machine::new(Fault::None, 1));
    let rig = Rig::open(folder.path(), &machine, &clock).unwrap();
    machine.revive(Fault::Fail { kind: Kind::Extend, nth: 1, lasting: true });
    let mut refused = Vec::new();
    for nth in 0..1_000 {
        let ask = numbered(nth);
        if let Err(refusal) = rig.run(ask.put(rig.engine())) {
            assert_eq!(refusal.code, Code::DiskFull, "{refusal}");
            refused.push(ask);
        }
    }
    assert!(refused.len() > 100, "it was full for {} calls", refused.len());
    machine.plan(Fault::None);
    for ask in &refused {
        let told = rig.run(ask.put(rig.engine())).unwrap();
        assert!(!told.duplicate, "{}", ask.request_id);
    }
    let head = rig.engine().durable_seq();
    rig.close();
    assert_eq!(verify_file(&folder.path().join("abide.db"), &mut |_| {}).unwrap().events, head);
}
