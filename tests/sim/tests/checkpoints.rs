//! What a checkpoint next to the writer leaves to the writer.

use std::sync::Arc;

use abide_engine::{Layout, Tuning};
use abide_schema::Json;
use abide_sim::disk::{Fault, FaultyDisk, Kind, Machine};
use abide_sim::rig::folder;
use abide_store::{RequestIdRow, Store, Writer};

fn write(writer: &Writer, id: &str) {
    writer.begin().unwrap();
    let request = RequestIdRow {
        caller: "caller".to_owned(),
        request_id: id.to_owned(),
        fingerprint: vec![0; 32],
        seqs: Json::from(serde_json::json!([1])),
    };
    writer.remember_request(request).unwrap();
    writer.commit().unwrap();
}

fn syncs(machine: &Machine) -> u64 {
    let kind = Kind::ALL.iter().position(|kind| *kind == Kind::Sync).unwrap();
    machine.tally().calls[kind]
}

/// SQLite syncs the file only if a checkpoint copies the whole WAL. A checkpoint next to a busy writer never does, so
/// the writer's own one waited for the disk to write everything: callers waited 300 ms for 48 MB.
#[test]
fn an_incomplete_checkpoint_syncs_the_file() {
    let folder = folder();
    let machine = Arc::new(Machine::new(Fault::None, 1));
    machine.take_in(folder.path()).unwrap();
    let tuning = Tuning { disk: FaultyDisk::new(&machine), ..Tuning::default() };
    let store = Store::open(&folder.path().join("abide.db"), Layout::default(), tuning).unwrap();
    let writer = store.writer().unwrap();
    let checkpointer = store.checkpointer().unwrap();
    write(&writer, "copied");
    // A reader's snapshot keeps the second commit in the WAL.
    let mut reader = store.reader().unwrap();
    let snapshot = reader.snapshot().unwrap();
    write(&writer, "left");
    let before = syncs(&machine);
    assert!(checkpointer.copy_and_sync().unwrap());
    assert!(checkpointer.wal_size().unwrap().waiting > 0, "the checkpoint was complete");
    assert_eq!(syncs(&machine) - before, 2, "the WAL and the file");
    assert!(!checkpointer.copy_and_sync().unwrap(), "the snapshot is in the way of the rest");
    drop(snapshot);
}
