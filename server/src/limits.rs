//! Limits of the server, with their reasons. Limits of calls, rows and frames are in
//! [`abide_schema::limits`].

use std::time::Duration;

/// Concurrent connections of any kind. Each may hold an outbox of a megabyte when it does not
/// read, which is the worst case for a machine with 16 GB. One tenant can have a quarter of them.
pub(crate) const CONNECTIONS: u32 = 10_000;

/// Connections over the limit that get a response; the others are closed immediately.
pub(crate) const REJECTED_CONNECTIONS: usize = 64;

/// Time limit for a request's head, which is also the idle time of a connection between two
/// requests. A head is one packet; half a minute allows for the slowest links.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Concurrent requests of an HTTP/2 connection: a client with more waits, or opens another connection.
pub(crate) const STREAMS: u32 = 64;

/// Bytes that a request of an HTTP/2 connection, or its response, can have in transit.
pub(crate) const STREAM_BYTES: u32 = 64 << 10;

/// Bytes that all requests of an HTTP/2 connection can have in transit.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// Bytes of the headers of a request in HTTP/2: a token and a few names.
pub(crate) const HEADERS_BYTES: u32 = 16 << 10;

/// Bytes of a connection that are read before they are used: an incomplete head in HTTP/1, or a part of a body.
pub(crate) const HTTP1_BUFFER_BYTES: usize = 64 << 10;

/// Bytes of a head that are not counted while the body of its request is read. Most heads are smaller.
pub(crate) const HEAD_UNCOUNTED_BYTES: usize = 4 << 10;

/// Unauthenticated connections of one address. The address may be a proxy for all
/// clients, whose heads arrive at once; beyond this the oldest are closed.
pub(crate) const UNAUTHENTICATED_PER_ADDRESS: usize = 1_000;

/// Time for a connection to authenticate: a head of a few packets on a slow link.
pub(crate) const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(5);

/// Minimum time for a connection to authenticate, even if others wait for its place.
pub(crate) const UNAUTHENTICATED_MIN_TIME: Duration = Duration::from_millis(100);

/// Queued connections of one address; each has a descriptor and a task. Further ones are
/// closed immediately.
pub(crate) const UNAUTHENTICATED_QUEUE_PER_ADDRESS: usize = 64;

/// Queued connections of all addresses.
pub(crate) const UNAUTHENTICATED_QUEUE: usize = 1_000;

/// Grace period before a request's body must reach the minimum rate.
pub(crate) const BODY_START_GRACE: Duration = Duration::from_secs(5);

/// Minimum rate of a body after that, in bytes per second: a quarter of a megabit. Slower bodies
/// hold memory for too long.
pub(crate) const BODY_BYTES_PER_S: usize = 32 << 10;

/// Bytes of a body that are not counted: most are smaller, and ten thousand such bodies hold 160 MB.
pub(crate) const BODY_UNCOUNTED_BYTES: usize = 16 << 10;

/// Bytes from which on a response over HTTP (the result of a query, a description, a page of sessions or messages) is counted
/// until it is sent. Of smaller ones, the 64 streams of an HTTP/2 connection hold 256 KB.
pub(crate) const COUNTED_RESPONSE_BYTES: usize = 4 << 10;

/// Bytes of one part of the text of a result, about. It is freed when it is sent.
pub(crate) const ANSWER_PART_BYTES: usize = 64 << 10;

/// How long `invoke` waits for the end of a turn: longer than most answers, and shorter than proxies allow.
pub(crate) const INVOKE_DEFAULT: Duration = Duration::from_secs(60);

/// Maximum time that a request can choose for `invoke`. The connection of a request is occupied while it waits.
pub(crate) const INVOKE_MAX: Duration = Duration::from_secs(600);

/// Time limit for a request's body: 16 MB at two megabits per second.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(64);

/// Bytes of a too large body that are still read, so that the response reaches a client that
/// writes before it reads. Beyond that the connection is closed.
pub(crate) const DRAINED_BYTES: usize = 4 * abide_schema::limits::MESSAGE_BYTES;

/// Bytes of the body of a refused request that are still read. A client that sends more may lose the response.
pub(crate) const REFUSED_BODY_BYTES: usize = 1 << 20;

/// How long the response to a refused request waits for its body: what a client has sent with the head has arrived by then.
pub(crate) const REFUSED_BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Messages of this size and larger are parsed in turns: smaller ones take some hundred microseconds at most.
pub(crate) const LARGE_BYTES: usize = 32 << 10;

/// How long a peer may read nothing while data waits. Long enough for a phone in a tunnel; it
/// can resume afterwards from its seq.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Interval of WebSocket pings, and of comments in an idle event stream: below the
/// minute after which common proxies close idle connections, and the 15 s that MCP recommends.
pub const PING_INTERVAL: Duration = Duration::from_secs(15);

/// How long a WebSocket may be silent: four pings went unanswered.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_secs(65);

/// How long to wait for the peer after a close frame.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause after a failed accept: in most cases the process is out of file descriptors until some connection ends.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// How long a shutdown waits for requests in progress. Container runtimes kill after ten seconds, and
/// the engine still has to checkpoint the WAL afterwards.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(7);

/// How long a shared engine waits for its first connection: time for a program to start and connect on a busy machine.
pub(crate) const FIRST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a shared engine stays open without a connection. A program that opens the file again, or reconnects, finds
/// it.
pub(crate) const IDLE_ENGINE_TIMEOUT: Duration = Duration::from_secs(2);

/// Concurrent work of one WebSocket, in calls. At 50,000 calls/s and 5 ms per commit, 250 calls
/// fill the pipeline; more would only move the queue from the socket into memory.
pub(crate) const IN_FLIGHT: usize = 256;

/// A message counts as one more call for each of this many bytes, so that the messages in progress of one
/// WebSocket are limited to some 16 MB.
pub(crate) const WEIGHT_BYTES: usize = abide_schema::limits::MESSAGE_BYTES / IN_FLIGHT;

/// The weight of a query: four at a time, the number of readers, because each result may be as large as
/// [`abide_schema::limits::QUERY_BYTES`].
pub(crate) const QUERY_WEIGHT: usize = IN_FLIGHT / 4;

/// Subscribe and unsubscribe messages that wait while another subscription starts.
pub(crate) const COMMANDS: usize = 16;

/// Size up to which a too large WebSocket message is still read, so that it can be refused
/// with its id and the connection stays open. Beyond it the connection is closed.
pub(crate) const OVERSIZE_BYTES: usize = 2 * abide_schema::limits::MESSAGE_BYTES;

/// Read buffer of each WebSocket, allocated when it opens: most messages are smaller, and ten
/// thousand idle connections hold 80 MB.
pub(crate) const READ_BUFFER_BYTES: usize = 8 << 10;

/// Write buffer of a WebSocket.
pub(crate) const WRITE_BUFFER_BYTES: usize = 64 << 10;

/// Bytes of a JSON Web Token: issuers keep tokens in headers and cookies under half of it.
pub(crate) const JWT_BYTES: usize = 8 << 10;

/// Maximum number of cached tokens.
pub(crate) const KNOWN_TOKENS: usize = 10_000;

/// Maximum number of cached unknown token ids.
pub(crate) const UNKNOWN_TOKENS: usize = 10_000;

/// Requests that wait for the lookup of an uncached token: some milliseconds of work.
pub(crate) const TOKEN_LOOKUPS: usize = 64;

/// Microseconds between checks for changes of the issuer's key file.
pub(crate) const KEY_FILE_CHECK_US: i64 = 10_000_000;

/// Microseconds between checks of the key file after a token with an unknown key: it may be a new one.
pub(crate) const UNKNOWN_KEY_CHECK_US: i64 = 1_000_000;

/// How often the files of TLS are checked for changes: a renewed certificate is in use before anybody has looked.
pub(crate) const TLS_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum bytes of a file of TLS: some hundred certificates of authorities.
pub(crate) const PEM_BYTES: u64 = 1 << 20;
