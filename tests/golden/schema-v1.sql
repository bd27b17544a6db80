PRAGMA application_id = 1094863172;
PRAGMA user_version = 1;
PRAGMA page_size = 4096;

CREATE TABLE agent_state (
  id INTEGER PRIMARY KEY NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  role TEXT NOT NULL,
  kind TEXT NOT NULL,
  content TEXT,
  data TEXT,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE TRIGGER agent_state_of_ended BEFORE INSERT ON agent_state
WHEN EXISTS (SELECT 1 FROM sessions WHERE id = NEW.session_id
  AND (status = 'completed' OR status = 'failed'))
BEGIN SELECT RAISE(FAIL, 'bad_transition: the session has ended'); END;

CREATE INDEX agent_state_session_id ON agent_state (session_id);

CREATE TABLE approvals (
  id TEXT PRIMARY KEY NOT NULL,
  call_id TEXT NOT NULL REFERENCES tool_calls(call_id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  status TEXT NOT NULL CHECK (status = 'pending' OR status = 'approved' OR status = 'rejected' OR status = 'expired' OR status = 'cancelled'),
  arguments TEXT NOT NULL,
  approved_arguments TEXT,
  decided_by TEXT,
  comment TEXT,
  expires_at INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX approvals_call_id ON approvals (call_id);

CREATE TRIGGER approvals_decided BEFORE UPDATE ON approvals
WHEN OLD.status <> 'pending'
BEGIN SELECT RAISE(FAIL, 'conflict: the approval is decided'); END;

CREATE INDEX approvals_session_id ON approvals (session_id);

CREATE TABLE change_log (
  seq INTEGER NOT NULL,
  table_name TEXT NOT NULL,
  from_seq INTEGER NOT NULL,
  images BLOB NOT NULL,
  PRIMARY KEY (seq, table_name)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
  seq INTEGER PRIMARY KEY NOT NULL,
  at INTEGER NOT NULL,
  session_id TEXT,
  reducer TEXT NOT NULL,
  caller TEXT NOT NULL,
  request_id TEXT,
  arguments TEXT NOT NULL,
  outcome TEXT NOT NULL,
  prev_hash BLOB NOT NULL,
  hash BLOB NOT NULL
) STRICT;

CREATE TRIGGER events_appended BEFORE INSERT ON events
WHEN NEW.seq <> 1 + (SELECT coalesce(max(seq), 0) FROM events)
BEGIN SELECT RAISE(FAIL, 'denied: the log grows by its next number only'); END;

CREATE TRIGGER events_no_delete BEFORE DELETE ON events
BEGIN SELECT RAISE(FAIL, 'denied: the log is append-only'); END;

CREATE TRIGGER events_no_update BEFORE UPDATE ON events
BEGIN SELECT RAISE(FAIL, 'denied: the log is append-only'); END;

CREATE INDEX events_session_id ON events (session_id) WHERE session_id IS NOT NULL;

CREATE TABLE handoff_requests (
  id TEXT PRIMARY KEY NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  reason TEXT NOT NULL,
  required_capability TEXT NOT NULL,
  data TEXT,
  status TEXT NOT NULL CHECK (status = 'pending' OR status = 'claimed' OR status = 'resolved' OR status = 'rejected' OR status = 'expired' OR status = 'cancelled'),
  claimed_by TEXT,
  lease_expires_at INTEGER,
  resolution TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER handoff_requests_ended BEFORE UPDATE ON handoff_requests
WHEN OLD.status <> 'pending' AND OLD.status <> 'claimed'
BEGIN SELECT RAISE(FAIL, 'conflict: the handoff has ended'); END;

CREATE UNIQUE INDEX handoff_requests_session_id ON handoff_requests (session_id) WHERE status = 'pending' OR status = 'claimed';

CREATE INDEX handoff_requests_status ON handoff_requests (status);

CREATE TABLE meta (
  name TEXT PRIMARY KEY NOT NULL,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE request_ids (
  caller TEXT NOT NULL,
  request_id TEXT NOT NULL,
  fingerprint BLOB NOT NULL,
  seqs TEXT NOT NULL,
  PRIMARY KEY (caller, request_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
  id TEXT PRIMARY KEY NOT NULL,
  agent TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status = 'created' OR status = 'active' OR status = 'suspended' OR status = 'handed_off' OR status = 'completed' OR status = 'failed'),
  parent_id TEXT REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  title TEXT,
  scope TEXT NOT NULL,
  metadata TEXT NOT NULL,
  result TEXT,
  error_code TEXT,
  error_message TEXT,
  reason TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER sessions_ended BEFORE UPDATE OF
  id, agent, status, parent_id, title, scope, metadata, result, error_code, error_message, reason,
  created_at ON sessions
WHEN OLD.status = 'completed' OR OLD.status = 'failed'
BEGIN SELECT RAISE(FAIL, 'bad_transition: the session has ended'); END;

CREATE INDEX sessions_parent_id ON sessions (parent_id) WHERE parent_id IS NOT NULL;

CREATE TRIGGER sessions_transition BEFORE UPDATE OF status ON sessions
WHEN OLD.status <> NEW.status AND OLD.status || '>' || NEW.status NOT IN (
  'created>active', 'created>suspended', 'created>handed_off', 'created>completed', 'created>failed',
  'active>suspended', 'active>handed_off', 'active>completed', 'active>failed',
  'suspended>active', 'suspended>handed_off', 'suspended>completed', 'suspended>failed',
  'handed_off>active', 'handed_off>failed')
BEGIN SELECT RAISE(FAIL, 'bad_transition: the status of the session does not allow it'); END;

CREATE TABLE tool_calls (
  call_id TEXT PRIMARY KEY NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  tool_name TEXT NOT NULL REFERENCES tools(name) DEFERRABLE INITIALLY DEFERRED,
  tool_version INTEGER NOT NULL,
  arguments TEXT NOT NULL,
  provider_call_id TEXT,
  status TEXT NOT NULL CHECK (status = 'pending' OR status = 'awaiting_approval' OR status = 'claimed' OR status = 'succeeded' OR status = 'failed' OR status = 'rejected' OR status = 'cancelled' OR status = 'unknown'),
  attempt INTEGER NOT NULL,
  fencing_token INTEGER,
  claimed_by TEXT,
  lease_expires_at INTEGER,
  result TEXT,
  error TEXT,
  evidence TEXT,
  created_at INTEGER NOT NULL,
  created_seq INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  CHECK (status <> 'claimed' OR (fencing_token IS NOT NULL
    AND lease_expires_at IS NOT NULL AND attempt > 0))
) STRICT;

CREATE TRIGGER tool_calls_ended BEFORE UPDATE ON tool_calls
WHEN OLD.status = 'succeeded' OR OLD.status = 'failed' OR OLD.status = 'rejected'
  OR OLD.status = 'cancelled'
BEGIN SELECT RAISE(FAIL, 'conflict: the tool call has ended'); END;

CREATE TRIGGER tool_calls_fencing BEFORE UPDATE ON tool_calls
WHEN NEW.fencing_token < OLD.fencing_token OR NEW.attempt < OLD.attempt
BEGIN SELECT RAISE(FAIL, 'lease_lost: the tool call was claimed by another'); END;

CREATE TRIGGER tool_calls_of_ended BEFORE INSERT ON tool_calls
WHEN EXISTS (SELECT 1 FROM sessions WHERE id = NEW.session_id
  AND (status = 'completed' OR status = 'failed'))
BEGIN SELECT RAISE(FAIL, 'bad_transition: the session has ended'); END;

CREATE INDEX tool_calls_session_id ON tool_calls (session_id);

CREATE INDEX tool_calls_status ON tool_calls (status);

CREATE INDEX tool_calls_tool_name ON tool_calls (tool_name);

CREATE TABLE tools (
  name TEXT PRIMARY KEY NOT NULL,
  version INTEGER NOT NULL,
  description TEXT,
  input_schema TEXT,
  effect TEXT NOT NULL CHECK (effect = 'read_only' OR effect = 'idempotent' OR effect = 'at_most_once'),
  needs_approval INTEGER NOT NULL,
  timeout_ms INTEGER,
  retry TEXT,
  required_capability TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
