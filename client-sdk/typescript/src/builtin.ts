// Written by abide-types from the schema of a database. Do not edit it.

import type { Json, SqlValue } from "./values.js";

/** The rows of the tables and views by name. Integers beyond 2^53 - 1 arrive as `bigint`. */
export interface BuiltinTables {
  /** A session: a durable, addressable unit of an agent's work. */
  sessions: {
    /** Its id, chosen by the caller, or `s_` and a ULID. */
    id: string;
    /** The agent that owns it. */
    agent: string;
    /** Its status. */
    status: "created" | "active" | "suspended" | "handed_off" | "completed" | "failed";
    /** The parent session. */
    parent_id: string | null;
    /** A title for people. */
    title: string | null;
    /** Application-defined keys, such as a tenant, that decide who can see the session. JSON text. */
    scope: string;
    /** Other data of the application. JSON text. */
    metadata: string;
    /** Its result. JSON text. */
    result: string | null;
    /** Why it failed, for programs; `cancelled` if it was cancelled. */
    error_code: string | null;
    /** Why it failed, for people. */
    error_message: string | null;
    /** The reason for its status, if given. */
    reason: string | null;
    /** When its cancellation was requested. It ends when its workers have stopped. */
    cancel_requested_at: number | null;
    /** Why it was cancelled. */
    cancel_reason: string | null;
    /** When it was created. */
    created_at: number;
    /** When it last changed, including its messages. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** One message or state entry of a session. */
  agent_state: {
    /** Its number; later entries have larger ones. */
    id: number;
    /** The session. */
    session_id: string;
    /** The author's role: system, user, assistant, tool, or any other name that a framework uses. */
    role: string;
    /** The kind of entry: `message`, or another kind. */
    kind: string;
    /** The text. */
    content: string | null;
    /** Other data: tool calls, names, usage. JSON text. */
    data: string | null;
    /** When it was written. */
    created_at: number;
    /** The event that wrote it. */
    seq: number;
    /** The run whose driver wrote it, under its lease. Null for an entry of another caller: its data has no effect on a run. */
    run_id: string | null;
  };
  /** A registered tool, in its newest version. */
  tools: {
    /** Its name. */
    name: string;
    /** Starts at 1; every change increments it. */
    version: number;
    /** Its effect, for the model. */
    description: string | null;
    /** The JSON Schema of its arguments. JSON text. */
    input_schema: string | null;
    /** Whether it can safely run twice. */
    effect: "read_only" | "idempotent" | "at_most_once";
    /** Its MCP annotations. JSON text. */
    annotations: string | null;
    /** Whether each call needs an approval. */
    needs_approval: number;
    /** Approval settings: `{"prompt", "defaults", "expires_after_ms", "required_capability"}`. JSON text. */
    approval: string | null;
    /** Time limit of one attempt; no lease extends beyond it. */
    timeout_ms: number | null;
    /** Retry policy: `{"max_attempts", "backoff_ms", "backoff_max_ms"}`. JSON text. */
    retry: string | null;
    /** The capability that a worker needs. */
    required_capability: string | null;
    /** Limits: `{"calls_per_session", "concurrency", "rate"}`. JSON text. */
    limits: string | null;
    /** When it was first registered. */
    created_at: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** One version of a tool, kept for the calls that were requested with it. */
  tool_versions: {
    /** The tool. */
    name: string;
    /** The version. */
    version: number;
    /** The tool's row at that time. JSON text. */
    manifest: string;
    /** When it was registered. */
    created_at: number;
    /** The event that registered it. */
    seq: number;
  };
  /** A call of a tool by a session. */
  tool_calls: {
    /** The key that identifies the call across repeated requests. */
    call_id: string;
    /** The session. */
    session_id: string;
    /** The tool. */
    tool_name: string;
    /** The tool's version when the call was requested; its rules apply. */
    tool_version: number;
    /** The arguments to run with. JSON text. */
    arguments: string;
    /** The model provider's id of the call: an attribute, never a key. */
    provider_call_id: string | null;
    /** Its status. */
    status: "pending" | "awaiting_approval" | "claimed" | "succeeded" | "failed" | "rejected" | "cancelled" | "unknown";
    /** Number of claims. */
    attempt: number;
    /** Identifies the claim, also among claims of one identity. It is the claim's seq, so it only increases. The caller of that event holds the lease; only it can end the call. */
    fencing_token: number | null;
    /** The current or last holder. */
    claimed_by: string | null;
    /** When the last attempt began. */
    claimed_at: number | null;
    /** When the lease expires. */
    lease_expires_at: number | null;
    /** The time of the next attempt of a pending call; it cannot be claimed before. */
    retry_at: number | null;
    /** When its cancellation was requested: its worker is asked to stop. */
    cancel_requested_at: number | null;
    /** Its result. JSON text. */
    result: string | null;
    /** Its error, or why its outcome is unknown. */
    error: string | null;
    /** The evidence of a settlement. JSON text. */
    evidence: string | null;
    /** The caller that settled the unknown outcome. */
    settled_by: string | null;
    /** When it was requested. */
    created_at: number;
    /** The event that requested it. */
    created_seq: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** An expired lease, and what its holder reported afterwards: too late, but kept for the settlement. */
  lost_leases: {
    /** The call. */
    call_id: string;
    /** The claim's fencing token. */
    fencing_token: number;
    /** The call's session. */
    session_id: string;
    /** The attempt. */
    attempt: number;
    /** The former holder. */
    claimed_by: string | null;
    /** When it expired. */
    lost_at: number;
    /** The outcome that the holder reported too late. */
    outcome: string | null;
    /** The reported result. JSON text. */
    result: string | null;
    /** The reported error. */
    error: string | null;
    /** When it was reported. */
    reported_at: number | null;
    /** The event that last changed it. */
    seq: number;
  };
  /** A claim of a rate-limited tool; deleted after the rate period. */
  tool_claims: {
    /** The tool. */
    tool_name: string;
    /** The claim. */
    seq: number;
    /** When it was claimed. */
    at: number;
  };
  /** Work that can be claimed, under one key of its session's scope. */
  waiting: {
    /** Its queue: `r`, or `t` and the name of a tool. */
    queue: string;
    /** One key of the scope and its value, as JSON. */
    part: string;
    /** Since when it waits: a seq, or a time in microseconds. */
    since: number;
    /** The call or the run. */
    id: string;
  };
  /** An approval of a tool call. */
  approvals: {
    /** Its id. */
    id: string;
    /** The call. */
    call_id: string;
    /** The call's session. */
    session_id: string;
    /** The call's tool. */
    tool_name: string;
    /** Its status. */
    status: "pending" | "approved" | "rejected" | "expired" | "cancelled";
    /** The requested arguments. JSON text. */
    arguments: string;
    /** A salted digest of the arguments, in hexadecimal: a decision is bound to it. It is read from this column and cannot be computed from the arguments. */
    arguments_hash: string;
    /** The approved arguments, if the approver changed them. JSON text. */
    approved_arguments: string | null;
    /** The question for the approver. */
    prompt: string | null;
    /** Initial values of the approver's form. JSON text. */
    defaults: string | null;
    /** The capability that an approver needs. */
    required_capability: string | null;
    /** The approver. */
    decided_by: string | null;
    /** The approver's comment. */
    comment: string | null;
    /** When it expires. */
    expires_at: number | null;
    /** When it was requested. */
    created_at: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** A session's request for a supervisor. */
  handoff_requests: {
    /** Its id. */
    id: string;
    /** The session. */
    session_id: string;
    /** Why it was requested. */
    reason: string;
    /** The capability that a supervisor needs. */
    required_capability: string;
    /** Other data for the supervisor. JSON text. */
    data: string | null;
    /** Its status. */
    status: "pending" | "claimed" | "resolved" | "rejected" | "expired" | "cancelled";
    /** The supervisor that claimed it. */
    claimed_by: string | null;
    /** The claim's fencing token: its seq, so it only increases. */
    fencing_token: number | null;
    /** When the lease expires. */
    lease_expires_at: number | null;
    /** When it is escalated if still unclaimed. */
    escalate_at: number | null;
    /** The capability that a supervisor needs after the escalation. */
    escalate_to: string | null;
    /** When it was escalated. */
    escalated_at: number | null;
    /** When it expires if still unclaimed. */
    expires_at: number | null;
    /** The supervisor's resolution, or the reason for the rejection. */
    resolution: string | null;
    /** When it was requested. */
    created_at: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** A tool call whose result is the answer to a handoff. */
  handoff_calls: {
    /** The handoff. */
    handoff_id: string;
    /** Its session. */
    session_id: string;
    /** The call. */
    call_id: string;
    /** The event that recorded it. */
    seq: number;
  };
  /** An agent, in its newest revision. */
  agents: {
    /** Its name. */
    name: string;
    /** Starts at 1; every change increments it. */
    revision: number;
    /** A salted digest of the definition, in hexadecimal: it changes with every revision, and cannot be computed from the definition. */
    digest: string;
    /** How it can be used. */
    mode: "primary" | "subagent" | "all";
    /** Its purpose. */
    description: string | null;
    /** Whether lists omit it. */
    hidden: number;
    /** Whether it comes with the runtime, as opposed to a user's file. */
    native: number;
    /** When it was retired: it starts no more runs. */
    retired_at: number | null;
    /** When it was first registered. */
    created_at: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** One revision of an agent, kept for the runs that started with it. */
  agent_revisions: {
    /** The agent. */
    agent: string;
    /** The revision. */
    revision: number;
    /** A salted digest of the definition, in hexadecimal: it changes with every revision, and cannot be computed from the definition. */
    digest: string;
    /** The complete definition. JSON text. */
    definition: string;
    /** When it was registered. */
    created_at: number;
    /** The event that registered it. */
    seq: number;
  };
  /** An agent's run in a session. */
  runs: {
    /** Its id, chosen by the caller, or `run_` and a ULID. */
    id: string;
    /** The session. */
    session_id: string;
    /** The agent. */
    agent: string;
    /** The agent's revision at the start, which applies until the end. */
    revision: number;
    /** The run that delegated to it. */
    parent_id: string | null;
    /** Its status. */
    status: "running" | "waiting" | "done" | "failed" | "aborted";
    /** The reason for which it waits, or why it was aborted. */
    reason: string | null;
    /** Its driver. */
    driver: string | null;
    /** The claim's fencing token: calls with another one are refused. It is the claim's seq, so it only increases. */
    fencing_token: number | null;
    /** When the lease expires. */
    lease_expires_at: number | null;
    /** The current turn, from 1. A turn ends when the run waits. */
    turn: number;
    /** Answers of the model so far. */
    iterations: number;
    /** Tool calls requested by the model so far. */
    tool_calls: number;
    /** Input tokens, as far as reported by providers. */
    input_tokens: number;
    /** Output tokens, as far as reported by providers. */
    output_tokens: number;
    /** Answers whose usage the provider reported incompletely or not at all. */
    usage_missing: number;
    /** Its cost so far, in millionths of a dollar, if prices are known. */
    cost_micros: number | null;
    /** Number of events so far. */
    events: number;
    /** When it must have ended, whether it waits or not. */
    deadline_at: number | null;
    /** When its abort was requested: its driver is asked to stop. */
    abort_requested_at: number | null;
    /** Its answer. JSON text. */
    output: string | null;
    /** Why it failed, for programs. */
    error_code: string | null;
    /** Why it failed, for people. */
    error_message: string | null;
    /** When it began. */
    created_at: number;
    /** When it ended. */
    ended_at: number | null;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
    /** Microseconds that it has waited, without the current wait. Null if it has not. */
    waited_us: number | null;
    /** When its current wait began. */
    waiting_since: number | null;
  };
  /** When a run that waits ends, if an agent that has taken over its turn has a time limit that includes waits. It applies only while the run waits; the next wait replaces it. */
  wait_limits: {
    /** The run. */
    run_id: string;
    /** Its session. */
    session_id: string;
    /** When the run ends if it still waits. */
    ends_at: number;
    /** The event that recorded it. */
    seq: number;
  };
  /** The restrictions of the caller that started a run, and of the runs that it delegates. A run without a row was started by an unrestricted caller. */
  run_starters: {
    /** The run. */
    run_id: string;
    /** Its session. */
    session_id: string;
    /** The caller's id. */
    caller: string;
    /** The caller's role, capabilities and scope, as in the log. JSON text. */
    authority: string;
    /** The event that started the run. */
    seq: number;
  };
  /** The agents that have taken over the turn of a run. A run without a row is at its own agent. */
  active_agents: {
    /** The run. */
    run_id: string;
    /** Its session. */
    session_id: string;
    /** Their names, in the order of the handoffs. The last one is active. JSON text. */
    agents: string;
    /** The event of the last handoff. */
    seq: number;
  };
  /** A run in the list of its agent. */
  run_lists: {
    /** The agent. */
    agent: string;
    /** One key of the scope and its value, as JSON; empty in the list of all runs. */
    part: string;
    /** When the run ended, in microseconds since 1970; the largest number while it is active. */
    ended_at: number;
    /** The run. */
    run_id: string;
    /** Its session. */
    session_id: string;
  };
  /** One event of a run. */
  run_events: {
    /** Its number among all run events; later ones are larger. */
    id: number;
    /** The run. */
    run_id: string;
    /** The run's session. */
    session_id: string;
    /** Its number in the run: 1, 2, 3 … */
    number: number;
    /** The turn. */
    turn: number;
    /** Its kind. */
    kind: string;
    /** Its data. JSON text. */
    data: string;
    /** When it happened. */
    created_at: number;
    /** The event of the log that wrote it. */
    seq: number;
  };
  /** A run that another run has delegated a task to. */
  delegations: {
    /** The session of the child run. */
    session_id: string;
    /** The child run. */
    run_id: string;
    /** The run that it was started for. */
    parent_id: string;
    /** The root run, which has no parent. */
    root_id: string;
    /** The tool call that it was started for, if any. */
    call_id: string | null;
    /** The number of its ancestors. */
    depth: number;
    /** When it was started. */
    created_at: number;
    /** The event that started it. */
    seq: number;
  };
  /** The budget of a run. The row is written when the run, or a run below it, first asks a model. */
  run_budgets: {
    /** The run. */
    run_id: string;
    /** Its session. */
    session_id: string;
    /** Maximum number of tokens; null if there is no such limit. */
    token_limit: number | null;
    /** Maximum cost in millionths of a dollar; null if there is no such limit. */
    cost_limit_micros: number | null;
    /** Tokens that the run and the runs below it have consumed. An answer of unknown usage counts as estimated. */
    tokens: number;
    /** The cost that the run and the runs below it have consumed. */
    cost_micros: number;
    /** Tokens that are reserved for answers in progress. */
    reserved_tokens: number;
    /** The cost that is reserved for answers in progress. */
    reserved_cost_micros: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** The reservation of a run for the answer that it waits for. */
  reservations: {
    /** The run. */
    run_id: string;
    /** Its session. */
    session_id: string;
    /** Tokens. */
    tokens: number;
    /** Cost in millionths of a dollar. */
    cost_micros: number;
    /** When it was reserved. */
    created_at: number;
    /** The event that reserved it. */
    seq: number;
  };
  /** A timer. */
  timers: {
    /** Its id, chosen by the caller, or `tm_` and a ULID. */
    id: string;
    /** The session that it belongs to. */
    session_id: string | null;
    /** Its purpose. */
    name: string | null;
    /** Its status. */
    status: "pending" | "fired" | "cancelled";
    /** When it is due. */
    due_at: number;
    /** The message appended to the session when it fires. */
    message: string | null;
    /** Whether it resumes the session if it is suspended. */
    resume: number;
    /** Other data. JSON text. */
    data: string | null;
    /** When it fired: at the due time or later. */
    fired_at: number | null;
    /** When it was set. */
    created_at: number;
    /** The event that set it. */
    created_seq: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** The number of pending timers of one scope. A scope without pending timers has no row. */
  timer_counts: {
    /** The scope, as that of the sessions; `{}` for timers without a session. */
    scope: string;
    /** Pending timers. */
    pending: number;
  };
  /** The rows and columns of a table that callers of a role may see. The engine reads this table as the module declares. */
  policies: {
    /** The table. */
    table_name: string;
    /** The role; `*` means every role. */
    role: string;
    /** Its name, unique for a table and role. */
    name: string;
    /** The visible rows: SQL over the row's columns and `:caller_id`, `:caller_role`, `:caller_scope`, `:caller_capabilities` and `:scope_<key>`. NULL: all rows. */
    condition: string | null;
    /** The hidden columns, a JSON array. JSON text. */
    hidden: string;
    /** The caller that set it. */
    set_by: string;
    /** When it was first set. */
    created_at: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** A custom role. */
  roles: {
    /** Its name. */
    name: string;
    /** A description for people. */
    description: string | null;
    /** The reducers that it may call, a JSON array; `*` means all except those that manage identities, tokens, roles and policies. JSON text. */
    reducers: string;
    /** Capabilities of every identity with this role, a JSON array of texts. JSON text. */
    capabilities: string;
    /** Limits of an identity that does not set its own. JSON text. */
    limits: string | null;
    /** When it was created. */
    created_at: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** An identity that can call reducers: a person, a program, an agent. */
  identities: {
    /** Its id, as it appears in the log. */
    id: string;
    /** Its role, which determines the reducers it may call: `app`, `agent`, `worker`, `supervisor`, `auditor`, `admin`, or a row of `roles`. */
    role: string;
    /** Its capabilities, a JSON array of texts; `*` means all. Those of its role are added. JSON text. */
    capabilities: string;
    /** Its scope, a JSON object of texts: it can access sessions whose scope has all of these entries. JSON text. */
    scope: string;
    /** Its limits: `{"rate": {"calls", "per_ms"}, "quota": {"calls", "per_ms"}}`. JSON text. */
    limits: string | null;
    /** When it was disabled. */
    disabled_at: number | null;
    /** Why it was disabled. */
    disabled_reason: string | null;
    /** The caller that created it. */
    created_by: string;
    /** When it was created. */
    created_at: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** A token of an identity. */
  tokens: {
    /** Its id, the part of it that is not secret. */
    id: string;
    /** The identity. */
    identity_id: string;
    /** SHA-256 of the whole token, in hexadecimal. */
    hash: string;
    /** Its last four letters, to recognise it. */
    last_four: string;
    /** A description for people. */
    label: string | null;
    /** When it expires. */
    expires_at: number | null;
    /** When it was revoked. */
    revoked_at: number | null;
    /** The caller that created it. */
    created_by: string;
    /** When it was created. */
    created_at: number;
    /** The event that last changed it. */
    seq: number;
  };
  /** A denied attempt. */
  denied_attempts: {
    /** Its number. */
    id: number;
    /** The caller. */
    caller: string;
    /** The reducer, or the other kind of request. */
    what: string;
    /** The reason. */
    why: string;
    /** Number of this caller's unrecorded attempts since the previous record. */
    missed: number;
    /** When it happened. */
    at: number;
    /** The event. */
    seq: number;
  };
  /** An unfinished cleanup. */
  cleanups: {
    /** Its id. Each step has a new one, so that no two deadline calls have the same key. */
    id: string;
    /** The object that it ends. */
    kind: string;
    /** The session. */
    session_id: string;
    /** The reason, for its child sessions. */
    reason: string | null;
    /** The last processed child, in the order of ids. */
    after: string | null;
    /** Calls created up to this event are ended. A run that starts after an abort keeps its own calls. */
    up_to: number;
    /** When the next step is due: immediately. */
    due_at: number;
    /** The event that wrote it. */
    seq: number;
    /** The run that the steps have reached, for a cleanup of delegated runs. */
    run_id: string | null;
    /** The session or run where the cleanup started, if the steps are below it. */
    top: string | null;
  };
  /** A set of entries with a common scope. */
  collections: {
    /** Its id, chosen by the caller. */
    id: string;
    /** The kind of its content, as the application names it. */
    kind: string;
    /** Application-defined keys, such as a tenant, that decide who can see its entries. JSON text. */
    scope: string;
    /** The largest fencing token of a write; null if it is not fenced. */
    fencing_token: number | null;
    /** When it was created. */
    created_at: number;
    /** The event of the last change, except of its entries. */
    seq: number;
  };
  /** One entry of a collection. */
  entries: {
    /** The collection. */
    collection_id: string;
    /** Its key. Entries are ordered by the bytes of their keys. */
    key: string;
    /** Its JSON value. JSON text. */
    data: string | null;
    /** Its bytes. */
    blob: Uint8Array | null;
    /** When it was first written. */
    created_at: number;
    /** When it was last written. */
    updated_at: number;
    /** The event that wrote it last: its version. */
    seq: number;
  };
  /** The withheld part of an answer. */
  withheld_answers: {
    /** The run. */
    run_id: string;
    /** The number of the answer in the run, from 1: `iteration` in the data of its message. */
    iteration: number;
    /** The session of the run. */
    session_id: string;
    /** The original: `{"text", "reasoning", "calls", "carry"}`, only the withheld members. JSON text. */
    original: string;
    /** When it was recorded. */
    created_at: number;
    /** The event that recorded it. */
    seq: number;
  };
  /** A correction of the result of a run. */
  run_corrections: {
    /** The run. */
    run_id: string;
    /** Its number among the corrections of the run, from 1. The last one counts. */
    number: number;
    /** The session of the run. */
    session_id: string;
    /** The result before it: that of the run, or of the correction before. JSON text. */
    before: string;
    /** The result after it: `status`, `error_code`, `error_message`, `answer`, `tool_calls`, `input_tokens`, `output_tokens`, `cost_micros`. JSON text. */
    after: string;
    /** All lines that are read differently than in the events of the run: a JSON array of `{number, events}`, with the number of the line's event and what the line means. JSON text. */
    lines: string;
    /** Why, for people. */
    reason: string | null;
    /** When it was recorded. */
    created_at: number;
    /** The event that recorded it. */
    seq: number;
  };
  /** The newest pause of a run. */
  pauses: {
    /** The run. */
    run_id: string;
    /** Its session. */
    session_id: string;
    /** Its status. */
    status: "requested" | "paused" | "resumed";
    /** The requested stage; null: the next one, whichever it is. */
    requested_stage: "after_agent" | "after_tools" | "after_loop" | "before_guardrails" | null;
    /** The stage of the last pause. */
    stage: "after_agent" | "after_tools" | "after_loop" | "before_guardrails" | null;
    /** How many answers the run had at the last pause. */
    iteration: number | null;
    /** Why, for people. */
    reason: string | null;
    /** The caller that requested it; null if a rule or a callback paused the run. */
    requested_by: string | null;
    /** When it was requested. */
    requested_at: number;
    /** When the run paused. */
    paused_at: number | null;
    /** When the run was resumed. */
    resumed_at: number | null;
    /** The event of the last change. */
    seq: number;
  };
  /** A run that was exported and continues elsewhere. It has ended here, with the code `moved`. */
  run_moves: {
    /** The run. */
    run_id: string;
    /** Its session. */
    session_id: string;
    /** The id of the snapshot. */
    snapshot_id: string;
    /** The snapshot: a repeated export returns it. JSON text. */
    snapshot: string;
    /** The caller that exported it. */
    exported_by: string;
    /** When it was exported. */
    created_at: number;
    /** The event that exported it. */
    seq: number;
  };
  /** A run that was imported. */
  run_imports: {
    /** The run. */
    run_id: string;
    /** Its session. */
    session_id: string;
    /** The id of the snapshot. */
    snapshot_id: string;
    /** The id of the run where it was exported. */
    origin_run_id: string;
    /** Whether the snapshot is a copy: the run continues at its origin, too. */
    is_copy: number;
    /** The caller that imported it. */
    imported_by: string;
    /** When it was imported. */
    created_at: number;
    /** The event that imported it. */
    seq: number;
  };
  /** A session that was forked from another one. */
  session_forks: {
    /** The new session. */
    session_id: string;
    /** The session that it has the history of. */
    origin_id: string;
    /** The last event of the log that the history includes. */
    at: number;
    /** Number of messages that were copied so far. */
    messages: number;
    /** Number of tool calls whose outcomes were copied so far. */
    calls: number;
    /** The caller that forked it. */
    forked_by: string;
    /** When it was forked. */
    created_at: number;
    /** The event that forked it. */
    seq: number;
    /** When the copy ended; null while it is in progress. If it failed, the new session is `failed`. */
    ended_at: number | null;
  };
  /** A fork that is not complete: its next step. */
  session_copies: {
    /** Its id. Each step has a new one, so that no two deadline calls have the same key. */
    id: string;
    /** The new session. */
    session_id: string;
    /** The caller that forked the session, and makes the steps. */
    caller: string;
    /** Its restrictions, as in the log; null if it has none. */
    authority: string | null;
    /** The place that the steps have reached. JSON text. */
    progress: string;
    /** When the next step is due: immediately. */
    due_at: number;
    /** The event that wrote it. */
    seq: number;
  };
  /** The trace of a run that has ended. */
  run_traces: {
    /** The run. */
    run_id: string;
    /** Its session. */
    session_id: string;
    /** The id of the trace in the sinks, in hexadecimal. */
    trace_id: string;
    /** Its status. */
    status: "complete" | "partial";
    /** Number of its spans. */
    spans: number;
    /** Why it is partial. */
    error: string | null;
    /** When it was sent. */
    created_at: number;
    /** The event that recorded it. */
    seq: number;
  };
  /** A fact that an agent remembers. */
  memories: {
    /** Its number. */
    id: number;
    /** The space: `support@tenant=acme/` is the namespace `support` within the scope `{"tenant": "acme"}`. The id of a session follows if the facts belong to one session. */
    space: string;
    /** The namespace: the name of the agent, or a name that several agents share. */
    namespace: string;
    /** The session that it belongs to; null if all sessions of the scope share it. */
    session_id: string | null;
    /** The scope that it belongs to. JSON text. */
    scope: string;
    /** The subject of the fact. A space has one fact with a key. */
    key: string;
    /** The fact. */
    value: string;
    /** How certain it is, from 0 to 1. */
    confidence: number;
    /** The event of the log in which it was learned. */
    source_seq: number;
    /** When it was first learned. */
    created_at: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** The vector of a fact, for search by meaning. */
  memory_vectors: {
    /** The fact. */
    memory_id: number;
    /** The model that made it. Vectors of different models cannot be compared. */
    model: string;
    /** The numbers: 32-bit floats, little-endian. */
    vector: Uint8Array;
    /** The event that stored it. */
    seq: number;
  };
  /** The measurements of one answer of a run. */
  run_health: {
    /** The run. */
    run_id: string;
    /** The number of the answer in the run, from 1. */
    iteration: number;
    /** The session of the run. */
    session_id: string;
    /** Tokens of the request. */
    tokens: number;
    /** Tokens more than in the request before; 0 if there are fewer. */
    token_drift: number;
    /** Messages of the conversation that the model read. */
    messages: number;
    /** Messages that the conversation has gained since the answer before, with this answer. */
    new_messages: number;
    /** Tool results among them. */
    tool_messages: number;
    /** `tool_messages` divided by `new_messages`. */
    over_tooling: number;
    /** Twice the summaries, plus the archived results, plus the markers that replace results, per message. */
    context_rot: number;
    /** How many consecutive answers, up to this one, have requested the same calls and got the same results; 0 without calls. */
    repeats: number;
    /** The thresholds that are reached: a JSON array of `token_drift`, `over_tooling`, `context_rot`, `repeats`. JSON text. */
    signals: string;
    /** How many consecutive answers, up to this one, have reached a threshold. */
    unhealthy: number;
    /** The action of the watchdog. */
    action: "none" | "compact" | "warn" | "stop";
    /** When it was recorded. */
    created_at: number;
    /** The event that recorded it. */
    seq: number;
  };
  /** How often the watchdog has acted, in all runs. */
  watchdog_actions: {
    /** The action. */
    action: string;
    /** How often. */
    count: number;
    /** The event of the last change. */
    seq: number;
  };
  /** A summary of a session's messages. */
  context_summaries: {
    /** The session. */
    session_id: string;
    /** Its number in the session: 1, 2, 3 … */
    number: number;
    /** The run that made it. */
    run_id: string;
    /** It covers all messages up to this `agent_state.id`. The model sees markers in place of their results. */
    through_id: number;
    /** The model does not see messages up to this id, except those in `kept`. */
    folded_id: number;
    /** The compaction that it belongs to is complete when a summary covers the messages up to this id. */
    goal_id: number;
    /** `folded_id` of the last summary of that compaction. */
    goal_folded_id: number;
    /** The summary: `{stable_facts: [{key, value, confidence}], active_goals, open_questions, discarded_obsolete, raw_summary}`. JSON text. */
    summary: string;
    /** Ids of messages up to `folded_id` that the model always sees: system messages and the first user message. JSON text. */
    kept: string;
    /** The number of the model's answers up to `folded_id`. */
    answers: number;
    /** The handoffs in effect at `folded_id`: an array. JSON text. */
    handoffs: string;
    /** How it was made: `model`, or `fallback` if the model gave no usable summary. */
    origin: string;
    /** The repairs of the integrity check: `{lost, revived}`; null if none. JSON text. */
    repaired: string | null;
    /** The size of the request in tokens before the compaction. */
    tokens_before: number;
    /** When it was recorded. */
    created_at: number;
    /** The event that recorded it. */
    seq: number;
  };
  /** A result that the model sees as a marker. The original stays in `tool_calls` and `agent_state`. */
  archived_results: {
    /** The message with the result. */
    entry_id: number;
    /** The session. */
    session_id: string;
    /** The execution id in the marker: the id of the call. */
    call_id: string;
    /** The model provider's id of the call. */
    provider_call_id: string | null;
    /** The tool. */
    tool_name: string;
    /** The number of the summary that covers it. */
    number: number;
    /** The size of the result in characters. */
    characters: number;
    /** When it was archived. */
    created_at: number;
    /** The event that archived it. */
    seq: number;
  };
  /** The plan of a session. */
  plans: {
    /** The session. */
    session_id: string;
    /** The number of changes so far. */
    version: number;
    /** The number of its steps. */
    steps: number;
    /** The number of completed steps. The adherence is `completed / steps`, and 1 without steps. */
    completed: number;
    /** The run that last changed it. */
    run_id: string;
    /** When it was first written. */
    created_at: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** A step of the current plan. */
  plan_steps: {
    /** The session. */
    session_id: string;
    /** Its number in the plan: 1, 2, 3 … */
    step: number;
    /** The task. */
    title: string;
    /** Its status. */
    status: string;
    /** More details. */
    description: string | null;
    /** The agent that works on it. */
    owner: string | null;
    /** When it counts as done. */
    exit_criteria: string | null;
    /** The evidence that it is done. */
    evidence: string | null;
    /** The event of the last change. */
    seq: number;
  };
  /** A version of a plan. */
  plan_versions: {
    /** The session. */
    session_id: string;
    /** The version, from 1. */
    version: number;
    /** The run that wrote it. */
    run_id: string;
    /** All steps: an array of objects with the columns of `plan_steps`. JSON text. */
    steps: string;
    /** When it was written. */
    created_at: number;
    /** The event that wrote it. */
    seq: number;
  };
  /** A prompt, with its newest version. */
  prompts: {
    /** Its name. */
    name: string;
    /** Application-defined keys, such as a tenant, that decide who can see it. JSON text. */
    scope: string;
    /** Its purpose. */
    description: string | null;
    /** The number of its newest version; the first is 1. */
    version: number;
    /** When it was created. */
    created_at: number;
    /** When it last changed, even by a label. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** One version of a prompt. */
  prompt_versions: {
    /** The prompt. */
    prompt: string;
    /** The version. */
    version: number;
    /** The text, with variables as `{{name}}`. */
    text: string;
    /** The variables in the order of their first use, a JSON array of texts. JSON text. */
    variables: string;
    /** The caller that wrote it. */
    created_by: string;
    /** When it was written. */
    created_at: number;
    /** The event that wrote it. */
    seq: number;
  };
  /** A label: a name for a version of a prompt. */
  prompt_labels: {
    /** The prompt. */
    prompt: string;
    /** The label. */
    label: string;
    /** The version that it points to. */
    version: number;
    /** The caller that set it. */
    set_by: string;
    /** When it was last set. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** A webhook of a run. */
  webhooks: {
    /** The id of its run, `~`, and its name. */
    id: string;
    /** The run. */
    run_id: string;
    /** The session of the run. */
    session_id: string;
    /** Its name, unique in the run. */
    name: string;
    /** Where events are sent. */
    url: string;
    /** A secret of the receiver: it is sent with each event, and signs it. */
    token: string | null;
    /** The scheme of the header `authorization`. */
    scheme: string | null;
    /** The credentials of that header. */
    credentials: string | null;
    /** Its status. */
    status: string;
    /** The number of the last event of the run that was delivered. */
    delivered: number;
    /** Attempts since then that have failed. */
    attempts: number;
    /** When the next attempt is due, after one that has failed. */
    due_at: number | null;
    /** Why the last attempt has failed. */
    error: string | null;
    /** The caller that set it. */
    set_by: string;
    /** The restrictions of that caller, as in the log; null if it has none. Only events that it can see are sent. */
    authority: string | null;
    /** The event that set it: a delivery to a webhook that was replaced meanwhile is not recorded. */
    set_seq: number;
    /** When it was set first. */
    created_at: number;
    /** When it last changed. */
    updated_at: number;
    /** The event of the last change. */
    seq: number;
  };
  /** A step of the exchange between a tool and its server during one call. The request is the call itself, and the last answer is its result; the steps between them are here, so that another worker can continue. */
  tool_exchanges: {
    /** The call. */
    call_id: string;
    /** Its number in the call, from 1. */
    number: number;
    /** The call's session. */
    session_id: string;
    /** Its kind. */
    kind: string;
    /** Its data. The tool defines the structure. JSON text. */
    data: string;
    /** When the task has ended, or was cancelled. */
    ended_at: number | null;
    /** When it was recorded. */
    created_at: number;
    /** The event that last changed it. */
    seq: number;
  };
  /** The append-only log: one row for every call with an effect, chained by hash. */
  events: {
    /** Its position: 1, 2, 3 … without gaps. */
    seq: number;
    /** The time of the call. */
    at: number;
    /** The session of the call. */
    session_id: string | null;
    /** The reducer. */
    reducer: string;
    /** The caller's id. */
    caller: string;
    /** The caller's request id of the call. */
    request_id: string | null;
    /** The arguments, canonical JSON. */
    arguments: string;
    /** The result as returned, JSON; a long argument that it repeats is only marked. */
    outcome: string;
    /** The hash of the previous event. */
    prev_hash: Uint8Array;
    /** The hash of this event. */
    hash: Uint8Array;
    /** The caller's restrictions: role, capabilities and scope, canonical JSON. NULL if there were none. */
    authority: string | null;
    /** Random bytes that blind the hash. */
    salt: Uint8Array;
    /** The digest of the rows that the call has written. */
    rows_hash: Uint8Array;
  };
  /** A view. */
  unknown_tool_calls: {
    call_id: SqlValue;
    session_id: SqlValue;
    tool_name: SqlValue;
    arguments: SqlValue;
    attempt: SqlValue;
    claimed_by: SqlValue;
    claimed_at: SqlValue;
    error: SqlValue;
    lost_at: SqlValue;
    late_outcome: SqlValue;
    late_result: SqlValue;
    late_error: SqlValue;
    reported_at: SqlValue;
    seq: SqlValue;
  };
  /** A view. */
  undelivered_results: {
    call_id: SqlValue;
    session_id: SqlValue;
    tool_name: SqlValue;
    status: SqlValue;
    result: SqlValue;
    error: SqlValue;
    updated_at: SqlValue;
    seq: SqlValue;
  };
  /** A view. */
  model_usage: {
    session_id: SqlValue;
    run_id: SqlValue;
    number: SqlValue;
    provider: SqlValue;
    model: SqlValue;
    input_tokens: SqlValue;
    output_tokens: SqlValue;
    cached_tokens: SqlValue;
    reasoning_tokens: SqlValue;
    cost_usd: SqlValue;
    completeness: SqlValue;
    created_at: SqlValue;
    seq: SqlValue;
  };
  /** A view. */
  run_results: {
    run_id: SqlValue;
    session_id: SqlValue;
    agent: SqlValue;
    corrections: SqlValue;
    status: SqlValue;
    error_code: SqlValue;
    error_message: SqlValue;
    answer: SqlValue;
    tool_calls: SqlValue;
    input_tokens: SqlValue;
    output_tokens: SqlValue;
    cost_micros: SqlValue;
    ended_at: SqlValue;
    seq: SqlValue;
  };
}

/** The arguments and results of the reducers by name. */
export interface BuiltinReducers {
  /** Aborts a run. Without a driver it ends immediately; otherwise its driver is asked to stop. Unclaimed tool calls are cancelled, workers of claimed ones are asked to stop. */
  abort_run: {
    args: {
      id: string;
      reason?: string | null | undefined;
    };
    result: BuiltinTables["runs"];
  };
  /** Confirms that a call was stopped as requested: the tool did not run, or its effects were undone. Otherwise the holder completes or fails the call as usual. */
  acknowledge_cancel: {
    args: {
      call_id: string;
      fencing_token: number | bigint;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Appends a message, or another entry, to a session. The first one activates a new session. A session that is being cancelled accepts no more entries with the role `user`. Instructions to the model, with the role `system`, need the role `agent`, `app` or `admin`. With `run_id` and `run_fencing_token` it is an entry of the driver of a run. Only its `data` has an effect on the run. */
  append_message: {
    args: {
      content: string | null;
      data?: unknown | undefined;
      kind?: string | null | undefined;
      role: string;
      run_fencing_token?: number | bigint | null | undefined;
      run_id?: string | null | undefined;
      session_id: string;
    };
    result: {
      /** The id of the `agent_state` row. */
      id: number;
    };
  };
  /** Cancels a session and its child sessions. Without running workers it ends immediately: `failed`, with the code `cancelled`. Otherwise its workers are asked to stop, and it ends when the last of them has. If it has more rows than one transaction should end, the rest follows in steps; no new work starts for it or its child sessions from now on. */
  cancel_session: {
    args: {
      reason?: string | null | undefined;
      session_id: string;
    };
    result: BuiltinTables["sessions"];
  };
  /** Cancels a timer before it fires. */
  cancel_timer: {
    args: {
      id: string;
    };
    result: {
      /** When it was set. */
      created_at: number;
      /** The event that set it. */
      created_seq: number;
      /** Other data. */
      data: string | null;
      /** When it is due. */
      due_at: number;
      /** When it fired: at the due time or later. */
      fired_at: number | null;
      /** Its id, chosen by the caller, or `tm_` and a ULID. */
      id: string;
      /** The message appended to the session when it fires. */
      message: string | null;
      /** Its purpose. */
      name: string | null;
      /** Whether it resumes the session if it is suspended. */
      resume: boolean;
      /** The event of the last change. */
      seq: number;
      /** The session that it belongs to. */
      session_id: string | null;
      /** Its status. */
      status: "pending" | "fired" | "cancelled";
      /** When it last changed. */
      updated_at: number;
    };
  };
  /** Cancels a call. A worker that runs it is asked to stop. */
  cancel_tool_call: {
    args: {
      call_id: string;
      reason?: string | null | undefined;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Changes an identity: given attributes replace the current ones, the others stay. Connections with its credentials are closed, and can reconnect with the new attributes. */
  change_identity: {
    args: {
      capabilities?: (string)[] | null | undefined;
      id: string;
      limits?: {
        /** The quota: at most `calls` in each period of `per_ms`, counted from its start. */
        quota?: {
          /** The number. */
          calls: number | bigint;
          /** The period in milliseconds. */
          per_ms: number | bigint;
        } | null | undefined;
        /** The rate limit: a burst of `calls`, refilled at the rate of `calls` per `per_ms`. */
        rate?: {
          /** The number. */
          calls: number | bigint;
          /** The period in milliseconds. */
          per_ms: number | bigint;
        } | null | undefined;
      } | null | undefined;
      role?: string | null | undefined;
      scope?: Record<string, string> | null | undefined;
    };
    result: BuiltinTables["identities"];
  };
  /** Claims a pending handoff. Exactly one supervisor wins. Requires the capability that the handoff requires. */
  claim_handoff: {
    args: {
      id: string;
      lease_ms?: number | bigint | null | undefined;
    };
    result: BuiltinTables["handoff_requests"];
  };
  /** Claims the run that has waited longest for a driver. `not_found` if there is none. */
  claim_next_run: {
    args: {
      driver: string;
      lease_ms: number | bigint;
    };
    result: BuiltinTables["runs"];
  };
  /** Claims the oldest pending call of any of these tools, within their limits. Refused with `not_found` if there is none, or if the oldest are being cancelled; with `rate_limited` if the limits hold back all of them, and with `denied` if the caller lacks the capability. */
  claim_next_tool_call: {
    args: {
      lease_ms?: number | bigint | null | undefined;
      tools: (string)[];
      worker?: string | null | undefined;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Claims a run without a driver, or claims it again after a restart of the same identity with the same driver name. The previous fencing token is no longer accepted. */
  claim_run: {
    args: {
      driver: string;
      id: string;
      lease_ms: number | bigint;
    };
    result: BuiltinTables["runs"];
  };
  /** Claims a pending call to run it. Exactly one claimant wins, and only its identity can end the call. `worker` is a display name, not an identity. */
  claim_tool_call: {
    args: {
      call_id: string;
      lease_ms?: number | bigint | null | undefined;
      worker?: string | null | undefined;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Records that the tasks of a call have ended, or were cancelled. The holder of the call closes them with the outcome; without a token, the call must have ended. */
  close_exchange: {
    args: {
      call_id: string;
      fencing_token?: number | bigint | null | undefined;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Completes a session. Its unclaimed calls are cancelled, workers of claimed ones are asked to stop. */
  complete_session: {
    args: {
      result?: unknown | undefined;
      session_id: string;
    };
    result: BuiltinTables["sessions"];
  };
  /** Completes a call. Only the identity that claimed it can, with the capability that the tool requires. If the session has ended meanwhile, the result is stored but not delivered. */
  complete_tool_call: {
    args: {
      call_id: string;
      fencing_token: number | bigint;
      result: unknown;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Corrects the result of a run that has ended. The run, its events and its messages stay as they are; the correction is a row with the result before and after. Budgets keep what was spent. The same correction again returns the stored row. */
  correct_run: {
    args: {
      id: string;
      lines: ({
        /** What it means; empty if nothing. */
        events: ({
          /** Its data. */
          data: Record<string, unknown>;
          /** Its kind. */
          kind: "token" | "tool_call" | "tool_result" | "planning" | "step_complete" | "delegation" | "interrupt" | "status" | "usage" | "done" | "error" | "reasoning" | "restart" | "line";
        })[];
        /** The number of the line's event in the run. */
        number: number | bigint;
      })[];
      reason?: string | null | undefined;
      result: {
        /** The text of the answer. */
        answer?: string | null | undefined;
        /** The cost in millionths of a dollar, if known. */
        cost_micros?: number | bigint | null | undefined;
        /** Why it failed, for programs. */
        error_code?: string | null | undefined;
        /** Why it failed, for people. */
        error_message?: string | null | undefined;
        /** Input tokens. */
        input_tokens: number | bigint;
        /** Output tokens. */
        output_tokens: number | bigint;
        /** `done`, `failed` or `aborted`. */
        status: "running" | "waiting" | "done" | "failed" | "aborted";
        /** Number of tool calls. */
        tool_calls: number | bigint;
      };
    };
    result: BuiltinTables["run_corrections"];
  };
  /** Creates an identity. It gets the scope of its creator, which `scope` can narrow, and cannot have more permissions than its creator. An identical request changes nothing. */
  create_identity: {
    args: {
      capabilities?: (string)[] | null | undefined;
      id: string;
      limits?: {
        /** The quota: at most `calls` in each period of `per_ms`, counted from its start. */
        quota?: {
          /** The number. */
          calls: number | bigint;
          /** The period in milliseconds. */
          per_ms: number | bigint;
        } | null | undefined;
        /** The rate limit: a burst of `calls`, refilled at the rate of `calls` per `per_ms`. */
        rate?: {
          /** The number. */
          calls: number | bigint;
          /** The period in milliseconds. */
          per_ms: number | bigint;
        } | null | undefined;
      } | null | undefined;
      role: string;
      scope?: Record<string, string> | null | undefined;
    };
    result: BuiltinTables["identities"];
  };
  /** Creates a session. `agent` can be any name; an agent that is registered as a `subagent` is refused, because no run of it could start in the session. The session gets the scope of the caller and of its parent session; `scope` can add keys, but not remove these. */
  create_session: {
    args: {
      agent: string;
      id?: string | null | undefined;
      metadata?: Record<string, unknown> | null | undefined;
      parent_id?: string | null | undefined;
      scope?: Record<string, unknown> | null | undefined;
      title?: string | null | undefined;
    };
    result: BuiltinTables["sessions"];
  };
  /** Registers a token by its hash: SHA-256 of `abide_<id>_<secret>`, in hexadecimal. The token itself stays with its creator. `abide token create` does all of that. */
  create_token: {
    args: {
      expires_in_ms?: number | bigint | null | undefined;
      hash: string;
      id: string;
      identity_id: string;
      label?: string | null | undefined;
      last_four: string;
    };
    result: BuiltinTables["tokens"];
  };
  /** Approves or rejects a call. The first decision wins; an identical one changes nothing. With `approved_arguments` the call runs with these instead: they are validated against the tool's schema as well, and both are kept. A call of `tool_input` is a question: its `approved_arguments` are `{"answer": …}`, and the answer must fit the schema in its arguments. With `arguments_hash` the decision is valid only for arguments with that hash. */
  decide_approval: {
    args: {
      approved_arguments?: unknown | undefined;
      arguments_hash?: string | null | undefined;
      call_id?: string | null | undefined;
      comment?: string | null | undefined;
      decision: "approve" | "reject";
      id?: string | null | undefined;
    };
    result: BuiltinTables["approvals"];
  };
  /** Deletes the entries whose keys begin with a prefix, in the order of their keys, and at most about 200 or 16 MiB in one call. With the empty prefix it deletes all entries, and then the collection. A collection stays if it is fenced, because it holds the token, and if it has entries that the caller cannot see. */
  delete_entries: {
    args: {
      call_id?: string | null | undefined;
      collection_id: string;
      fencing_token?: number | bigint | null | undefined;
      handoff_id?: string | null | undefined;
      prefix: string | null;
      run_id?: string | null | undefined;
    };
    result: {
      /** Entries that this call deleted. */
      deleted: number;
      /** Whether entries are left: call it again. */
      more: boolean;
    };
  };
  /** Deletes a webhook: no further event is sent to it. */
  delete_webhook: {
    args: {
      id: string;
    };
    result: {
      /** The number of the last event that was delivered. */
      delivered: number;
      /** Its id. */
      id: string;
      /** Its name. */
      name: string;
      /** Its run. */
      run_id: string;
      /** The event that set it. */
      set_seq: number;
      /** Its status. */
      status: "active" | "done" | "failed";
    };
  };
  /** Disables an identity immediately, including open connections, until it is enabled again. */
  disable_identity: {
    args: {
      id: string;
      reason?: string | null | undefined;
    };
    result: BuiltinTables["identities"];
  };
  /** Deletes a policy. */
  drop_policy: {
    args: {
      name?: string | null | undefined;
      role: string;
      table: string;
    };
    result: BuiltinTables["policies"];
  };
  /** Stores vectors of facts, for search by meaning. The vector of a fact that has changed or does not exist any more is dropped. */
  embed_memories: {
    args: {
      model: string;
      vectors: ({
        /** The fact. */
        memory_id: number | bigint;
        /** The `seq` of the fact whose text the vector represents. If the fact has changed, the vector is dropped. */
        seq: number | bigint;
        /** 32-bit floats, little-endian: `{"$blob": "<base64>"}`. */
        vector: unknown;
      })[];
    };
    result: {
      /** Vectors that were stored. */
      stored: number;
    };
  };
  /** Enables a disabled identity again. */
  enable_identity: {
    args: {
      id: string;
    };
    result: BuiltinTables["identities"];
  };
  /** Exports a run that waits, for `import_run` in another file: its conversation, the outcomes of its tool calls, and the delegated runs that it waits for. The run ends here as `aborted` with the code `moved`; the same call again returns the same snapshot. With `copy` the run stays, and both continue independently. Refused while a tool call of the run is running. */
  export_run: {
    args: {
      copy?: boolean | null | undefined;
      id: string;
      tag?: string | null | undefined;
    };
    result: {
      /** The agents of the runs, and those that have taken over. */
      agents: ({
        /** Its definition; absent if the exporting caller may not read definitions. */
        definition: Record<string, Json> | null;
        /** Its name. */
        name: string;
        /** Its revision at the origin. */
        revision: number;
      })[];
      /** When it was made. */
      created_at: number;
      /** `abide-run`. */
      format: string;
      /** The id of the snapshot. */
      id: string;
      /** Whether it is a copy: the run continues at its origin, too. */
      is_copy: boolean;
      /** The run, then the runs that it delegated and waits for, each after the one that delegated it. */
      runs: ({
        /** Its agent. */
        agent: string;
        /** When it began. */
        began_at: number;
        /** The cost that counts against its budget, with that of delegated runs. */
        budget_cost_micros: number;
        /** Tokens that count against its budget, with those of delegated runs. */
        budget_tokens: number;
        /** The tool calls that its messages name and that have an outcome or started a run, in order. */
        calls: ({
          /** The arguments that it ran with. */
          arguments: Json;
          /** Number of attempts. */
          attempt: number;
          /** Its id at the origin. */
          call_id: string;
          /** Its error. */
          error: string | null;
          /** The provider's id. */
          provider_call_id: string | null;
          /** Its result. */
          result?: Json | undefined;
          /** Its status. */
          status: "delegated" | "succeeded" | "failed" | "rejected" | "cancelled" | "unknown";
          /** The tool. */
          tool_name: string;
        })[];
        /** Other state of the session that determines the model's view. */
        context: {
          /** The facts that belong to the session alone, the one that changed last at the end. Facts that sessions share stay where they are. */
          facts?: ({
            /** How certain it is, from 0 to 1. */
            confidence: number;
            /** The subject of the fact. */
            key: string;
            /** The namespace. */
            namespace: string;
            /** The fact. */
            value: string;
          })[] | undefined;
          /** The measurements of the newest answers of the run, oldest first. */
          health?: ({
            /** The action of the watchdog. */
            action: "none" | "compact" | "warn" | "stop";
            /** The number of the answer in the run. */
            iteration: number;
            /** The measurements. */
            measured: {
              /** Summaries, archived results and markers per message. */
              context_rot: number;
              /** Messages of the conversation that the model read. */
              messages: number;
              /** Messages that the conversation has gained since the answer before, with this answer. */
              new_messages: number;
              /** The share of tool results. */
              over_tooling: number;
              /** Consecutive answers with the same calls. */
              repeats: number;
              /** The thresholds that are reached. */
              signals: (string)[];
              /** Tokens more than in the request before. */
              token_drift: number;
              /** Tokens of the request. */
              tokens: number;
              /** Tool results among them. */
              tool_messages: number;
              /** Consecutive answers that have reached a threshold. */
              unhealthy: number;
            };
          })[] | undefined;
          /** The current plan; absent if there is none. */
          plan: {
            /** Its steps, in order. */
            steps: ({
              /** More details. */
              description: string | null;
              /** The evidence that it is done. */
              evidence: string | null;
              /** When it counts as done. */
              exit_criteria: string | null;
              /** The agent that works on it. */
              owner: string | null;
              /** Its status. */
              status: "not_started" | "in_progress" | "completed" | "blocked";
              /** The task. */
              title: string;
            })[];
            /** The number of changes so far. */
            version: number;
          } | null;
          /** The newest summary; absent if nothing is summarised. */
          summary: {
            /** The number of the model's answers up to `folded`. */
            answers: number;
            /** The results that the model sees as markers. */
            archived: ({
              /** The call at the origin. */
              call_id: string;
              /** The size of the result in characters. */
              characters: number;
              /** The message with the result. */
              message: number;
              /** The number of the summary that covers it. */
              number: number;
              /** The provider's id of the call. */
              provider_call_id: string | null;
              /** The tool. */
              tool_name: string;
            })[];
            /** The model does not see messages up to this one, except those in `kept`. */
            folded: number;
            /** Where its compaction ends. */
            goal: number;
            /** `folded` at the end of its compaction. */
            goal_folded: number;
            /** The handoffs of the run that are in effect at `folded`. */
            handoffs: (Json)[];
            /** Messages that the model always sees. */
            kept: (number)[];
            /** Its number in the session. */
            number: number;
            /** How it was made. */
            origin: string;
            /** Repairs of the integrity check. */
            repaired?: Json | undefined;
            /** The summary. */
            summary: Json;
            /** It covers the messages up to this one. */
            through: number;
            /** The size of the request in tokens before the compaction. */
            tokens_before: number;
          } | null;
        };
        /** Its cost so far in millionths of a dollar, if known. */
        cost_micros: number | null;
        /** When it must have ended. */
        deadline_at: number | null;
        /** Its id at the origin. */
        id: string;
        /** Input tokens so far. */
        input_tokens: number;
        /** Answers of the model so far. */
        iterations: number;
        /** The messages of its session, in order. */
        messages: ({
          /** Its text. */
          content: string | null;
          /** Other data. */
          data?: Json | undefined;
          /** Whether the driver of a run wrote it. The data of other messages has no effect on the run. */
          is_of_run?: boolean | undefined;
          /** Its kind. */
          kind: string;
          /** The author's role. */
          role: string;
        })[];
        /** The metadata of its session. */
        metadata: Record<string, Json>;
        /** Output tokens so far. */
        output_tokens: number;
        /** The run that delegated it. */
        parent_id: string | null;
        /** The reason for which it waits. */
        reason: string | null;
        /** The agent's revision at the origin. */
        revision: number;
        /** The scope of its session. */
        scope: Record<string, Json>;
        /** Its session at the origin. */
        session_id: string;
        /** The stage of its last pause, which it has passed when it continues. */
        stage: "after_agent" | "after_tools" | "after_loop" | "before_guardrails" | null;
        /** How many answers it had then. */
        stage_iteration: number | null;
        /** The title of its session. */
        title: string | null;
        /** Tool calls requested by the model so far. */
        tool_calls: number;
        /** The turn that has ended with its wait. It continues with the next one. */
        turn: number | null;
        /** Answers of unknown usage. */
        usage_missing: number;
        /** Microseconds in which it has not waited. The time until its import counts as a wait. */
        worked_us: number | null;
      })[];
      /** A label for people. */
      tag: string | null;
      /** The tools that the file which imports it must have. */
      tools: (string)[];
      /** The version of the format. */
      version: number;
    };
  };
  /** Fails a session. Its unclaimed calls are cancelled, workers of claimed ones are asked to stop. */
  fail_session: {
    args: {
      code: string;
      message: string;
      session_id: string;
    };
    result: BuiltinTables["sessions"];
  };
  /** Fails a call; if the holder declares it retryable, the call becomes pending again. If its tool may have had its effect and must not run twice, the call becomes unknown, and waits for its settlement. Only the identity that claimed it can, with the capability that the tool requires. */
  fail_tool_call: {
    args: {
      call_id: string;
      error: string;
      exit_code?: number | bigint | null | undefined;
      fencing_token: number | bigint;
      may_have_run?: boolean | null | undefined;
      retryable?: boolean | null | undefined;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Ends a run. `output` is the answer; `code` and `message` say why there is none. A run that is being aborted, also with its session, ends as failed or aborted: `done` is refused with `conflict`. */
  finish_run: {
    args: {
      code?: string | null | undefined;
      end: "done" | "failed" | "aborted";
      events?: ({
        /** Its data. */
        data: Record<string, unknown>;
        /** Its kind. */
        kind: "token" | "tool_call" | "tool_result" | "planning" | "step_complete" | "delegation" | "interrupt" | "status" | "usage" | "done" | "error" | "reasoning" | "restart" | "line";
      })[] | null | undefined;
      fencing_token: number | bigint;
      id: string;
      message?: string | null | undefined;
      output?: Record<string, unknown> | null | undefined;
    };
    result: BuiltinTables["runs"];
  };
  /** Deletes facts of a space: those with these keys, or all. Keys that do not exist are ignored. One call deletes at most 100 facts. The log keeps the calls that saved them. */
  forget_memories: {
    args: {
      fencing_token?: number | bigint | null | undefined;
      keys?: (string)[] | null | undefined;
      run_id?: string | null | undefined;
      space: string;
    };
    result: {
      /** Facts that this call deleted. */
      forgotten: number;
      /** Whether facts are left: call it again. */
      more: boolean;
    };
  };
  /** Creates a session with the messages of another one up to an event of the log, and with the outcomes that its tool calls had then. It has the agent, the scope and the metadata of the other one. No tool runs: a call that had not begun is cancelled in the copy, and one that ran stays without an outcome. The row of `session_forks` links both. A long history is copied in several transactions; the answer waits for the last one. The same call of the same caller again, with `id`, is about the same copy, and waits for it. */
  fork_session: {
    args: {
      at?: number | bigint | null | undefined;
      id?: string | null | undefined;
      session_id: string;
      title?: string | null | undefined;
    };
    result: BuiltinTables["session_forks"];
  };
  /** Extends the lease on a claimed handoff. */
  heartbeat_handoff: {
    args: {
      fencing_token?: number | bigint | null | undefined;
      id: string;
      lease_ms?: number | bigint | null | undefined;
    };
    result: BuiltinTables["handoff_requests"];
  };
  /** Extends the lease on a run. The result shows whether an abort was requested. */
  heartbeat_run: {
    args: {
      fencing_token: number | bigint;
      id: string;
      lease_ms: number | bigint;
    };
    result: BuiltinTables["runs"];
  };
  /** Extends the lease on a claimed call. In the result, `cancel_requested_at` shows whether the call was cancelled. */
  heartbeat_tool_call: {
    args: {
      call_id: string;
      fencing_token: number | bigint;
      lease_ms?: number | bigint | null | undefined;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Imports a snapshot of `export_run`: creates its session and its run, which a driver continues. The tools and agents of the snapshot must exist here, with the same definitions; `any_definition` accepts others. The same snapshot with the same `id` is the same run. */
  import_run: {
    args: {
      any_definition?: boolean | null | undefined;
      id?: string | null | undefined;
      session_id?: string | null | undefined;
      snapshot: {
        /** The agents of the runs, and those that have taken over. */
        agents: ({
          /** Its definition; absent if the exporting caller may not read definitions. */
          definition?: Record<string, unknown> | null | undefined;
          /** Its name. */
          name: string;
          /** Its revision at the origin. */
          revision: number | bigint;
        })[];
        /** When it was made. */
        created_at: number | bigint;
        /** `abide-run`. */
        format: string;
        /** The id of the snapshot. */
        id: string;
        /** Whether it is a copy: the run continues at its origin, too. */
        is_copy: boolean;
        /** The run, then the runs that it delegated and waits for, each after the one that delegated it. */
        runs: ({
          /** Its agent. */
          agent: string;
          /** When it began. */
          began_at: number | bigint;
          /** The cost that counts against its budget, with that of delegated runs. */
          budget_cost_micros: number | bigint;
          /** Tokens that count against its budget, with those of delegated runs. */
          budget_tokens: number | bigint;
          /** The tool calls that its messages name and that have an outcome or started a run, in order. */
          calls: ({
            /** The arguments that it ran with. */
            arguments: unknown;
            /** Number of attempts. */
            attempt: number | bigint;
            /** Its id at the origin. */
            call_id: string;
            /** Its error. */
            error?: string | null | undefined;
            /** The provider's id. */
            provider_call_id?: string | null | undefined;
            /** Its result. */
            result?: unknown | undefined;
            /** Its status. */
            status: "delegated" | "succeeded" | "failed" | "rejected" | "cancelled" | "unknown";
            /** The tool. */
            tool_name: string;
          })[];
          /** Other state of the session that determines the model's view. */
          context?: {
            /** The facts that belong to the session alone, the one that changed last at the end. Facts that sessions share stay where they are. */
            facts?: ({
              /** How certain it is, from 0 to 1. */
              confidence: number;
              /** The subject of the fact. */
              key: string;
              /** The namespace. */
              namespace: string;
              /** The fact. */
              value: string;
            })[] | undefined;
            /** The measurements of the newest answers of the run, oldest first. */
            health?: ({
              /** The action of the watchdog. */
              action: "none" | "compact" | "warn" | "stop";
              /** The number of the answer in the run. */
              iteration: number | bigint;
              /** The measurements. */
              measured: {
                /** Summaries, archived results and markers per message. */
                context_rot: number;
                /** Messages of the conversation that the model read. */
                messages: number | bigint;
                /** Messages that the conversation has gained since the answer before, with this answer. */
                new_messages: number | bigint;
                /** The share of tool results. */
                over_tooling: number;
                /** Consecutive answers with the same calls. */
                repeats: number | bigint;
                /** The thresholds that are reached. */
                signals: (string)[];
                /** Tokens more than in the request before. */
                token_drift: number | bigint;
                /** Tokens of the request. */
                tokens: number | bigint;
                /** Tool results among them. */
                tool_messages: number | bigint;
                /** Consecutive answers that have reached a threshold. */
                unhealthy: number | bigint;
              };
            })[] | undefined;
            /** The current plan; absent if there is none. */
            plan?: {
              /** Its steps, in order. */
              steps: ({
                /** More details. */
                description?: string | null | undefined;
                /** The evidence that it is done. */
                evidence?: string | null | undefined;
                /** When it counts as done. */
                exit_criteria?: string | null | undefined;
                /** The agent that works on it. */
                owner?: string | null | undefined;
                /** Its status. */
                status: "not_started" | "in_progress" | "completed" | "blocked";
                /** The task. */
                title: string;
              })[];
              /** The number of changes so far. */
              version: number | bigint;
            } | null | undefined;
            /** The newest summary; absent if nothing is summarised. */
            summary?: {
              /** The number of the model's answers up to `folded`. */
              answers: number | bigint;
              /** The results that the model sees as markers. */
              archived: ({
                /** The call at the origin. */
                call_id: string;
                /** The size of the result in characters. */
                characters: number | bigint;
                /** The message with the result. */
                message: number | bigint;
                /** The number of the summary that covers it. */
                number: number | bigint;
                /** The provider's id of the call. */
                provider_call_id?: string | null | undefined;
                /** The tool. */
                tool_name: string;
              })[];
              /** The model does not see messages up to this one, except those in `kept`. */
              folded: number | bigint;
              /** Where its compaction ends. */
              goal: number | bigint;
              /** `folded` at the end of its compaction. */
              goal_folded: number | bigint;
              /** The handoffs of the run that are in effect at `folded`. */
              handoffs: (unknown)[];
              /** Messages that the model always sees. */
              kept: (number | bigint)[];
              /** Its number in the session. */
              number: number | bigint;
              /** How it was made. */
              origin: string;
              /** Repairs of the integrity check. */
              repaired?: unknown | undefined;
              /** The summary. */
              summary: unknown;
              /** It covers the messages up to this one. */
              through: number | bigint;
              /** The size of the request in tokens before the compaction. */
              tokens_before: number | bigint;
            } | null | undefined;
          } | undefined;
          /** Its cost so far in millionths of a dollar, if known. */
          cost_micros?: number | bigint | null | undefined;
          /** When it must have ended. */
          deadline_at?: number | bigint | null | undefined;
          /** Its id at the origin. */
          id: string;
          /** Input tokens so far. */
          input_tokens: number | bigint;
          /** Answers of the model so far. */
          iterations: number | bigint;
          /** The messages of its session, in order. */
          messages: ({
            /** Its text. */
            content?: string | null | undefined;
            /** Other data. */
            data?: unknown | undefined;
            /** Whether the driver of a run wrote it. The data of other messages has no effect on the run. */
            is_of_run?: boolean | undefined;
            /** Its kind. */
            kind: string;
            /** The author's role. */
            role: string;
          })[];
          /** The metadata of its session. */
          metadata: Record<string, unknown>;
          /** Output tokens so far. */
          output_tokens: number | bigint;
          /** The run that delegated it. */
          parent_id?: string | null | undefined;
          /** The reason for which it waits. */
          reason?: string | null | undefined;
          /** The agent's revision at the origin. */
          revision: number | bigint;
          /** The scope of its session. */
          scope: Record<string, unknown>;
          /** Its session at the origin. */
          session_id: string;
          /** The stage of its last pause, which it has passed when it continues. */
          stage?: "after_agent" | "after_tools" | "after_loop" | "before_guardrails" | null | undefined;
          /** How many answers it had then. */
          stage_iteration?: number | bigint | null | undefined;
          /** The title of its session. */
          title?: string | null | undefined;
          /** Tool calls requested by the model so far. */
          tool_calls: number | bigint;
          /** The turn that has ended with its wait. It continues with the next one. */
          turn?: number | bigint | null | undefined;
          /** Answers of unknown usage. */
          usage_missing: number | bigint;
          /** Microseconds in which it has not waited. The time until its import counts as a wait. */
          worked_us?: number | bigint | null | undefined;
        })[];
        /** A label for people. */
        tag?: string | null | undefined;
        /** The tools that the file which imports it must have. */
        tools: (string)[];
        /** The version of the format. */
        version: number | bigint;
      };
    };
    result: BuiltinTables["runs"];
  };
  /** Points a label of a prompt to a version. */
  label_prompt: {
    args: {
      label: string;
      name: string;
      version: number | bigint;
    };
    result: BuiltinTables["prompt_labels"];
  };
  /** Finds the session with an id, or creates it. A session that exists is returned unchanged: the call adds no event, and its other arguments are not compared with the session. */
  open_session: {
    args: {
      agent: string;
      id?: string | null | undefined;
      metadata?: Record<string, unknown> | null | undefined;
      parent_id?: string | null | undefined;
      scope?: Record<string, unknown> | null | undefined;
      title?: string | null | undefined;
    };
    result: BuiltinTables["sessions"];
  };
  /** Requests that a run pauses at a stage of its loop, or at the next one if none is named. Tools that run are not interrupted. A run that waits for a decision pauses after that decision. A repeated request replaces the former one. */
  pause_run: {
    args: {
      id: string;
      reason?: string | null | undefined;
      stage?: "after_agent" | "after_tools" | "after_loop" | "before_guardrails" | null | undefined;
    };
    result: BuiltinTables["pauses"];
  };
  /** Adds a version to a prompt, and creates the prompt if there is none. A text that is equal to the newest version adds no version, if the caller may read that version. `labels` then point to the newest version. */
  put_prompt: {
    args: {
      description?: string | null | undefined;
      expected_version?: number | bigint | null | undefined;
      labels?: (string)[] | null | undefined;
      name: string;
      scope?: Record<string, unknown> | null | undefined;
      text: string;
    };
    result: BuiltinTables["prompts"];
  };
  /** Sets where the events of a run are sent, or replaces a webhook of the same name. Events that the caller cannot see are not sent. */
  put_webhook: {
    args: {
      after?: number | bigint | null | undefined;
      credentials?: string | null | undefined;
      name: string;
      run_id: string;
      scheme?: string | null | undefined;
      token?: string | null | undefined;
      url: string;
    };
    result: {
      /** The number of the last event that was delivered. */
      delivered: number;
      /** Its id. */
      id: string;
      /** Its name. */
      name: string;
      /** Its run. */
      run_id: string;
      /** The event that set it. */
      set_seq: number;
      /** Its status. */
      status: "active" | "done" | "failed";
    };
  };
  /** Records what the sender of a webhook has delivered, and why it has stopped. */
  record_delivery: {
    args: {
      delivered: number | bigint;
      error?: string | null | undefined;
      id: string;
      retry_in_ms?: number | bigint | null | undefined;
      set_seq: number | bigint;
    };
    result: {
      /** The number of the last event that was delivered. */
      delivered: number;
      /** Its id. */
      id: string;
      /** Its name. */
      name: string;
      /** Its run. */
      run_id: string;
      /** The event that set it. */
      set_seq: number;
      /** Its status. */
      status: "active" | "done" | "failed";
    };
  };
  /** Records steps of the exchange of a claimed call. */
  record_exchange: {
    args: {
      call_id: string;
      entries: ({
        /** Its data. */
        data: unknown;
        /** Its kind. */
        kind: "asked" | "answered" | "task";
      })[];
      fencing_token: number | bigint;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Records the measurements of an answer of a run, and the action of the watchdog. Recorded again with `compact`, the row of an answer without an action says that the context was compacted after it. Only the rows of the last 1,000 answers of a run are kept. */
  record_health: {
    args: {
      action?: "none" | "compact" | "warn" | "stop" | null | undefined;
      fencing_token: number | bigint;
      health: {
        /** Summaries, archived results and markers per message. */
        context_rot: number;
        /** Messages of the conversation that the model read. */
        messages: number | bigint;
        /** Messages that the conversation has gained since the answer before, with this answer. */
        new_messages: number | bigint;
        /** The share of tool results. */
        over_tooling: number;
        /** Consecutive answers with the same calls. */
        repeats: number | bigint;
        /** The thresholds that are reached. */
        signals: (string)[];
        /** Tokens more than in the request before. */
        token_drift: number | bigint;
        /** Tokens of the request. */
        tokens: number | bigint;
        /** Tool results among them. */
        tool_messages: number | bigint;
        /** Consecutive answers that have reached a threshold. */
        unhealthy: number | bigint;
      };
      id: string;
      iteration: number | bigint;
    };
    result: BuiltinTables["run_health"];
  };
  /** Pauses a run at a stage that it has reached: for its driver. With `reason` a rule or a callback demands it. Without `reason` it takes effect only while `pause_run` requests it for the stage; otherwise the run continues. */
  record_pause: {
    args: {
      ends_at?: number | bigint | null | undefined;
      fencing_token: number | bigint;
      id: string;
      reason?: string | null | undefined;
      stage: "after_agent" | "after_tools" | "after_loop" | "before_guardrails";
    };
    result: BuiltinTables["runs"];
  };
  /** Records events of a run, and its consumption. In a batch with messages and tool calls this makes a step atomic: if the lease is lost, nothing of the batch takes effect. */
  record_run: {
    args: {
      events?: ({
        /** Its data. */
        data: Record<string, unknown>;
        /** Its kind. */
        kind: "token" | "tool_call" | "tool_result" | "planning" | "step_complete" | "delegation" | "interrupt" | "status" | "usage" | "done" | "error" | "reasoning" | "restart" | "line";
      })[] | null | undefined;
      fencing_token: number | bigint;
      id: string;
      lease_ms?: number | bigint | null | undefined;
      spent?: {
        /** Its cost in millionths of a dollar, if known. */
        cost_micros?: number | bigint | null | undefined;
        /** Input tokens, if the provider reported them. */
        input_tokens?: number | bigint | null | undefined;
        /** Whether this is an answer of the model. */
        iteration?: boolean | undefined;
        /** Output tokens, if the provider reported them. */
        output_tokens?: number | bigint | null | undefined;
        /** Tool calls requested in it. */
        tool_calls?: number | bigint | undefined;
      } | null | undefined;
      unchanged_since?: number | bigint | null | undefined;
    };
    result: BuiltinTables["runs"];
  };
  /** Records a summary of a session's messages, and the results that the model sees as markers from now on. It must cover more than the last one. */
  record_summary: {
    args: {
      archived?: ({
        /** The id of the call. */
        call_id: string;
        /** The size of the result in characters. */
        characters: number | bigint;
        /** The message with the result. */
        entry_id: number | bigint;
        /** The model provider's id of the call. */
        provider_call_id?: string | null | undefined;
        /** The tool. */
        tool_name: string;
      })[] | null | undefined;
      fencing_token: number | bigint;
      id: string;
      summary: {
        /** The number of the model's answers up to `folded_id`. */
        answers: number | bigint;
        /** The model does not see messages up to this id. */
        folded_id: number | bigint;
        /** The last message that the compaction folds. */
        goal_folded_id: number | bigint;
        /** Where the compaction ends. */
        goal_id: number | bigint;
        /** The handoffs in effect at `folded_id`. */
        handoffs: (unknown)[];
        /** Ids of messages that the model always sees. */
        kept: (number | bigint)[];
        /** Its number in the session: one more than the last. */
        number: number | bigint;
        /** `model` or `fallback`. */
        origin: string;
        /** Repairs of the integrity check. */
        repaired?: unknown | undefined;
        /** The summary. */
        summary: unknown;
        /** It covers all messages up to this id. */
        through_id: number | bigint;
        /** The size of the request in tokens before the compaction. */
        tokens_before: number | bigint;
      };
    };
    result: BuiltinTables["context_summaries"];
  };
  /** Records that the trace of a run was sent. A later record replaces it. */
  record_trace: {
    args: {
      error?: string | null | undefined;
      id: string;
      spans: number | bigint;
      status: "complete" | "partial";
      trace_id: string;
    };
    result: BuiltinTables["run_traces"];
  };
  /** Registers an agent, or a new revision of one. Registering an identical definition changes nothing. `expected_revision` makes it a conflict if that is no longer the newest: for editors. A retired agent is active again, except one that comes with the runtime, which registers it at every start. */
  register_agent: {
    args: {
      definition: Record<string, unknown>;
      description?: string | null | undefined;
      expected_revision?: number | bigint | null | undefined;
      hidden?: boolean | null | undefined;
      mode?: "primary" | "subagent" | "all" | null | undefined;
      name: string;
      native?: boolean | null | undefined;
    };
    result: {
      /** When it was first registered. */
      created_at: number;
      /** Its purpose. */
      description: string | null;
      /** A salted digest of the definition, in hexadecimal: it changes with every revision, and cannot be computed from the definition. */
      digest: string;
      /** Whether lists omit it. */
      hidden: boolean;
      /** How it can be used. */
      mode: "primary" | "subagent" | "all";
      /** Its name. */
      name: string;
      /** Whether it comes with the runtime, as opposed to a user's file. */
      native: boolean;
      /** When it was retired: it starts no more runs. */
      retired_at: number | null;
      /** Starts at 1; every change increments it. */
      revision: number;
      /** The event of the last change. */
      seq: number;
      /** When it last changed. */
      updated_at: number;
    };
  };
  /** Registers a tool, or a new version of one. Registering an identical tool changes nothing. The approval of its calls and the capability of its workers stay unless an admin or an app registers it. */
  register_tool: {
    args: {
      annotations?: Record<string, unknown> | null | undefined;
      approval?: {
        /** Initial values of the approver's form: any JSON. */
        defaults?: unknown | undefined;
        /** Milliseconds after which an undecided call is rejected. Default: never. */
        expires_after_ms?: number | bigint | null | undefined;
        /** The question for the approver. */
        prompt?: string | null | undefined;
        /** The capability that an approver needs. */
        required_capability?: string | null | undefined;
      } | null | undefined;
      description?: string | null | undefined;
      effect?: "read_only" | "idempotent" | "at_most_once" | null | undefined;
      input_schema?: unknown | undefined;
      limits?: {
        /** Maximum number of calls per session. */
        calls_per_session?: number | bigint | null | undefined;
        /** Maximum number of concurrent calls. */
        concurrency?: number | bigint | null | undefined;
        /** Maximum rate of attempts. */
        rate?: {
          /** The number. */
          calls: number | bigint;
          /** The period in milliseconds. */
          per_ms: number | bigint;
        } | null | undefined;
      } | null | undefined;
      name: string;
      needs_approval?: boolean | null | undefined;
      required_capability?: string | null | undefined;
      retry?: {
        /** Maximum delay in milliseconds. Default 60,000. */
        backoff_max_ms?: number | bigint | null | undefined;
        /** The second attempt follows immediately, the third after this many milliseconds, each further one after twice the previous delay. Default 1,000. */
        backoff_ms?: number | bigint | null | undefined;
        /** Maximum number of attempts, including the first. Default 3. */
        max_attempts?: number | bigint | null | undefined;
      } | null | undefined;
      timeout_ms?: number | bigint | null | undefined;
    };
    result: {
      /** Its MCP annotations. */
      annotations: string | null;
      /** Approval settings: `{"prompt", "defaults", "expires_after_ms", "required_capability"}`. */
      approval: string | null;
      /** When it was first registered. */
      created_at: number;
      /** Its effect, for the model. */
      description: string | null;
      /** Whether it can safely run twice. */
      effect: "read_only" | "idempotent" | "at_most_once";
      /** The JSON Schema of its arguments. */
      input_schema: string | null;
      /** Limits: `{"calls_per_session", "concurrency", "rate"}`. */
      limits: string | null;
      /** Its name. */
      name: string;
      /** Whether each call needs an approval. */
      needs_approval: boolean;
      /** The capability that a worker needs. */
      required_capability: string | null;
      /** Retry policy: `{"max_attempts", "backoff_ms", "backoff_max_ms"}`. */
      retry: string | null;
      /** The event of the last change. */
      seq: number;
      /** Time limit of one attempt; no lease extends beyond it. */
      timeout_ms: number | null;
      /** When it last changed. */
      updated_at: number;
      /** Starts at 1; every change increments it. */
      version: number;
    };
  };
  /** Rejects a claimed handoff. The reason becomes a message of the session, or the error of the tool call that waits for it, and the session is active again. */
  reject_handoff: {
    args: {
      fencing_token?: number | bigint | null | undefined;
      id: string;
      reason: string;
    };
    result: BuiltinTables["handoff_requests"];
  };
  /** Releases a claimed handoff to other supervisors. (The `fencing_token` of the claim, here and in the answers, distinguishes supervisors that share a name.) */
  release_handoff: {
    args: {
      fencing_token?: number | bigint | null | undefined;
      id: string;
    };
    result: BuiltinTables["handoff_requests"];
  };
  /** Deletes a role. Identities with this role can no longer call any reducer. Requires an admin. */
  remove_role: {
    args: {
      name: string;
    };
    result: BuiltinTables["roles"];
  };
  /** Hands a session off to a supervisor. It is `handed_off` until there is an answer. If the handoff is unclaimed after `escalate_after_ms`, it requires the capability `escalate_to` instead; if it is unclaimed after `expires_after_ms`, the session continues without an answer. With `call_id` and `call_fencing_token` the answer is the result of that tool call, which waits for it without a lease. */
  request_supervisor_handoff: {
    args: {
      call_fencing_token?: number | bigint | null | undefined;
      call_id?: string | null | undefined;
      data?: unknown | undefined;
      escalate_after_ms?: number | bigint | null | undefined;
      escalate_to?: string | null | undefined;
      expires_after_ms?: number | bigint | null | undefined;
      reason: string;
      required_capability: string;
      session_id: string;
    };
    result: BuiltinTables["handoff_requests"];
  };
  /** Requests a tool call. The same `call_id` with the same session, tool and arguments is the same call and returns the stored row; any difference is a conflict. With `claim_lease_ms` the caller also claims it in the same transaction, if possible: for agents that run their own tools. `needs_approval` requires an approval even if the tool does not. With `run_id` and `run_fencing_token` it is a call of the run that the caller holds: its id is `<run>~<rest>`, which no other row can have. */
  request_tool_call: {
    args: {
      arguments: unknown;
      call_id: string;
      claim_lease_ms?: number | bigint | null | undefined;
      needs_approval?: boolean | null | undefined;
      provider_call_id?: string | null | undefined;
      run_fencing_token?: number | bigint | null | undefined;
      run_id?: string | null | undefined;
      session_id: string;
      tool_name: string;
      worker?: string | null | undefined;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Reserves an estimate of the usage of an answer in the budgets of the run and of the runs that delegated it, before the model is asked. It replaces the run's former reservation. `record_run` with `spent` settles it. Refused with `limit_exceeded` if a budget is used up, and with `rate_limited` if reservations of other runs leave too little. */
  reserve_usage: {
    args: {
      cost_micros?: number | bigint | null | undefined;
      fencing_token: number | bigint;
      id: string;
      tokens: number | bigint;
    };
    result: {
      /** The number of budgets that the usage is reserved in: the run's own, and those of the runs that delegated it. If it is 0, nothing limits the run. */
      budgets: number;
    };
  };
  /** Resolves a claimed handoff. The resolution becomes a message of the session, or the result of the tool call that waits for it, and the session is active again. Refused while the caller that started the run of the session may not start runs of its agents. */
  resolve_handoff: {
    args: {
      fencing_token?: number | bigint | null | undefined;
      id: string;
      resolution: string;
    };
    result: BuiltinTables["handoff_requests"];
  };
  /** Resumes a paused run: a driver continues it at the same place. For a run that has not paused yet, it withdraws the request. The caller, and the one that started the run, must be allowed to start runs of its agent. */
  resume_run: {
    args: {
      id: string;
    };
    result: BuiltinTables["runs"];
  };
  /** Resumes a suspended session. Refused if the caller that started its run may no longer start runs of the agent. */
  resume_session: {
    args: {
      reason?: string | null | undefined;
      session_id: string;
    };
    result: BuiltinTables["sessions"];
  };
  /** Retires an agent: it starts no more runs. Active runs continue; registering it again reactivates it. An agent that comes with the runtime stays retired until another definition is registered under its name. */
  retire_agent: {
    args: {
      name: string;
    };
    result: {
      /** When it was first registered. */
      created_at: number;
      /** Its purpose. */
      description: string | null;
      /** A salted digest of the definition, in hexadecimal: it changes with every revision, and cannot be computed from the definition. */
      digest: string;
      /** Whether lists omit it. */
      hidden: boolean;
      /** How it can be used. */
      mode: "primary" | "subagent" | "all";
      /** Its name. */
      name: string;
      /** Whether it comes with the runtime, as opposed to a user's file. */
      native: boolean;
      /** When it was retired: it starts no more runs. */
      retired_at: number | null;
      /** Starts at 1; every change increments it. */
      revision: number;
      /** The event of the last change. */
      seq: number;
      /** When it last changed. */
      updated_at: number;
    };
  };
  /** Revokes a token immediately, including open connections. */
  revoke_token: {
    args: {
      id: string;
    };
    result: BuiltinTables["tokens"];
  };
  /** Saves facts, all or nothing. They belong to the scope of the caller, or, with `session_id`, to one session. A fact replaces the one with the same key. A space has at most 1,000 facts. */
  save_memories: {
    args: {
      facts: ({
        /** How certain it is, from 0 to 1; 1 if omitted. */
        confidence?: number | null | undefined;
        /** The subject of the fact. */
        key: string;
        /** The event of the log in which it was learned; this call if omitted. */
        source_seq?: number | bigint | null | undefined;
        /** The fact. */
        value: string;
      })[];
      fencing_token?: number | bigint | null | undefined;
      namespace: string;
      run_id?: string | null | undefined;
      scope?: Record<string, unknown> | null | undefined;
      session_id?: string | null | undefined;
    };
    result: {
      /** Facts that are new or have changed. */
      saved: number;
      /** The space of the facts. */
      space: string;
      /** Facts that were known. */
      unchanged: number;
    };
  };
  /** Sets which rows and columns of a table the callers of a role may see. It applies from this commit on, also to subscriptions. Without a `condition`, all rows. Setting an identical policy changes nothing. */
  set_policy: {
    args: {
      condition?: string | null | undefined;
      hidden?: (string)[] | null | undefined;
      name?: string | null | undefined;
      role: string;
      table: string;
    };
    result: BuiltinTables["policies"];
  };
  /** Creates or changes a role: the reducers that its callers may call, and their capabilities. Requires an admin. `reducers` are names; `*` means all except those that manage identities, tokens, roles and policies. */
  set_role: {
    args: {
      capabilities?: (string)[] | null | undefined;
      description?: string | null | undefined;
      limits?: {
        /** The quota: at most `calls` in each period of `per_ms`, counted from its start. */
        quota?: {
          /** The number. */
          calls: number | bigint;
          /** The period in milliseconds. */
          per_ms: number | bigint;
        } | null | undefined;
        /** The rate limit: a burst of `calls`, refilled at the rate of `calls` per `per_ms`. */
        rate?: {
          /** The number. */
          calls: number | bigint;
          /** The period in milliseconds. */
          per_ms: number | bigint;
        } | null | undefined;
      } | null | undefined;
      name: string;
      reducers: (string)[];
    };
    result: BuiltinTables["roles"];
  };
  /** Sets a timer, for a time or for a delay from now. When it fires, its row becomes `fired`; with a session and a `message`, the message is appended to the session; with `resume` a suspended session is resumed. Setting an identical timer with the same `id` changes nothing. */
  set_timer: {
    args: {
      data?: unknown | undefined;
      due_at?: number | bigint | null | undefined;
      id?: string | null | undefined;
      in_ms?: number | bigint | null | undefined;
      message?: string | null | undefined;
      name?: string | null | undefined;
      resume?: boolean | null | undefined;
      session_id?: string | null | undefined;
    };
    result: {
      /** When it was set. */
      created_at: number;
      /** The event that set it. */
      created_seq: number;
      /** Other data. */
      data: string | null;
      /** When it is due. */
      due_at: number;
      /** When it fired: at the due time or later. */
      fired_at: number | null;
      /** Its id, chosen by the caller, or `tm_` and a ULID. */
      id: string;
      /** The message appended to the session when it fires. */
      message: string | null;
      /** Its purpose. */
      name: string | null;
      /** Whether it resumes the session if it is suspended. */
      resume: boolean;
      /** The event of the last change. */
      seq: number;
      /** The session that it belongs to. */
      session_id: string | null;
      /** Its status. */
      status: "pending" | "fired" | "cancelled";
      /** When it last changed. */
      updated_at: number;
    };
  };
  /** Settles the unknown outcome of a call. The first settlement counts; an identical one changes nothing. Refused while the caller that started the run of the call may not start runs of its agents. Requires the capability that the tool requires. */
  settle_tool_call: {
    args: {
      call_id: string;
      error?: string | null | undefined;
      evidence?: unknown | undefined;
      outcome: "succeeded" | "failed";
      result?: unknown | undefined;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Starts a run of another agent for a tool call that the caller holds and that a run requested. The child has its own session under the session of the call, with the same scope. The same call again returns the same run. Depth and number of the descendants of one run are limited. */
  start_child_run: {
    args: {
      agent: string;
      call_id: string;
      deadline_ms?: number | bigint | null | undefined;
      fencing_token: number | bigint;
      input: string;
    };
    result: BuiltinTables["runs"];
  };
  /** Starts a run of a session's agent. `input` is the user's message. Another agent is accepted only if it took over the turn of the last run in the session by a handoff. A run for a delegation is started by `start_child_run` instead. The definition of the agent says who may start its runs: `allow`. A session has one run at a time. The same `id` for the same session is the same run. */
  start_run: {
    args: {
      agent?: string | null | undefined;
      deadline_ms?: number | bigint | null | undefined;
      id?: string | null | undefined;
      input?: string | null | undefined;
      session_id: string;
    };
    result: BuiltinTables["runs"];
  };
  /** Suspends a session until something arrives for it. One that is suspended because a call of it waits for a decision is not continued by the decision. */
  suspend_session: {
    args: {
      reason?: string | null | undefined;
      session_id: string;
    };
    result: BuiltinTables["sessions"];
  };
  /** Puts a claimed call back, because its server has asked for input, or continues it as a task. With `inputs` the call waits for a decision on each of them; with `retry_ms` it is claimed again after that time. Steps are recorded with it. */
  suspend_tool_call: {
    args: {
      call_id: string;
      entries?: ({
        /** Its data. */
        data: unknown;
        /** Its kind. */
        kind: "asked" | "answered" | "task";
      })[] | null | undefined;
      fencing_token: number | bigint;
      inputs?: ({
        /** The question, for a person. */
        message: string;
        /** The JSON Schema of the answer, an object. */
        schema?: unknown | undefined;
        /** Where the person answers, if not here. */
        url?: string | null | undefined;
      })[] | null | undefined;
      retry_ms?: number | bigint | null | undefined;
    };
    result: BuiltinTables["tool_calls"];
  };
  /** Removes a label of a prompt. */
  unlabel_prompt: {
    args: {
      label: string;
      name: string;
    };
    result: BuiltinTables["prompt_labels"];
  };
  /** Changes the title and the metadata of a session that has not ended. What is omitted stays. */
  update_session: {
    args: {
      metadata?: Record<string, unknown> | null | undefined;
      session_id: string;
      title?: string | null | undefined;
    };
    result: BuiltinTables["sessions"];
  };
  /** Suspends a run until a decision is made. If it was made meanwhile, the run continues immediately; otherwise it waits without a driver. `interrupt` is the event for consumers. */
  wait_run: {
    args: {
      ends_at?: number | bigint | null | undefined;
      fencing_token: number | bigint;
      id: string;
      interrupt: Record<string, unknown>;
    };
    result: BuiltinTables["runs"];
  };
  /** Keeps the original of an answer that a guardrail has denied, or of a part of it. The message in its place is recorded in the same batch. */
  withhold_answer: {
    args: {
      fencing_token: number | bigint;
      id: string;
      iteration: number | bigint;
      original: unknown;
    };
    result: {
      /** The number of the answer in the run. */
      iteration: number;
      /** The run. */
      run_id: string;
    };
  };
  /** Writes and deletes entries of a collection, all or nothing. The first write creates the collection, in the scope of the caller. A key to delete that does not exist is ignored. Without entries the call changes nothing and returns the stored id of the collection. */
  write_entries: {
    args: {
      call_id?: string | null | undefined;
      collection_id: string;
      deletes?: (string)[] | null | undefined;
      fencing_token?: number | bigint | null | undefined;
      handoff_id?: string | null | undefined;
      kind?: string | null | undefined;
      puts?: ({
        /** Adds a new entry after all that were appended before: its key is `key`, followed by digits that only increase in the order of the log. */
        append?: boolean | null | undefined;
        /** Its bytes: `{"$blob": "<base64>"}`. */
        blob?: unknown | undefined;
        /** Its JSON value. */
        data?: unknown | undefined;
        /** The `seq` of the entry that it replaces, 0 if there is none: otherwise the call is a conflict. */
        expected_seq?: number | bigint | null | undefined;
        /** Leaves an entry that exists unchanged. */
        keep?: boolean | null | undefined;
        /** Its key. */
        key: string;
      })[] | null | undefined;
      run_id?: string | null | undefined;
      scope?: Record<string, unknown> | null | undefined;
    };
    result: {
      /** The stored id of the collection: for a caller with a scope, in the namespace of this scope. */
      collection_id: string;
      /** Entries that were deleted. */
      deleted: number;
      /** Entries that were written. */
      written: number;
    };
  };
  /** Writes the next version of the plan of a run's session: all steps, in order. Refused with `conflict` if the plan has another version than expected, and with `bad_transition` if not exactly one step is in progress while steps are left and work has begun. */
  write_plan: {
    args: {
      expected_version: number | bigint;
      fencing_token: number | bigint;
      id: string;
      steps: ({
        /** More details. */
        description?: string | null | undefined;
        /** The evidence that it is done. */
        evidence?: string | null | undefined;
        /** When it counts as done. */
        exit_criteria?: string | null | undefined;
        /** The agent that works on it. */
        owner?: string | null | undefined;
        /** Its status. */
        status: "not_started" | "in_progress" | "completed" | "blocked";
        /** The task. */
        title: string;
      })[];
    };
    result: BuiltinTables["plans"];
  };
}

/** The codes with which the server refuses. */
export type BuiltinErrorCode =
  | "bad_request"
  | "bad_arguments"
  | "bad_sql"
  | "unsupported_sql"
  | "unauthenticated"
  | "denied"
  | "not_found"
  | "unknown_reducer"
  | "conflict"
  | "file_locked"
  | "bad_transition"
  | "call_id_conflict"
  | "request_id_conflict"
  | "lease_lost"
  | "limit_exceeded"
  | "rate_limited"
  | "overloaded"
  | "unavailable"
  | "resync_required"
  | "history_expired"
  | "disk_full"
  | "engine_failed"
  | "internal";

/** The type parameter of `Abide`. */
export interface BuiltinSchema {
  tables: BuiltinTables;
  reducers: BuiltinReducers;
}
