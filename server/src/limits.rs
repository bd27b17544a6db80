//! The bounds of the doors, each with its reason. What is about calls, rows and frames stands in
//! [`abide_schema::limits`].

use std::time::Duration;

/// Connections at a time, of every kind. Each may hold some hundred kilobytes that are not counted: deltas and texts
/// below [`abide_schema::limits::COUNTED_BYTES`], and buffers of sockets. That is a few gigabytes at worst.
pub(crate) const CONNECTIONS: u32 = 10_000;

/// Connections beyond that which are told so at a time; the rest is dropped without a word.
pub(crate) const TURNED_AWAY: usize = 64;

/// How long a request's head may take, which is also how long a connection may stay between two
/// requests. A head is one packet; half a minute is for the worst of links.
pub(crate) const HEAD: Duration = Duration::from_secs(30);

/// Connections of one address that have not shown who they are. Behind one address may be a proxy with all
/// clients, whose heads come at once; beyond this the oldest make room.
pub(crate) const NEWCOMERS_PER_ADDRESS: usize = 1_000;

/// How long a connection may take to show who it is: a head of a few packets on a slow link.
pub(crate) const NEWCOMER: Duration = Duration::from_secs(5);

/// How long it has at least, also where others wait for its place.
pub(crate) const NEWCOMER_CHANCE: Duration = Duration::from_millis(100);

/// Connections of one address that wait for a place among those; each has a descriptor and a task. What comes beyond is
/// closed at once.
pub(crate) const NEWCOMERS_QUEUED_PER_ADDRESS: usize = 64;

/// The same of all addresses.
pub(crate) const NEWCOMERS_QUEUED: usize = 1_000;

/// How long a request's body may come at any pace.
pub(crate) const BODY_START: Duration = Duration::from_secs(5);

/// The bytes of a body that must have come for each second after that: a quarter of a megabit. What is
/// slower holds memory for longer than it is worth.
pub(crate) const BODY_BYTES_PER_S: usize = 32 << 10;

/// Bytes of a body that are not counted: most are smaller, and ten thousand hold 160 MB of it.
pub(crate) const BODY_UNCOUNTED_BYTES: usize = 16 << 10;

/// Bytes of rows that are encoded at a time while an answer is sent.
pub(crate) const ANSWER_PART_BYTES: usize = 64 << 10;

/// How long a request's body may take: 16 MB at two megabits per second.
pub(crate) const BODY: Duration = Duration::from_secs(64);

/// Bytes of a body that is too large which are still read, so that the answer reaches a client that
/// writes before it reads. Whoever sends more finds the connection closed.
pub(crate) const DRAINED_BYTES: usize = 4 * abide_schema::limits::MESSAGE_BYTES;

/// Bytes from which a message is read in turns: below it that takes some hundred microseconds at most.
pub(crate) const LARGE_BYTES: usize = 32 << 10;

/// How long a peer may take in no byte of what waits for it. Long enough for a phone in a tunnel; it
/// can resume afterwards from the seq it has.
pub(crate) const STALL: Duration = Duration::from_secs(120);

/// Between two pings of a WebSocket, and between two comments of a quiet event stream: below the
/// minute after which common proxies drop what is silent.
pub(crate) const PING: Duration = Duration::from_secs(20);

/// How long a WebSocket may be silent: three pings went unanswered.
pub(crate) const SILENCE: Duration = Duration::from_secs(65);

/// How long the other side is waited for after a close frame.
pub(crate) const CLOSING: Duration = Duration::from_secs(1);

/// How long a shutdown waits for what is in flight. Container runtimes kill after ten seconds, and
/// the engine has to move the WAL into the file after us.
pub(crate) const GRACE: Duration = Duration::from_secs(7);

/// What one WebSocket may have in flight, in calls. At 50,000 calls/s and 5 ms a commit, 250 calls
/// fill the pipe; more would only move the queue from the socket into memory.
pub(crate) const IN_FLIGHT: usize = 256;

/// A message weighs as one more call for each of so many bytes, so that what is in flight for one
/// WebSocket comes to some 16 MB, however large its calls are.
pub(crate) const WEIGHT_BYTES: usize = abide_schema::limits::MESSAGE_BYTES / IN_FLIGHT;

/// What a query weighs: four at a time, as there are readers, because each answer may be as large as
/// [`abide_schema::limits::QUERY_BYTES`].
pub(crate) const QUERY_WEIGHT: usize = IN_FLIGHT / 4;

/// Subscribe and unsubscribe messages that wait while another subscription begins.
pub(crate) const COMMANDS: usize = 16;

/// Bytes of a WebSocket message that are still read when it is too large, so that it can be refused
/// under its id and the connection stays. Beyond it the connection is closed.
pub(crate) const OVERSIZE_BYTES: usize = 2 * abide_schema::limits::MESSAGE_BYTES;

/// What each WebSocket reads at a time, allocated when it opens: most messages are smaller, and ten
/// thousand quiet connections hold 80 MB of it.
pub(crate) const READ_BUFFER_BYTES: usize = 8 << 10;

/// What a WebSocket gathers before it writes.
pub(crate) const WRITE_BUFFER_BYTES: usize = 64 << 10;

/// Bytes of a JSON Web Token: what issuers put into headers and cookies is under half of it.
pub(crate) const JWT_BYTES: usize = 8 << 10;

/// Tokens of the file that are remembered, so that they need not be looked up at each request.
pub(crate) const KNOWN_TOKENS: usize = 10_000;

/// Ids of tokens that are not there which are remembered, so that the same is not looked up again.
pub(crate) const UNKNOWN_TOKENS: usize = 10_000;

/// Requests that wait at a time to have a token looked up which is not remembered: some milliseconds' worth.
pub(crate) const TOKEN_LOOKUPS: usize = 64;

/// Microseconds between two looks whether the file of an issuer's keys has changed.
pub(crate) const KEYS_LOOK_US: i64 = 10_000_000;

/// The same, where a token names a key that is not known: it may be a new one.
pub(crate) const KEYS_LOOK_SOON_US: i64 = 1_000_000;

/// From a fall of the bytes that wait for clients to giving memory back. A connection frees its own memory shortly
/// after what was counted of it, and several connections end together.
pub(crate) const RECLAIM_AFTER: Duration = Duration::from_millis(250);
