PRAGMA application_id = 1094863172;
PRAGMA user_version = 5;
PRAGMA page_size = 4096;

CREATE TABLE active_agents (
  run_id TEXT PRIMARY KEY NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  agents TEXT NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE INDEX active_agents_session_id ON active_agents (session_id);

CREATE TABLE agent_revisions (
  agent TEXT NOT NULL REFERENCES agents(name) DEFERRABLE INITIALLY DEFERRED,
  revision INTEGER NOT NULL,
  digest TEXT NOT NULL,
  definition TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (agent, revision)
) STRICT;

CREATE TABLE agent_state (
  id INTEGER PRIMARY KEY NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  role TEXT NOT NULL,
  kind TEXT NOT NULL,
  content TEXT,
  data TEXT,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  run_id TEXT
) STRICT;

CREATE TRIGGER agent_state_of_ended BEFORE INSERT ON agent_state
WHEN EXISTS (SELECT 1 FROM sessions WHERE id = NEW.session_id
  AND (status = 'completed' OR status = 'failed'))
BEGIN SELECT RAISE(FAIL, 'bad_transition: the session has ended'); END;

CREATE INDEX agent_state_session_id ON agent_state (session_id);

CREATE TABLE agents (
  name TEXT PRIMARY KEY NOT NULL,
  revision INTEGER NOT NULL,
  digest TEXT NOT NULL,
  mode TEXT NOT NULL CHECK (mode = 'primary' OR mode = 'subagent' OR mode = 'all'),
  description TEXT,
  hidden INTEGER NOT NULL,
  native INTEGER NOT NULL,
  retired_at INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE approvals (
  id TEXT PRIMARY KEY NOT NULL,
  call_id TEXT NOT NULL REFERENCES tool_calls(call_id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  tool_name TEXT NOT NULL REFERENCES tools(name) DEFERRABLE INITIALLY DEFERRED,
  status TEXT NOT NULL CHECK (status = 'pending' OR status = 'approved' OR status = 'rejected' OR status = 'expired' OR status = 'cancelled'),
  arguments TEXT NOT NULL,
  arguments_hash TEXT NOT NULL,
  approved_arguments TEXT,
  prompt TEXT,
  defaults TEXT,
  required_capability TEXT,
  decided_by TEXT,
  comment TEXT,
  expires_at INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE TRIGGER approvals_bound BEFORE UPDATE ON approvals
WHEN OLD.arguments <> NEW.arguments OR OLD.arguments_hash <> NEW.arguments_hash
  OR OLD.call_id <> NEW.call_id
BEGIN SELECT RAISE(FAIL, 'conflict: the approval is bound to its arguments'); END;

CREATE UNIQUE INDEX approvals_call_id ON approvals (call_id);

CREATE TRIGGER approvals_decided BEFORE UPDATE ON approvals
WHEN OLD.status <> 'pending'
BEGIN SELECT RAISE(FAIL, 'conflict: the approval is decided'); END;

CREATE INDEX approvals_expires_at ON approvals (expires_at) WHERE status = 'pending' AND expires_at IS NOT NULL;

CREATE INDEX approvals_session_id ON approvals (session_id);

CREATE INDEX approvals_status ON approvals (status);

CREATE TABLE archived_results (
  entry_id INTEGER PRIMARY KEY NOT NULL REFERENCES agent_state(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  call_id TEXT NOT NULL,
  provider_call_id TEXT,
  tool_name TEXT NOT NULL,
  number INTEGER NOT NULL,
  characters INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE INDEX archived_results_session_id_call_id ON archived_results (session_id, call_id);

CREATE INDEX archived_results_session_id_provider_call_id ON archived_results (session_id, provider_call_id);

CREATE TABLE change_log (
  seq INTEGER NOT NULL,
  table_name TEXT NOT NULL,
  from_seq INTEGER NOT NULL,
  images BLOB NOT NULL,
  PRIMARY KEY (seq, table_name)
) STRICT, WITHOUT ROWID;

CREATE TABLE cleanups (
  id TEXT PRIMARY KEY NOT NULL,
  kind TEXT NOT NULL CHECK (kind = 'end' OR kind = 'cancel' OR kind = 'abort'),
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  reason TEXT,
  after TEXT,
  up_to INTEGER NOT NULL,
  due_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  run_id TEXT,
  top TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX cleanups_due_at ON cleanups (due_at);

CREATE INDEX cleanups_session_id ON cleanups (session_id);

CREATE TABLE collections (
  id TEXT PRIMARY KEY NOT NULL,
  kind TEXT NOT NULL,
  scope TEXT NOT NULL,
  fencing_token INTEGER,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE INDEX collections_kind_id ON collections (kind, id);

CREATE TABLE context_summaries (
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  number INTEGER NOT NULL,
  run_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  through_id INTEGER NOT NULL,
  folded_id INTEGER NOT NULL,
  goal_id INTEGER NOT NULL,
  goal_folded_id INTEGER NOT NULL,
  summary TEXT NOT NULL,
  kept TEXT NOT NULL,
  answers INTEGER NOT NULL,
  handoffs TEXT NOT NULL,
  origin TEXT NOT NULL,
  repaired TEXT,
  tokens_before INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (session_id, number),
  CHECK (folded_id <= through_id AND through_id <= goal_id),
  CHECK (folded_id <= goal_folded_id AND goal_folded_id <= goal_id)
) STRICT;

CREATE TRIGGER context_summaries_forward BEFORE INSERT ON context_summaries
WHEN EXISTS (SELECT 1 FROM context_summaries WHERE session_id = NEW.session_id
  AND (number >= NEW.number OR through_id >= NEW.through_id OR folded_id > NEW.folded_id))
BEGIN SELECT RAISE(FAIL, 'conflict: a summary covers more than the one before it'); END;

CREATE TRIGGER context_summaries_stay BEFORE UPDATE ON context_summaries
BEGIN SELECT RAISE(FAIL, 'conflict: a summary cannot be changed; record the next one'); END;

CREATE TABLE delegations (
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  run_id TEXT PRIMARY KEY NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  parent_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  root_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  call_id TEXT REFERENCES tool_calls(call_id) DEFERRABLE INITIALLY DEFERRED,
  depth INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX delegations_parent_id ON delegations (parent_id);

CREATE INDEX delegations_root_id ON delegations (root_id);

CREATE INDEX delegations_session_id ON delegations (session_id);

CREATE TABLE denied_attempts (
  id INTEGER PRIMARY KEY NOT NULL,
  caller TEXT NOT NULL,
  what TEXT NOT NULL,
  why TEXT NOT NULL,
  missed INTEGER NOT NULL,
  at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE INDEX denied_attempts_caller ON denied_attempts (caller);

CREATE TABLE entries (
  collection_id TEXT NOT NULL REFERENCES collections(id) DEFERRABLE INITIALLY DEFERRED,
  key TEXT NOT NULL,
  data TEXT,
  blob BLOB,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (collection_id, key)
) STRICT;

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
  hash BLOB NOT NULL,
  authority TEXT,
  salt BLOB NOT NULL,
  rows_hash BLOB NOT NULL
) STRICT;

CREATE TRIGGER events_appended BEFORE INSERT ON events
WHEN NEW.seq <> 1 + (SELECT coalesce(max(seq), 0) FROM events)
BEGIN SELECT RAISE(FAIL, 'denied: the log grows by its next number only'); END;

CREATE TRIGGER events_no_delete BEFORE DELETE ON events
BEGIN SELECT RAISE(FAIL, 'denied: the log is append-only'); END;

CREATE TRIGGER events_no_update BEFORE UPDATE ON events
BEGIN SELECT RAISE(FAIL, 'denied: the log is append-only'); END;

CREATE INDEX events_session_id ON events (session_id) WHERE session_id IS NOT NULL;

CREATE TABLE handoff_calls (
  handoff_id TEXT PRIMARY KEY NOT NULL REFERENCES handoff_requests(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  call_id TEXT NOT NULL REFERENCES tool_calls(call_id) DEFERRABLE INITIALLY DEFERRED,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX handoff_calls_call_id ON handoff_calls (call_id);

CREATE INDEX handoff_calls_session_id ON handoff_calls (session_id);

CREATE TABLE handoff_requests (
  id TEXT PRIMARY KEY NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  reason TEXT NOT NULL,
  required_capability TEXT NOT NULL,
  data TEXT,
  status TEXT NOT NULL CHECK (status = 'pending' OR status = 'claimed' OR status = 'resolved' OR status = 'rejected' OR status = 'expired' OR status = 'cancelled'),
  claimed_by TEXT,
  fencing_token INTEGER,
  lease_expires_at INTEGER,
  escalate_at INTEGER,
  escalate_to TEXT,
  escalated_at INTEGER,
  expires_at INTEGER,
  resolution TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  CHECK (status <> 'claimed' OR (claimed_by IS NOT NULL
    AND fencing_token IS NOT NULL AND lease_expires_at IS NOT NULL))
) STRICT;

CREATE TRIGGER handoff_requests_ended BEFORE UPDATE ON handoff_requests
WHEN OLD.status <> 'pending' AND OLD.status <> 'claimed'
BEGIN SELECT RAISE(FAIL, 'conflict: the handoff has ended'); END;

CREATE INDEX handoff_requests_escalate_at ON handoff_requests (escalate_at) WHERE status = 'pending' AND escalate_at IS NOT NULL;

CREATE INDEX handoff_requests_expires_at ON handoff_requests (expires_at) WHERE status = 'pending' AND expires_at IS NOT NULL;

CREATE TRIGGER handoff_requests_fencing BEFORE UPDATE ON handoff_requests
WHEN NEW.fencing_token < OLD.fencing_token
BEGIN SELECT RAISE(FAIL, 'lease_lost: the handoff was claimed by another'); END;

CREATE INDEX handoff_requests_lease_expires_at ON handoff_requests (lease_expires_at) WHERE status = 'claimed';

CREATE UNIQUE INDEX handoff_requests_session_id ON handoff_requests (session_id) WHERE status = 'pending' OR status = 'claimed';

CREATE INDEX handoff_requests_session_id_status ON handoff_requests (session_id, status);

CREATE INDEX handoff_requests_status ON handoff_requests (status);

CREATE TABLE identities (
  id TEXT PRIMARY KEY NOT NULL,
  role TEXT NOT NULL,
  capabilities TEXT NOT NULL,
  scope TEXT NOT NULL,
  limits TEXT,
  disabled_at INTEGER,
  disabled_reason TEXT,
  created_by TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE TABLE lost_leases (
  call_id TEXT NOT NULL REFERENCES tool_calls(call_id) DEFERRABLE INITIALLY DEFERRED,
  fencing_token INTEGER NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  attempt INTEGER NOT NULL,
  claimed_by TEXT,
  lost_at INTEGER NOT NULL,
  outcome TEXT CHECK (outcome = 'succeeded' OR outcome = 'failed'),
  result TEXT,
  error TEXT,
  reported_at INTEGER,
  seq INTEGER NOT NULL,
  PRIMARY KEY (call_id, fencing_token)
) STRICT;

CREATE INDEX lost_leases_session_id ON lost_leases (session_id);

CREATE TABLE memories (
  id INTEGER PRIMARY KEY NOT NULL,
  space TEXT NOT NULL,
  namespace TEXT NOT NULL,
  session_id TEXT,
  scope TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  confidence REAL NOT NULL,
  source_seq INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX memories_space_key ON memories (space, key);

CREATE INDEX memories_space_updated_at ON memories (space, updated_at);

CREATE TABLE memory_vectors (
  memory_id INTEGER PRIMARY KEY NOT NULL REFERENCES memories(id) DEFERRABLE INITIALLY DEFERRED,
  model TEXT NOT NULL,
  vector BLOB NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE TABLE meta (
  name TEXT PRIMARY KEY NOT NULL,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE VIEW model_usage AS SELECT e.session_id, e.run_id, e.number,
  e.data ->> '$.provider' AS provider, e.data ->> '$.model' AS model,
  e.data ->> '$.input_tokens' AS input_tokens, e.data ->> '$.output_tokens' AS output_tokens,
  e.data ->> '$.cached_tokens' AS cached_tokens,
  e.data ->> '$.reasoning_tokens' AS reasoning_tokens,
  e.data ->> '$.estimated_cost' AS cost_usd, e.data ->> '$.completeness' AS completeness,
  e.created_at, e.seq
FROM run_events e WHERE e.kind = 'usage';

CREATE TABLE pauses (
  run_id TEXT PRIMARY KEY NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  status TEXT NOT NULL CHECK (status = 'requested' OR status = 'paused' OR status = 'resumed'),
  requested_stage TEXT CHECK (requested_stage = 'after_agent' OR requested_stage = 'after_tools' OR requested_stage = 'after_loop' OR requested_stage = 'before_guardrails'),
  stage TEXT CHECK (stage = 'after_agent' OR stage = 'after_tools' OR stage = 'after_loop' OR stage = 'before_guardrails'),
  iteration INTEGER,
  reason TEXT,
  requested_by TEXT,
  requested_at INTEGER NOT NULL,
  paused_at INTEGER,
  resumed_at INTEGER,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX pauses_session_id ON pauses (session_id);

CREATE TABLE plan_steps (
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  step INTEGER NOT NULL,
  title TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status = 'not_started' OR status = 'in_progress' OR status = 'completed' OR status = 'blocked'),
  description TEXT,
  owner TEXT,
  exit_criteria TEXT,
  evidence TEXT,
  seq INTEGER NOT NULL,
  PRIMARY KEY (session_id, step)
) STRICT;

CREATE UNIQUE INDEX plan_steps_session_id ON plan_steps (session_id) WHERE status = 'in_progress';

CREATE TABLE plan_versions (
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  version INTEGER NOT NULL,
  run_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  steps TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (session_id, version)
) STRICT;

CREATE TRIGGER plan_versions_stay BEFORE UPDATE ON plan_versions
BEGIN SELECT RAISE(FAIL, 'conflict: a version of a plan cannot be changed'); END;

CREATE TABLE plans (
  session_id TEXT PRIMARY KEY NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  version INTEGER NOT NULL,
  steps INTEGER NOT NULL,
  completed INTEGER NOT NULL,
  run_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  CHECK (completed >= 0 AND completed <= steps)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER plans_next_step BEFORE UPDATE ON plans
WHEN EXISTS (SELECT 1 FROM plan_steps WHERE session_id = NEW.session_id AND status = 'not_started')
  AND EXISTS (SELECT 1 FROM plan_steps WHERE session_id = NEW.session_id
    AND (status = 'completed' OR status = 'blocked'))
  AND NOT EXISTS (SELECT 1 FROM plan_steps WHERE session_id = NEW.session_id
    AND status = 'in_progress')
BEGIN SELECT RAISE(FAIL, 'bad_transition: one step must be in progress while steps are left'); END;

CREATE TRIGGER plans_one_step BEFORE INSERT ON plans
WHEN EXISTS (SELECT 1 FROM plan_steps WHERE session_id = NEW.session_id AND status = 'not_started')
  AND EXISTS (SELECT 1 FROM plan_steps WHERE session_id = NEW.session_id
    AND (status = 'completed' OR status = 'blocked'))
  AND NOT EXISTS (SELECT 1 FROM plan_steps WHERE session_id = NEW.session_id
    AND status = 'in_progress')
BEGIN SELECT RAISE(FAIL, 'bad_transition: one step must be in progress while steps are left'); END;

CREATE TRIGGER plans_versions BEFORE UPDATE ON plans
WHEN NEW.version <> OLD.version + 1
BEGIN SELECT RAISE(FAIL, 'conflict: a plan changes one version at a time'); END;

CREATE TABLE policies (
  table_name TEXT NOT NULL,
  role TEXT NOT NULL,
  name TEXT NOT NULL,
  condition TEXT,
  hidden TEXT NOT NULL,
  set_by TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (table_name, role, name)
) STRICT;

CREATE TABLE prompt_labels (
  prompt TEXT NOT NULL REFERENCES prompts(name) DEFERRABLE INITIALLY DEFERRED,
  label TEXT NOT NULL,
  version INTEGER NOT NULL,
  set_by TEXT NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (prompt, label)
) STRICT;

CREATE TABLE prompt_versions (
  prompt TEXT NOT NULL REFERENCES prompts(name) DEFERRABLE INITIALLY DEFERRED,
  version INTEGER NOT NULL,
  text TEXT NOT NULL,
  variables TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (prompt, version)
) STRICT;

CREATE TRIGGER prompt_versions_stay BEFORE UPDATE ON prompt_versions
BEGIN SELECT RAISE(FAIL, 'conflict: a version of a prompt cannot be changed'); END;

CREATE TABLE prompts (
  name TEXT PRIMARY KEY NOT NULL,
  scope TEXT NOT NULL,
  description TEXT,
  version INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE INDEX prompts_seq ON prompts (seq);

CREATE TABLE request_ids (
  caller TEXT NOT NULL,
  request_id TEXT NOT NULL,
  fingerprint BLOB NOT NULL,
  seqs TEXT NOT NULL,
  PRIMARY KEY (caller, request_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE reservations (
  run_id TEXT PRIMARY KEY NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  tokens INTEGER NOT NULL,
  cost_micros INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX reservations_session_id ON reservations (session_id);

CREATE TABLE roles (
  name TEXT PRIMARY KEY NOT NULL,
  description TEXT,
  reducers TEXT NOT NULL,
  capabilities TEXT NOT NULL,
  limits TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE TABLE run_budgets (
  run_id TEXT PRIMARY KEY NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  token_limit INTEGER,
  cost_limit_micros INTEGER,
  tokens INTEGER NOT NULL,
  cost_micros INTEGER NOT NULL,
  reserved_tokens INTEGER NOT NULL,
  reserved_cost_micros INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX run_budgets_session_id ON run_budgets (session_id);

CREATE TABLE run_corrections (
  run_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  number INTEGER NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  before TEXT NOT NULL,
  after TEXT NOT NULL,
  lines TEXT NOT NULL,
  reason TEXT,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (run_id, number)
) STRICT;

CREATE INDEX run_corrections_session_id ON run_corrections (session_id);

CREATE TRIGGER run_corrections_stay BEFORE UPDATE ON run_corrections
BEGIN SELECT RAISE(FAIL, 'conflict: a correction is never changed'); END;

CREATE TABLE run_events (
  id INTEGER PRIMARY KEY NOT NULL,
  run_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  number INTEGER NOT NULL,
  turn INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (kind = 'token' OR kind = 'tool_call' OR kind = 'tool_result' OR kind = 'planning' OR kind = 'step_complete' OR kind = 'delegation' OR kind = 'interrupt' OR kind = 'status' OR kind = 'usage' OR kind = 'done' OR kind = 'error' OR kind = 'reasoning' OR kind = 'restart' OR kind = 'line'),
  data TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX run_events_run_id_number ON run_events (run_id, number);

CREATE UNIQUE INDEX run_events_run_id_turn ON run_events (run_id, turn) WHERE kind IN ('done', 'error', 'interrupt');

CREATE INDEX run_events_session_id ON run_events (session_id);

CREATE TRIGGER run_events_stay BEFORE UPDATE ON run_events
BEGIN SELECT RAISE(FAIL, 'conflict: an event of a run cannot be changed'); END;

CREATE TABLE run_health (
  run_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  iteration INTEGER NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  tokens INTEGER NOT NULL,
  token_drift INTEGER NOT NULL,
  messages INTEGER NOT NULL,
  new_messages INTEGER NOT NULL,
  tool_messages INTEGER NOT NULL,
  over_tooling REAL NOT NULL,
  context_rot REAL NOT NULL,
  repeats INTEGER NOT NULL,
  signals TEXT NOT NULL,
  unhealthy INTEGER NOT NULL,
  action TEXT NOT NULL CHECK (action = 'none' OR action = 'compact' OR action = 'warn' OR action = 'stop'),
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (run_id, iteration)
) STRICT;

CREATE INDEX run_health_session_id ON run_health (session_id);

CREATE TABLE run_imports (
  run_id TEXT PRIMARY KEY NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  snapshot_id TEXT NOT NULL,
  origin_run_id TEXT NOT NULL,
  is_copy INTEGER NOT NULL,
  imported_by TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX run_imports_session_id ON run_imports (session_id);

CREATE INDEX run_imports_snapshot_id ON run_imports (snapshot_id);

CREATE TABLE run_lists (
  agent TEXT NOT NULL,
  part TEXT NOT NULL,
  ended_at INTEGER NOT NULL,
  run_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  PRIMARY KEY (agent, part, ended_at, run_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX run_lists_run_id ON run_lists (run_id);

CREATE INDEX run_lists_session_id ON run_lists (session_id);

CREATE TABLE run_moves (
  run_id TEXT PRIMARY KEY NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  snapshot_id TEXT NOT NULL,
  snapshot TEXT NOT NULL,
  exported_by TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE INDEX run_moves_session_id ON run_moves (session_id);

CREATE VIEW run_results AS SELECT r.id AS run_id, r.session_id, r.agent,
  COALESCE(c.number, 0) AS corrections,
  CASE WHEN c.run_id IS NULL THEN r.status ELSE c.after ->> '$.status' END AS status,
  CASE WHEN c.run_id IS NULL THEN r.error_code ELSE c.after ->> '$.error_code' END AS error_code,
  CASE WHEN c.run_id IS NULL THEN r.error_message ELSE c.after ->> '$.error_message' END
    AS error_message,
  CASE WHEN c.run_id IS NULL THEN r.output ->> '$.content' ELSE c.after ->> '$.answer' END AS answer,
  CASE WHEN c.run_id IS NULL THEN r.tool_calls ELSE c.after ->> '$.tool_calls' END AS tool_calls,
  CASE WHEN c.run_id IS NULL THEN r.input_tokens ELSE c.after ->> '$.input_tokens' END
    AS input_tokens,
  CASE WHEN c.run_id IS NULL THEN r.output_tokens ELSE c.after ->> '$.output_tokens' END
    AS output_tokens,
  CASE WHEN c.run_id IS NULL THEN r.cost_micros ELSE c.after ->> '$.cost_micros' END AS cost_micros,
  r.ended_at, COALESCE(c.seq, r.seq) AS seq
FROM runs r LEFT JOIN run_corrections c ON c.run_id = r.id
  AND NOT EXISTS (SELECT 1 FROM run_corrections l WHERE l.run_id = c.run_id AND l.number > c.number)
WHERE r.ended_at IS NOT NULL;

CREATE TABLE run_starters (
  run_id TEXT PRIMARY KEY NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  caller TEXT NOT NULL,
  authority TEXT NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE INDEX run_starters_session_id ON run_starters (session_id);

CREATE TABLE run_traces (
  run_id TEXT PRIMARY KEY NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  trace_id TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status = 'complete' OR status = 'partial'),
  spans INTEGER NOT NULL,
  error TEXT,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX run_traces_session_id ON run_traces (session_id);

CREATE TABLE runs (
  id TEXT PRIMARY KEY NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  agent TEXT NOT NULL REFERENCES agents(name) DEFERRABLE INITIALLY DEFERRED,
  revision INTEGER NOT NULL,
  parent_id TEXT REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  status TEXT NOT NULL CHECK (status = 'running' OR status = 'waiting' OR status = 'done' OR status = 'failed' OR status = 'aborted'),
  reason TEXT,
  driver TEXT,
  fencing_token INTEGER,
  lease_expires_at INTEGER,
  turn INTEGER NOT NULL,
  iterations INTEGER NOT NULL,
  tool_calls INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  usage_missing INTEGER NOT NULL,
  cost_micros INTEGER,
  events INTEGER NOT NULL,
  deadline_at INTEGER,
  abort_requested_at INTEGER,
  output TEXT,
  error_code TEXT,
  error_message TEXT,
  created_at INTEGER NOT NULL,
  ended_at INTEGER,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  waited_us INTEGER,
  waiting_since INTEGER,
  CHECK ((driver IS NULL) = (lease_expires_at IS NULL))
) STRICT;

CREATE INDEX runs_created_at_id ON runs (created_at, id) WHERE status = 'running' AND driver IS NULL;

CREATE INDEX runs_deadline_at ON runs (deadline_at) WHERE status = 'waiting' AND deadline_at IS NOT NULL;

CREATE TRIGGER runs_ended BEFORE UPDATE ON runs
WHEN OLD.status NOT IN ('running', 'waiting')
BEGIN SELECT RAISE(FAIL, 'bad_transition: the run has ended'); END;

CREATE TRIGGER runs_fencing BEFORE UPDATE OF fencing_token ON runs
WHEN NEW.fencing_token < OLD.fencing_token
BEGIN SELECT RAISE(FAIL, 'lease_lost: the run was claimed by another'); END;

CREATE INDEX runs_lease_expires_at ON runs (lease_expires_at) WHERE status = 'running' AND lease_expires_at IS NOT NULL;

CREATE UNIQUE INDEX runs_session_id ON runs (session_id) WHERE status IN ('running', 'waiting');

CREATE INDEX runs_session_id_created_at ON runs (session_id, created_at);

CREATE TABLE session_copies (
  id TEXT PRIMARY KEY NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  caller TEXT NOT NULL,
  authority TEXT,
  progress TEXT NOT NULL,
  due_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE INDEX session_copies_due_at ON session_copies (due_at);

CREATE INDEX session_copies_session_id ON session_copies (session_id);

CREATE TABLE session_forks (
  session_id TEXT PRIMARY KEY NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  origin_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  at INTEGER NOT NULL,
  messages INTEGER NOT NULL,
  calls INTEGER NOT NULL,
  forked_by TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  ended_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX session_forks_origin_id ON session_forks (origin_id);

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
  cancel_requested_at INTEGER,
  cancel_reason TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE TRIGGER sessions_ended BEFORE UPDATE OF
  id, agent, status, parent_id, title, scope, metadata, result, error_code, error_message, reason,
  cancel_requested_at, cancel_reason, created_at ON sessions
WHEN OLD.status = 'completed' OR OLD.status = 'failed'
BEGIN SELECT RAISE(FAIL, 'bad_transition: the session has ended'); END;

CREATE INDEX sessions_parent_id_id ON sessions (parent_id, id) WHERE parent_id IS NOT NULL;

CREATE TRIGGER sessions_transition BEFORE UPDATE OF status ON sessions
WHEN OLD.status <> NEW.status AND OLD.status || '>' || NEW.status NOT IN (
  'created>active', 'created>suspended', 'created>handed_off', 'created>completed', 'created>failed',
  'active>suspended', 'active>handed_off', 'active>completed', 'active>failed',
  'suspended>active', 'suspended>handed_off', 'suspended>completed', 'suspended>failed',
  'handed_off>active', 'handed_off>failed')
BEGIN SELECT RAISE(FAIL, 'bad_transition: the status of the session does not allow it'); END;

CREATE TABLE timer_counts (
  scope TEXT PRIMARY KEY NOT NULL,
  pending INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE timers (
  id TEXT PRIMARY KEY NOT NULL,
  session_id TEXT REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  name TEXT,
  status TEXT NOT NULL CHECK (status = 'pending' OR status = 'fired' OR status = 'cancelled'),
  due_at INTEGER NOT NULL,
  message TEXT,
  resume INTEGER NOT NULL,
  data TEXT,
  fired_at INTEGER,
  created_at INTEGER NOT NULL,
  created_seq INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE INDEX timers_due_at ON timers (due_at) WHERE status = 'pending';

CREATE TRIGGER timers_ended BEFORE UPDATE ON timers
WHEN OLD.status <> 'pending'
BEGIN SELECT RAISE(FAIL, 'conflict: the timer has ended'); END;

CREATE INDEX timers_session_id_status_id ON timers (session_id, status, id) WHERE session_id IS NOT NULL;

CREATE TABLE tokens (
  id TEXT PRIMARY KEY NOT NULL,
  identity_id TEXT NOT NULL REFERENCES identities(id) DEFERRABLE INITIALLY DEFERRED,
  hash TEXT NOT NULL,
  last_four TEXT NOT NULL,
  label TEXT,
  expires_at INTEGER,
  revoked_at INTEGER,
  created_by TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE INDEX tokens_identity_id ON tokens (identity_id);

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
  claimed_at INTEGER,
  lease_expires_at INTEGER,
  retry_at INTEGER,
  cancel_requested_at INTEGER,
  result TEXT,
  error TEXT,
  evidence TEXT,
  settled_by TEXT,
  created_at INTEGER NOT NULL,
  created_seq INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  CHECK (status <> 'claimed' OR (fencing_token IS NOT NULL
    AND lease_expires_at IS NOT NULL AND attempt > 0)),
  CHECK (status <> 'pending' OR lease_expires_at IS NULL)
) STRICT;

CREATE TRIGGER tool_calls_arguments BEFORE UPDATE OF arguments ON tool_calls
WHEN OLD.arguments <> NEW.arguments AND OLD.status <> 'awaiting_approval'
BEGIN SELECT RAISE(FAIL, 'conflict: the arguments of the tool call stand'); END;

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

CREATE INDEX tool_calls_session_id_status_cancel_requested_at ON tool_calls (session_id, status, cancel_requested_at);

CREATE INDEX tool_calls_status_lease_expires_at_retry_at_tool_name ON tool_calls (status, lease_expires_at, retry_at, tool_name);

CREATE INDEX tool_calls_tool_name ON tool_calls (tool_name) WHERE status = 'claimed';

CREATE INDEX tool_calls_tool_name_session_id ON tool_calls (tool_name, session_id);

CREATE TRIGGER tool_calls_unknown BEFORE UPDATE OF status ON tool_calls
WHEN OLD.status = 'unknown' AND NEW.status <> 'unknown'
  AND NEW.status <> 'succeeded' AND NEW.status <> 'failed'
BEGIN SELECT RAISE(FAIL, 'conflict: the tool call may have run, it can only be settled'); END;

CREATE TABLE tool_claims (
  tool_name TEXT NOT NULL REFERENCES tools(name) DEFERRABLE INITIALLY DEFERRED,
  seq INTEGER NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (tool_name, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE tool_exchanges (
  call_id TEXT NOT NULL REFERENCES tool_calls(call_id) DEFERRABLE INITIALLY DEFERRED,
  number INTEGER NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  kind TEXT NOT NULL CHECK (kind = 'asked' OR kind = 'answered' OR kind = 'task'),
  data TEXT NOT NULL,
  ended_at INTEGER,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (call_id, number)
) STRICT;

CREATE INDEX tool_exchanges_call_id ON tool_exchanges (call_id) WHERE kind = 'task' AND ended_at IS NULL;

CREATE INDEX tool_exchanges_session_id ON tool_exchanges (session_id);

CREATE TABLE tool_versions (
  name TEXT NOT NULL REFERENCES tools(name) DEFERRABLE INITIALLY DEFERRED,
  version INTEGER NOT NULL,
  manifest TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (name, version)
) STRICT;

CREATE TABLE tools (
  name TEXT PRIMARY KEY NOT NULL,
  version INTEGER NOT NULL,
  description TEXT,
  input_schema TEXT,
  effect TEXT NOT NULL CHECK (effect = 'read_only' OR effect = 'idempotent' OR effect = 'at_most_once'),
  annotations TEXT,
  needs_approval INTEGER NOT NULL,
  approval TEXT,
  timeout_ms INTEGER,
  retry TEXT,
  required_capability TEXT,
  limits TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT;

CREATE VIEW undelivered_results AS SELECT c.call_id, c.session_id, c.tool_name, c.status, c.result,
  c.error, c.updated_at, c.seq
FROM tool_calls c JOIN sessions s ON s.id = c.session_id
WHERE (c.status = 'succeeded' OR c.status = 'failed')
  AND (s.status = 'completed' OR s.status = 'failed') AND c.seq >= s.seq;

CREATE VIEW unknown_tool_calls AS SELECT c.call_id, c.session_id, c.tool_name, c.arguments, c.attempt,
  c.claimed_by, c.claimed_at, c.error, l.lost_at, l.outcome AS late_outcome, l.result AS late_result,
  l.error AS late_error, l.reported_at, c.seq
FROM tool_calls c
LEFT JOIN lost_leases l ON l.call_id = c.call_id AND l.attempt = c.attempt
WHERE c.status = 'unknown';

CREATE TABLE wait_limits (
  run_id TEXT PRIMARY KEY NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  ends_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX wait_limits_ends_at ON wait_limits (ends_at);

CREATE INDEX wait_limits_session_id ON wait_limits (session_id);

CREATE TABLE waiting (
  queue TEXT NOT NULL,
  part TEXT NOT NULL,
  since INTEGER NOT NULL,
  id TEXT NOT NULL,
  PRIMARY KEY (queue, part, since, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE watchdog_actions (
  action TEXT PRIMARY KEY NOT NULL CHECK (action = 'none' OR action = 'compact' OR action = 'warn' OR action = 'stop'),
  count INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE webhooks (
  id TEXT PRIMARY KEY NOT NULL,
  run_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  name TEXT NOT NULL,
  url TEXT NOT NULL,
  token TEXT,
  scheme TEXT,
  credentials TEXT,
  status TEXT NOT NULL CHECK (status = 'active' OR status = 'done' OR status = 'failed'),
  delivered INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  due_at INTEGER,
  error TEXT,
  set_by TEXT NOT NULL,
  authority TEXT,
  set_seq INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX webhooks_due_at ON webhooks (due_at) WHERE status = 'active' AND due_at IS NOT NULL;

CREATE INDEX webhooks_run_id ON webhooks (run_id);

CREATE INDEX webhooks_session_id ON webhooks (session_id);

CREATE INDEX webhooks_status ON webhooks (status) WHERE status = 'active';

CREATE TABLE withheld_answers (
  run_id TEXT NOT NULL REFERENCES runs(id) DEFERRABLE INITIALLY DEFERRED,
  iteration INTEGER NOT NULL,
  session_id TEXT NOT NULL REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED,
  original TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (run_id, iteration)
) STRICT;

CREATE INDEX withheld_answers_session_id ON withheld_answers (session_id);
