//! Limits of the protocols, with their reasons. Limits of connections and bodies are those of the server, limits of calls and rows
//! are in [`abide_schema::limits`].

use std::time::Duration;

/// Bytes of a turn's items that are not counted while a protocol presents it: most turns are smaller, and ten thousand
/// such turns hold 640 MB.
pub(crate) const TURN_UNCOUNTED_BYTES: usize = 64 << 10;

/// Bytes of the events of a run that is answered as one text. Its items, its values and its text take some three times as
/// much until it is sent. A stream has no such limit.
pub(crate) const WHOLE_RUN_BYTES: usize = 32 << 20;

/// How long the cancellation of a response waits for the end of the run: a runtime gives tools five seconds to stop.
pub(crate) const ABORT_TIMEOUT: Duration = Duration::from_secs(8);

/// Concurrent webhook deliveries. Each has a connection and the items of a task.
pub(crate) const WEBHOOK_DELIVERIES: usize = 64;

/// Concurrent webhook deliveries per scope: sixteen tenants whose receivers do not answer leave room for another one.
pub(crate) const WEBHOOK_DELIVERIES_PER_SCOPE: usize = 4;

/// Pause after the first failed attempt of a webhook. It doubles with each attempt.
pub(crate) const WEBHOOK_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause between attempts of a webhook.
pub(crate) const WEBHOOK_PAUSE_MAX: Duration = Duration::from_secs(15 * 60);

/// Attempts for one event, after which its webhook is given up. Their pauses take about 17 hours: ten that double, from
/// a second on, and 89 of 15 minutes, each shortened by a quarter on average.
pub(crate) const WEBHOOK_ATTEMPTS: i64 = 100;

/// Pause of webhook deliveries after a failure of the engine.
pub(crate) const WEBHOOK_FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Messages that wait for a client of MCP. More would only move a queue from the work into memory.
pub(crate) const MCP_OUTBOX: usize = 16;

/// Sessions of MCP of all callers. Each has some kilobytes.
pub(crate) const MCP_SESSIONS: usize = 10_000;

/// Sessions of MCP of one caller, or of the callers of one scope: clients of a tenant keep one each.
pub(crate) const MCP_SESSIONS_PER_CALLER: usize = 1_000;

/// Resources that one client of MCP subscribes to. Each is up to two live queries.
pub(crate) const MCP_SUBSCRIPTIONS: usize = 100;

/// Bytes of the URI of a subscription: the longest id in its namespace (2 × 512 bytes), each byte as three characters.
pub(crate) const MCP_URI_BYTES: usize = 4 << 10;

/// Bytes of a client's capabilities, which the id of its session has: real ones have some hundred, and common proxies refuse
/// headers of more than 8 KiB.
pub(crate) const MCP_CAPABILITIES_BYTES: usize = 4 << 10;

/// Bytes of rows in one result of MCP. A model reads it, and none reads a megabyte.
pub(crate) const MCP_RESULT_BYTES: usize = 1 << 20;

/// How long a stream keeps back a call that may wait for the approval of another. The interrupt follows the answer of the model
/// within milliseconds; a call that runs for longer than this is shown while it runs.
pub(crate) const TURN_HOLD: Duration = Duration::from_secs(2);
