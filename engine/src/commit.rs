//! The commit pipeline: from the queue to the disk.
//!
//! A *call* runs one reducer and appends one event. A *unit* is a call or a batch of calls, all or nothing. A *group*
//! has the units that the writer takes at once: one record in the journal, one set of undo images and deltas. SQLite's
//! *transaction* stays open over many groups. What subscribers and metrics call a *commit* is a finished group, not
//! SQLite's COMMIT.
//!
//! # One call, from the bytes of a message to the bytes of its answer
//!
//! | what | decided by |
//! |---|---|
//! | a socket becomes a WebSocket of a caller | `connection` in `server/src/serve.rs`; `authenticate_request` in `server/src/auth/access.rs` admits the caller; `upgrade` in `server/src/websocket.rs` |
//! | the bytes of a message are counted | `WriteTimeoutStream` in `server/src/connections/write_timeout.rs`, with `Arrivals::add` in `server/src/arrivals.rs` |
//! | the credential is still valid | `Reader::run` in `server/src/websocket/reader.rs`, for each message |
//! | the message is parsed and has room | `Admissions::admit` in `server/src/websocket/admission.rs`, `read` in `server/src/websocket/message.rs`; the arguments become `CallArguments` (`schema/src/call_arguments.rs`) |
//! | an embedded call begins here | `Embedded::ask` in `client-sdk/rust/src/embedded.rs`: a caller without a credential, and a value that becomes `CallArguments` |
//! | the caller is within its rate and quota | `RateLimiter::take`, from `Engine::call` |
//! | the reducer exists, the arguments fit it | `Registry::prepare`; `PreparedCall::new` decodes and hashes them |
//! | the request id is valid | `Request::new` in `request_ids`, from `Inner::submit` |
//! | there is room in the queue | `Queue::push` |
//! | whose unit is next | `FairQueue::pop`; `WriterThread::run` takes as many as fit a group, after the due rows of `timers` |
//! | the unit is a retry, its credential was revoked while it waited, or the process is about to stop | `Executor::answer_without_running` in `run_unit` |
//! | the caller may call the reducer | `Executor::check_may_call`, from `Executor::run_within` in `execute` |
//! | which rows exist for the caller | `ScopedTransaction`, over the `GroupTransaction` of all rows |
//! | what the call does | the reducer: `append_message` in `reducers/src/message.rs` |
//! | a row may be written | the reducer; then the constraints and triggers of its table, in SQLite (`abort_write` in `transaction`); deferred foreign keys in `Writer::take_record` of the store |
//! | what the log says | `Executor::append_event`: the stored form of the result (`outcome`), the hash of the event (`engine/log/src/chain.rs`) |
//! | a retry will find it | `Executor::remember` in `run_unit` |
//! | which undo images are kept | `ChangeLog::record` in `retention` |
//! | what subscribers get | `LiveQueries::deltas` in `live_queries`, with the router of `engine/live/src/router.rs` |
//! | what survives a crash | `Journal::append` in `engine/store/src/journal.rs`, from `WriterThread::run_and_journal` |
//! | when SQLite commits | `OpenRows::is_due`; `WriterThread::commit_rows` |
//! | who is answered when | `WriterThread::hand_over`; `Syncer::make_durable` in `durable`, then `Syncer::answer` |
//! | deltas reach connections | `publish` in `engine/src/subscriptions/publisher.rs`; `Hub::publish`; `Outbox::push`; `Connection::next` |
//! | the answer of the engine | `Inner::submit` returns it to `Engine::call`: a recorded refusal as a refusal |
//! | its bytes | `call` in `server/src/frames.rs`; `Admission::count_answer`; `SocketSender::answer` in `server/src/websocket/writer.rs` |
//!
//! # After a crash
//!
//! The next opening applies the journal (`Store::open`, `engine/store/src/journal/recovery.rs`) and syncs what it found
//! before anything is answered (`recover` in `engine/src/engine/startup.rs`). No reducer runs again. A client without
//! an answer repeats its call with the same request id; one without a request id cannot know whether the call took
//! effect.
//!
//! | the crash comes after | the disk has | what follows |
//! |---|---|---|
//! | the message arrived, the unit was queued, or its reducer ran | nothing: the transaction is open | the repeated call runs like a new one |
//! | readers did deferred work for the unit | nothing | the same; the work is done again |
//! | `Journal::append` | the record. After a power failure it may be torn or missing, and so may those after it | with the record: all of the group, and the repeated call gets the stored result. Without: nothing of it, or all of it if SQLite has committed it. `Engine::apply` answers here, so its caller waits for `Engine::until_durable` |
//! | the sync | the record | the group is applied. The repeated call gets the stored result (`Executor::stored_result` in `run_unit`), as a duplicate |
//! | the answer, before the delta | the record, with its undo images | a subscriber resumes after its last seq and gets the delta from the change log (`engine/src/subscriptions/resume.rs`) |
//! | a refusal `denied`, before the group that records it | nothing of either | the caller has no answer: it waits until the record is durable |
//! | the first step of a call that takes several transactions | the rows of its work | `timers` finds them and goes on; the repeated call is answered after the last step (`PendingAnswers` in `unit`) |
//! | SQLite's commit | the record, and the rows in a WAL that is not synced | SQLite recovers the WAL as far as it reaches; the records after that are applied |
//! | a part of a checkpoint | the WAL and the records: segments are used again only when the file is synced | the same |
//!
//! `tests/sim/src/crash.rs` crashes at every change of the disk, `tests/sim/src/panics.rs` panics at every point of
//! `engine/src/fault_points.rs`, `tests/process/kill.rs` kills real processes.
//!
//! # Files
//!
//! In reading order: `registry` prepares calls · `queue` and `fair_queue` order callers · `jobs` of the writer's queue
//! · `unit` the units, groups and answers · `writer` commits one group after the other · `run_unit` runs the calls of a
//! unit · `execute` runs one call in the open `transaction`, over the `overlay` · `deferred` moves long work to readers
//! · `outcome` and `request_ids` answer retries · `live_queries` makes deltas · `timers` makes due rows into calls ·
//! `open_rows` are committed by SQLite later · `durable` syncs · `checkpointer` moves the WAL, and slows the writer
//! down if it must · `retention` of the change log · `table_watchers` reports changed tables.

pub(crate) mod checkpointer;
pub(crate) mod deferred;
pub(crate) mod durable;
pub(crate) mod execute;
pub(crate) mod fair_queue;
pub(crate) mod jobs;
pub(crate) mod live_queries;
pub(crate) mod open_rows;
pub(crate) mod outcome;
pub(crate) mod overlay;
pub(crate) mod queue;
pub(crate) mod registry;
pub(crate) mod request_ids;
pub(crate) mod retention;
pub(crate) mod run_unit;
pub(crate) mod table_watchers;
pub(crate) mod timers;
pub(crate) mod transaction;
pub(crate) mod unit;
pub(crate) mod writer;
