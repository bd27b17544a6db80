//! Durability: an acknowledged call is on the disk and stays there; a call that cannot be written
//! is refused without effect. (The fault-injection tests check more failures of the disk.)

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use abide_engine::{Engine, Tuning, verify_file};
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Seq, Value};
use abide_tests::disk::HookedDisk;
use abide_tests::world::{World, run};
use rusqlite::Connection;
use serde_json::{Map, json};

use crate::recordings::left_out;
use crate::traffic::Random;

/// Runs tasks on several threads with a real clock.
fn run_side_by_side<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(4).enable_time().build().unwrap().block_on(future)
}

async fn append_message(engine: &Engine, content: &str) -> Result<Seq, abide_schema::Refusal> {
    let args = json!({"session_id": "s1", "role": "user", "content": content});
    let done = engine.call(&Caller::new("local"), "append_message", &args, None).await?;
    assert!(engine.durable_seq() >= done.seq, "acknowledged before it was durable");
    Ok(done.seq)
}

#[test]
fn no_response_before_the_sync() {
    run_side_by_side(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let callers: Vec<_> = (0..64)
            .map(|nth| {
                let engine = world.engine().clone();
                tokio::spawn(async move {
                    for round in 0..20 {
                        append_message(&engine, &format!("{nth}.{round}")).await.unwrap();
                        let head = "SELECT max(seq) FROM events";
                        let answer =
                            engine.query(&Caller::local(), head, &Map::new(), None).await.unwrap();
                        assert!(engine.durable_seq() >= answer.seq, "read before it was durable");
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        assert_eq!(world.engine().durable_seq(), Seq(2 + 64 * 20));
    });
}

/// Callers that wait while the writer is busy share one transaction and one sync.
#[test]
fn concurrent_calls_share_a_commit() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let before = world.engine().metrics().commits_total.get();
        let foreign = hold_the_write_lock(&world.path());
        let callers: Vec<_> = (0..200)
            .map(|nth| {
                let engine = world.engine().clone();
                tokio::spawn(async move { append_message(&engine, &nth.to_string()).await })
            })
            .collect();
        // On one thread each task runs in turn, and afterwards its call is in the queue.
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        drop(foreign);
        let mut seqs = Vec::new();
        for caller in callers {
            seqs.push(caller.await.unwrap().unwrap().0);
        }
        seqs.sort_unstable();
        assert_eq!(seqs, (3..203).collect::<Vec<_>>());
        let commits = world.engine().metrics().commits_total.get() - before;
        assert!(commits <= 3, "{commits} commits for 200 concurrent calls");
    });
}

/// A batch has no savepoint until one is refused after it wrote: then its group runs again, with savepoints, and so do
/// the batches of the next groups. So refused batches repeat one group in 256.
#[test]
fn refused_batches_leave_nothing_and_repeat_one_group() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let call = |session: &str| BatchCall {
            reducer: "append_message".to_owned(),
            args: json!({"session_id": session, "role": "user", "content": "from a batch"}),
        };
        let sound = [call("s1"), call("s1")];
        let refused = [call("s1"), call("missing")];
        for _ in 0..20 {
            let engine = world.engine();
            // They are in one group: the first waits for the writer while the others arrive.
            let foreign = hold_the_write_lock(&world.path());
            let caller = Caller::new("local");
            let (first, second, third) = tokio::join!(
                engine.batch(&caller, &refused, None),
                engine.batch(&caller, &sound, None),
                async {
                    drop(foreign);
                    engine.batch(&caller, &refused, None).await
                },
            );
            assert_eq!(first.unwrap_err().code, Code::NotFound);
            assert_eq!(third.unwrap_err().code, Code::NotFound);
            second.unwrap();
        }
        let reruns = world.engine().metrics().savepoint_reruns_total.get();
        assert_eq!(reruns, 1, "only the first refused batch");
        let written = "SELECT count(*), max(seq) FROM agent_state WHERE content = 'from a batch'";
        assert_eq!(*world.rows(written).await[0], [Value::Integer(40), Value::Integer(42)]);
    });
}

/// Another program's connection with a write transaction.
fn hold_the_write_lock(path: &Path) -> Connection {
    let foreign = Connection::open(path).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    foreign
}

#[test]
fn calls_over_the_queue_limit_are_refused_without_effect() {
    run_side_by_side(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let foreign = hold_the_write_lock(&world.path());
        let text: Arc<str> = "x".repeat(4 << 20).into();
        let mut callers = Vec::new();
        for _ in 0..12 {
            let engine = world.engine().clone();
            let text = Arc::clone(&text);
            callers.push(tokio::spawn(async move { append_message(&engine, &text).await }));
        }
        let mut answers = Vec::new();
        // Refused calls return at once; the others wait for the writer.
        while callers.iter().filter(|caller| caller.is_finished()).count() < 12 - 5 {
            tokio::task::yield_now().await;
        }
        drop(foreign);
        for caller in callers {
            answers.push(caller.await.unwrap());
        }
        let taken = answers.iter().filter(|answer| answer.is_ok()).count();
        assert!((3..=5).contains(&taken), "{taken} of 12 were accepted");
        for refusal in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!((refusal.code, refusal.code.retryable()), (Code::Overloaded, true));
            assert_eq!(refusal.detail, "the queue of calls is full");
        }
        assert_eq!(world.engine().durable_seq().0, 2 + taken as i64);
        append_message(world.engine(), "the queue has space again").await.unwrap();
    });
}

#[test]
fn another_programs_lock_is_waited_for_and_then_reported() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        world.session("s1").await;
        world.close();
        let mut config = world.config(abide_reducers::modules());
        config.tuning = Tuning { busy_ms: 20, ..Tuning::default() };
        let engine = Engine::open(world.path(), config).unwrap();
        let foreign = hold_the_write_lock(&world.path());
        let refusal = append_message(&engine, "now").await.unwrap_err();
        assert_eq!((refusal.code, refusal.code.retryable()), (Code::Unavailable, true));
        assert_eq!(refusal.detail, "the database is locked by another process");
        assert!(
            engine.query(&Caller::local(), "SELECT 1", &Map::new(), None).await.is_ok(),
            "reads continue"
        );
        drop(foreign);
        assert!(engine.ready().is_ok(), "a lock does not poison the engine");
        assert_eq!(append_message(&engine, "now").await, Ok(Seq(3)));
    });
}

#[test]
fn a_drop_without_close_loses_nothing() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        world.session("s1").await;
        for round in 0..5 {
            for nth in 0..20 {
                append_message(world.engine(), &format!("{round}.{nth}")).await.unwrap();
            }
            let before = world.state(None).await;
            world.drop_engine();
            world.open();
            assert!(world.state(None).await == before, "after round {round}");
        }
        assert_eq!(
            verify_file(&world.path(), abide_reducers::modules(), &mut |_| {}).unwrap().events,
            Seq(102)
        );
    });
}

#[test]
fn a_close_leaves_one_complete_file() {
    let mut world = World::new(abide_reducers::modules);
    run(world.session("s1"));
    assert!(companion(&world.path(), "-wal").exists());
    world.close();
    for suffix in ["-wal", "-shm", "-redo-1"] {
        assert!(!companion(&world.path(), suffix).exists(), "{suffix} is in the file");
    }
    let moved = world.folder.path().join("moved.db");
    fs::copy(world.path(), &moved).unwrap();
    assert_eq!(verify_file(&moved, abide_reducers::modules(), &mut |_| {}).unwrap().events, Seq(2));
}

/// `apply` answers before the sync. If that fails, nothing else is answered, and no query sees the rows.
#[test]
fn an_early_answer_is_followed_by_the_failure_of_its_sync() {
    run_side_by_side(async {
        let mut world = World::new(abide_reducers::modules);
        let fails = Arc::new(AtomicBool::new(false));
        world.session("s1").await;
        world.close();
        let mut config = world.config(abide_reducers::modules());
        let failing = Arc::clone(&fails);
        config.tuning.disk = Arc::new(HookedDisk::new(move || {
            if failing.load(Ordering::Relaxed) {
                Err(io::Error::other("the disk is gone"))
            } else {
                Ok(())
            }
        }));
        world.open_with(config);
        let engine = world.engine();
        let caller = Caller::new("local");
        let args = json!({"session_id": "s1", "role": "user", "content": "early"});
        let calls = [BatchCall { reducer: "append_message".to_owned(), args }];
        let done = engine.apply(&caller, &calls, Some("r1")).await.unwrap();
        engine.until_durable(done.seq).await.unwrap();
        assert!(engine.durable_seq() >= done.seq);
        let again = engine.apply(&caller, &calls, Some("r1")).await.unwrap();
        assert!(again.duplicate, "a request id is known before the sync");

        fails.store(true, Ordering::Relaxed);
        let early = engine.apply(&caller, &calls, None).await.unwrap();
        let refusal = engine.until_durable(early.seq).await.unwrap_err();
        assert_eq!(refusal.code, Code::EngineFailed);
        assert_eq!(engine.durable_seq(), done.seq);
        let refusal = engine.apply(&caller, &calls, None).await.unwrap_err();
        assert_eq!(refusal.code, Code::EngineFailed);
        let sql = "SELECT count(*) FROM agent_state";
        let refusal = engine.query(&Caller::local(), sql, &Map::new(), None).await.unwrap_err();
        assert_eq!(refusal.code, Code::EngineFailed);
    });
}

/// Waiting for an event that never came marked the engine as failed when it was closed.
#[test]
fn waiting_for_a_future_event_ends_when_the_engine_closes() {
    run_side_by_side(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let engine = world.engine().clone();
        let waiter = tokio::spawn(async move { engine.until_durable(Seq(500)).await });
        world.engine().close();
        assert_eq!(waiter.await.unwrap().unwrap_err().code, Code::Unavailable);
        let refusal = append_message(world.engine(), "late").await.unwrap_err();
        assert_eq!(refusal.code, Code::Unavailable, "it has not failed");
    });
}

#[test]
fn a_closed_engine_refuses_calls() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        world.engine().close();
        let refusal = append_message(world.engine(), "late").await.unwrap_err();
        assert_eq!(refusal.code, Code::Unavailable);
        assert_eq!(refusal.detail, "the engine is closing");
        let refusal = world
            .engine()
            .query(&Caller::local(), "SELECT 1", &Map::new(), None)
            .await
            .unwrap_err();
        assert_eq!(refusal.detail, "the engine is closing");
    });
}

pub(crate) fn companion(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

/// A copy of the file and its WAL at this moment, as after a power failure, with the WAL truncated.
/// Copies a file as it is on the disk, with its WAL and the first bytes of its journal.
fn copy_cut(world: &World, into: &Path, wal_bytes: u64, journal_bytes: u64) {
    fs::copy(world.path(), into).unwrap();
    for (suffix, bytes) in [("-wal", wal_bytes), ("-redo-1", journal_bytes)] {
        fs::copy(companion(&world.path(), suffix), companion(into, suffix)).unwrap();
        let copy = fs::OpenOptions::new().write(true).open(companion(into, suffix)).unwrap();
        copy.set_len(bytes).unwrap();
    }
}

/// However the WAL is truncated, the journal has all acknowledged calls. However the journal is truncated without a
/// WAL, the rest is a state that existed, and no call acknowledged before the journal had grown that far is missing.
#[test]
fn a_truncated_wal_or_journal_keeps_the_calls_acknowledged_before() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        world.session("s1").await;
        // A clean close: the file has everything so far.
        world.reopen();
        let mut grown = vec![(0, world.engine().durable_seq())];
        for nth in 0..40 {
            let seq = append_message(world.engine(), &"x".repeat(nth * 50)).await.unwrap();
            grown.push((world.engine().metrics().journal_bytes.get(), seq));
        }
        world.commit_rows().await;
        let wal = fs::metadata(companion(&world.path(), "-wal")).unwrap().len();
        let (journal, last) = grown[grown.len() - 1];
        let mut random = Random::new(5);
        for nth in 0..40 {
            let cut = random.draw() % (journal + 1);
            let (wal, cut) = if nth % 2 == 0 { (0, cut) } else { (random.draw() % wal, journal) };
            let into = world.folder.path().join(format!("cut{nth}.db"));
            copy_cut(&world, &into, wal, cut);
            let config = world.config(abide_reducers::modules());
            let engine = Engine::open(&into, config).unwrap();
            let answered = grown.iter().rfind(|(bytes, _)| *bytes <= cut).unwrap().1;
            assert_eq!(engine.durable_seq(), answered, "WAL cut at {wal}, journal at {cut}");
            assert!(nth % 2 == 0 || answered == last);
            assert_eq!(append_message(&engine, "and on").await, Ok(answered.next()));
            engine.close();
            assert_eq!(
                verify_file(&into, abide_reducers::modules(), &mut |_| {}).unwrap().events,
                answered.next()
            );
        }
    });
}

#[test]
fn time_is_monotonic() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        world.session("s1").await;
        world.clock.advance_ms(-60_000);
        world.append_message("s1", "earlier").await.unwrap();
        world.reopen();
        world.append_message("s1", "still earlier").await.unwrap();
        world.clock.advance_ms(120_000);
        world.append_message("s1", "later").await.unwrap();
        let sql = "SELECT at - (SELECT min(at) FROM events) FROM events ORDER BY seq";
        let spans = world.rows(sql).await;
        let spans: Vec<String> = spans.iter().map(|row| row[0].to_json().to_string()).collect();
        assert_eq!(spans, ["0", "0", "0", "0", "60000000"]);
    });
}

/// Other SQLite programs may read the file while a server has it open.
#[test]
fn other_programs_can_read_while_the_engine_writes() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        world.commit_rows().await;
        let other = Connection::open(world.path()).unwrap();
        let count = || -> i64 {
            other.query_row("SELECT count(*) FROM agent_state", [], |row| row.get(0)).unwrap()
        };
        for nth in 1..20 {
            assert_eq!(count(), nth);
            other.execute_batch("BEGIN; SELECT count(*) FROM events").unwrap();
            world.append_message("s1", "more").await.unwrap();
            world.commit_rows().await;
            assert_eq!(count(), nth, "a read transaction sees a constant state");
            other.execute_batch("COMMIT").unwrap();
        }
    });
}

/// A file system of ten megabytes, unmounted on drop.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn make_read_only(&self) {
        let mut mount = Command::new("mount");
        assert!(mount.args(["-o", "remount,ro"]).arg(&self.0).status().unwrap().success());
    }

    pub(crate) fn mount(at: PathBuf) -> Option<SmallDisk> {
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", "size=10m", "tmpfs"]).arg(&at).output();
        mount.is_ok_and(|output| output.status.success()).then_some(SmallDisk(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(std::thread::panicking() || unmounted.unwrap().success());
    }
}

/// Writes a file until the disk has no space.
fn fill(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
}

/// Regression: calls were answered whose rows SQLite could not commit, and then all queries were refused, too.
#[test]
fn a_full_disk_refuses_calls_and_answers_queries() {
    let world = World::new(abide_reducers::modules);
    let Some(disk) = SmallDisk::mount(world.folder.path().join("small")) else {
        return left_out("a full disk: no file system can be mounted here");
    };
    let path = disk.0.join("abide.db");
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![1; 4 << 20]).unwrap();
    run(async {
        let mut config = world.config(abide_reducers::modules());
        config.tuning.segment_bytes = 64 << 10;
        let engine = Engine::open(&path, config).unwrap();
        let args = json!({"agent": "support", "id": "s1"});
        engine.call(&Caller::new("local"), "create_session", &args, None).await.unwrap();
        let mut rendered = 1;
        let text = "x".repeat(30_000);
        // Rows that SQLite commits meanwhile need no more space, so that a call after a refused one can be accepted.
        let mut refused = 0;
        while refused < 4 {
            match append_message(&engine, &text).await {
                Ok(seq) => {
                    rendered = seq.0;
                    refused = 0;
                }
                Err(refusal) => {
                    refused += 1;
                    assert_eq!((refusal.code, refusal.code.retryable()), (Code::DiskFull, true));
                    assert_eq!(refusal.detail, "the disk is full");
                    let hint = "nothing was written; free some space and try again";
                    assert_eq!(refusal.hint.as_deref(), Some(hint));
                    assert!(engine.ready().is_ok(), "a full disk does not poison the engine");
                }
            }
        }
        assert!(rendered > 20, "the disk was full after {rendered} events");
        let sql = "SELECT count(*) + 1 FROM agent_state";
        let count = async || engine.query(&Caller::local(), sql, &Map::new(), None).await;
        for is_filled in [false, true] {
            if is_filled {
                fill(&disk.0.join("filler"));
                assert_eq!(engine.disk_free_bytes(), Some(0));
                assert_eq!(append_message(&engine, "x").await.unwrap_err().code, Code::DiskFull);
            }
            let answer = count().await.unwrap();
            assert_eq!(answer.rows[0][0].to_json(), rendered, "exactly the acknowledged calls");
            assert_eq!(answer.seq, Seq(rendered));
        }
        fs::remove_file(&ballast).unwrap();
        for nth in 1..=5 {
            assert_eq!(append_message(&engine, &text).await, Ok(Seq(rendered + nth)));
        }
        engine.close();
        assert_eq!(
            verify_file(&path, abide_reducers::modules(), &mut |_| {}).unwrap().events,
            Seq(rendered + 5)
        );
    });
}

/// Calls were acknowledged after the database file was removed or replaced, and lost when the process ended.
#[test]
fn a_file_that_is_removed_or_replaced_acknowledges_nothing() {
    let replace = |path: &Path| {
        fs::write(path.with_extension("new"), "other").unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    };
    let remove = |path: &Path| fs::remove_file(path).unwrap();
    type Displace<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Displace<'_>); 4] =
        [("", &remove), ("", &replace), ("-redo-1", &remove), ("-redo-1", &replace)];
    for (suffix, displace) in cases {
        run_side_by_side(async {
            let world = World::new(abide_reducers::modules);
            world.session("s1").await;
            let engine = world.engine();
            append_message(engine, "before").await.unwrap();
            displace(Path::new(&format!("{}{suffix}", world.path().display())));
            let refused = append_message(engine, "after").await.unwrap_err();
            assert_eq!(refused.code, Code::EngineFailed, "{suffix}: {refused}");
            let text = "the database file was removed or replaced while it was open";
            assert!(refused.detail.starts_with(text), "{refused}");
            assert_eq!(engine.ready().unwrap_err(), refused);
            let read = engine.query(&Caller::local(), "SELECT 1", &Map::new(), None).await;
            assert_eq!(read.unwrap_err().code, Code::EngineFailed);
        });
    }
    // Without a call, the engine looks at its files by itself.
    for suffix in ["", "-wal", "-shm", "-lock"] {
        run_side_by_side(async {
            let world = World::new(abide_reducers::modules);
            world.session("s1").await;
            remove(Path::new(&format!("{}{suffix}", world.path().display())));
            let failed = world.engine().failed();
            tokio::time::timeout(std::time::Duration::from_secs(60), failed).await.unwrap();
        });
    }
}
