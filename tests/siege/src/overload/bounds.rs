//! What the server is held to under overload, each bound with its reason. Times are factors of what a caller waits
//! when nothing else goes on, in the same run; memory is in bytes.

/// How much longer than quiet a caller may wait at the 99th percentile while somebody floods.
pub(crate) const FACTOR: f64 = 40.0;

/// The same while ten thousand connections stand, a thousand of them do not read, and the others are sent a
/// change: one in a hundred calls comes while it is on its way to all of them, and stands behind a part of
/// those who are awake (`engine/src/pace.rs`). On two processors, which the clients share, that is mostly 20 ms
/// and now and then 50; what it is against quiet depends on how quick quiet is.
pub(crate) const CROWD_FACTOR: f64 = 60.0;

/// The same while everybody comes back at once after a restart: the handshakes of the crowd take the
/// machine's processors, which the caller has to wait for.
pub(crate) const STORM_FACTOR: f64 = 250.0;

/// A p99 below this is nobody's trouble, whatever its factor: on a fast disk a quiet call takes less than the
/// scheduler's slice.
pub(crate) const NOTICED_MS: f64 = 20.0;

/// Memory of a server at rest with its caches warm.
pub(crate) const REST_BYTES: u64 = 256 << 20;

/// Memory of one connection that listens: buffers of its socket's two halves, its session, its share of a
/// query.
pub(crate) const CONNECTION_BYTES: u64 = 64 << 10;

/// Memory of one connection that does not read: the outbox of [`abide_schema::limits::OUTBOX_BYTES`], as
/// much again in writing, and the connection itself.
pub(crate) const MUTE_BYTES: u64 =
    2 * (abide_schema::limits::OUTBOX_BYTES as u64) + CONNECTION_BYTES;

/// Memory of one message that is being read: the most that is read of it, and its copies as text and as values.
pub(crate) const MESSAGE_BYTES: u64 = 4 * (abide_schema::limits::MESSAGE_BYTES as u64);

/// How long a caller may wait at the 99th percentile while another tenant repeats one expensive call or holds one
/// expensive subscription, in milliseconds.
pub(crate) const EXPENSIVE_MS: f64 = 50.0;
