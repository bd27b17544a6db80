//! The limits for a server under overload, each with its reason. Times are factors of the response
//! time of an idle server, in the same run; memory is in bytes.

/// Maximum factor of a caller's p99 while another caller floods.
pub(crate) const FACTOR: f64 = 40.0;

/// Maximum factor with ten thousand connections of which a thousand do not read, while the others receive
/// a change. One in a hundred calls arrives while the change is sent to all of them, and waits
/// behind some of the awake connections (`engine/src/subscriptions/wakeups.rs`).
pub(crate) const CROWD_FACTOR: f64 = 60.0;

/// A wait for a change that is sent to all connections is accepted up to this many milliseconds for each reading connection,
/// whatever its factor: waking a connection and writing to its socket takes ten microseconds (`DELIVERY` in
/// `engine/src/commit/durable.rs`), and the clients share the two processors.
pub(crate) const DELIVERY_MS: f64 = 0.01;

/// Maximum factor during a reconnect storm after a restart: the handshakes take the machine's processors.
pub(crate) const STORM_FACTOR: f64 = 250.0;

/// The checked percentile of a stage in which the other caller completes some sixty calls. The 99th would be the longest
/// of them, and one stall of a shared disk would decide.
pub(crate) const FEW_CALLS_PERCENTILE: f64 = 95.0;

/// A response time below this, in milliseconds, is accepted while the queue is flooded with calls of 256 KB, whatever its
/// factor: a call waits for the sync of some four megabytes of calls, which are eight in the WAL, and for as much
/// again while a checkpoint writes to the same disk.
pub(crate) const FLOOD_MS: f64 = 400.0;

/// The limit of a flood of the queue as a multiple of the time to write and sync [`FLOOD_SYNC_BYTES`] before the server
/// has clients: 36 MB, which are 4.5 such syncs, and a factor of two because server and clients share the processors.
pub(crate) const FLOOD_SYNCS: f64 = 9.0;

/// The limit of a flood on the slowest disk, in milliseconds.
pub(crate) const FLOOD_MOST_MS: f64 = 1_000.0;

/// What one sync of a flood writes.
pub(crate) const FLOOD_SYNC_BYTES: usize = 8 << 20;

/// A p99 below this is accepted, whatever its factor: on a fast disk an idle call takes less than the scheduler's
/// time slice.
pub(crate) const NOTICED_MS: f64 = 20.0;

/// Memory of an idle server with warm caches.
pub(crate) const REST_BYTES: u64 = 256 << 20;

/// Memory of one subscribed connection: buffers of both directions of its socket, its session, its
/// share of a query.
pub(crate) const CONNECTION_BYTES: u64 = 64 << 10;

/// Memory of one connection that does not read: the outbox of
/// [`abide_schema::limits::OUTBOX_BYTES`], the same again in write buffers, and the connection
/// itself.
pub(crate) const MUTE_BYTES: u64 =
    2 * (abide_schema::limits::OUTBOX_BYTES as u64) + CONNECTION_BYTES;

/// Memory of one incoming message: the maximum that is read, and its copies as text and as values.
pub(crate) const MESSAGE_BYTES: u64 = 4 * (abide_schema::limits::MESSAGE_BYTES as u64);

/// Maximum p99 of a caller, in milliseconds, while another tenant repeats one expensive query or has one expensive
/// subscription.
pub(crate) const EXPENSIVE_MS: f64 = 50.0;

/// Maximum factor of the idle p99 during an expensive query, if that is more: other programs use the machine too.
pub(crate) const EXPENSIVE_FACTOR: f64 = 12.0;

/// A response time below this, in milliseconds, is accepted while another tenant writes messages of 4 MB: twice that of a
/// disk that syncs 8 MB in 20 ms.
pub(crate) const LARGE_CALL_MS: f64 = 600.0;

/// The same on a slower disk, as a multiple of the time to write and sync [`FLOOD_SYNC_BYTES`]: two groups of two messages
/// are 16 MB in the journal and 32 MB in the WAL, and a checkpoint meanwhile copies some 16 MB. These are eight
/// such syncs, and a factor of two because server and clients share the processors.
pub(crate) const LARGE_CALL_SYNCS: f64 = 16.0;

/// The limit of large calls on the slowest disk, in milliseconds.
pub(crate) const LARGE_CALL_MOST_MS: f64 = 1_000.0;
