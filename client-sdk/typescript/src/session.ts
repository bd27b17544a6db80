/**
 * Sessions, and durable steps in your own code: a step that has run returns its recorded outcome when it is
 * repeated.
 *
 * Each step has a `key`, unique in its session. A program that crashed runs from the beginning again, and its
 * steps return what they returned before, without a second effect.
 */
import type { Abide } from "./abide.js";
import type { BuiltinReducers, BuiltinTables } from "./builtin.js";
import { type AbideError, closedError, isAbideError } from "./errors.js";
import { LEASE_MS } from "./lease.js";
import { namespaceIn, storedId } from "./namespace.js";
import {
  Retryable,
  runTool,
  type ToolCallRow,
  ToolFailed,
  type ToolFunction,
  UnknownOutcome,
  workerName,
} from "./tool.js";
import { type Json, micros, type Params } from "./values.js";
import { fieldOf, storedJson } from "./wire.js";

/** How to find or create a session. */
export interface SessionOptions {
  /** The agent that owns it. */
  agent: string;
  /** Its id. With an id an existing session is used. Default: a new session with a generated id. */
  id?: string;
  /** A title for people. */
  title?: string;
  /** The session that it works for. */
  parentId?: string;
  /** Other data to store with it. */
  metadata?: Record<string, unknown>;
}

/** A message, or another entry. */
export interface MessageOptions {
  /** With a key, a repeated step appends the message once. */
  key?: string;
  /** The kind of entry. Default: `message`. */
  kind?: string;
  /** Other data, as JSON. */
  data?: unknown;
}

/** A step that runs a tool. */
export interface ToolOptions<Args, Result> {
  /** The key of the step, unique in its session. */
  key: string;
  /** Runs the tool, with the arguments that an approver may have changed. */
  run: ToolFunction<Args, Result>;
  /** Registers the tool with this effect if it is unknown. */
  effect?: "read_only" | "idempotent" | "at_most_once";
  /** Requires an approval even if the tool does not. */
  needsApproval?: boolean;
  /** The lease. A heartbeat extends it while the function runs. Default: 30,000 ms. */
  leaseMs?: number;
  /** Stops waiting for an approval or for another worker. It does not stop the function. */
  signal?: AbortSignal;
}

/** A step that waits. */
export interface WaitOptions {
  /** The key of the step, unique in its session. */
  key: string;
  /** Stops waiting. */
  signal?: AbortSignal;
}

/** A step that hands the session off. */
export interface HandoffOptions extends WaitOptions {
  /** Other data for the supervisor, as JSON. */
  data?: unknown;
  /** Continues without an answer if it is unclaimed after this time. */
  expiresAfterMs?: number;
}

/** The answer to a request for approval. */
export interface Decision {
  approved: boolean;
  /** The arguments as approved: those of the approver if it changed them. */
  args: Json;
  decidedBy: string | null;
  comment: string | null;
}

/** The answer of a supervisor. */
export interface Resolution {
  status: "resolved" | "rejected" | "expired" | "cancelled";
  text: string | null;
}

type CallState = Pick<ToolCallRow, "status" | "retry_at" | "result" | "error">;

const CALL = "SELECT status, retry_at, result, error FROM tool_calls WHERE call_id = :id";
const APPROVAL = `SELECT c.status, c.error, a.status AS decision, a.decided_by, a.comment, a.arguments,
  a.approved_arguments
FROM tool_calls AS c JOIN approvals AS a ON a.call_id = c.call_id WHERE c.call_id = :id`;

interface ApprovalState {
  status: ToolCallRow["status"];
  error: string | null;
  decision: BuiltinTables["approvals"]["status"];
  decided_by: string | null;
  comment: string | null;
  arguments: string;
  approved_arguments: string | null;
}

/** A durable unit of an agent's work. `client.session` makes it. */
export class Session {
  constructor(
    readonly client: Abide,
    /** The stored id. */
    readonly id: string,
  ) {}

  /** Finds or creates a session. */
  static async open(client: Abide, options: SessionOptions): Promise<Session> {
    const { agent, id, title, parentId: parent_id, metadata } = options;
    try {
      const row = await client.call.create_session({ agent, id, title, parent_id, metadata });
      return new Session(client, fieldOf(row, "id", "string"));
    } catch (error) {
      if (id === undefined || !isAbideError(error, "conflict")) throw error;
      // The refusal names the stored id. A policy may hide the session from queries.
      const namespace = namespaceIn(error.message, id);
      if (namespace !== undefined) return new Session(client, namespace + id);
      return (await Session.find(client, id)) ?? new Session(client, id);
    }
  }

  /** The session with this id, as it is stored or as the caller chose it. */
  static async find(client: Abide, id: string): Promise<Session | undefined> {
    const sql = "SELECT id FROM sessions WHERE id = :id";
    const exists = async (stored: string) => (await client.sql(sql, { id: stored })).rows.length > 0;
    // The server looks in this order, too.
    if (await exists(id)) return new Session(client, id);
    const stored = await storedId(client, id);
    return stored !== id && (await exists(stored)) ? new Session(client, stored) : undefined;
  }

  /** Appends a message, and returns its number. */
  async message(
    role: string,
    content: string | null,
    { key, kind, data }: MessageOptions = {},
  ): Promise<number> {
    const args = { session_id: this.id, role, content, kind, data };
    const options = key === undefined ? {} : { requestId: this.#requestId("message", key) };
    return fieldOf(await this.client.call.append_message(args, options), "id", "number");
  }

  /** The messages and other entries, in order; with `after` only those with a larger number. */
  async messages({ after = 0 }: { after?: number } = {}): Promise<BuiltinTables["agent_state"][]> {
    const sql = "SELECT * FROM agent_state WHERE session_id = :id AND id > :after ORDER BY id";
    return (await this.client.sql<BuiltinTables["agent_state"]>(sql, { id: this.id, after })).rows;
  }

  /**
   * Runs a tool once: requests the call, waits for an approval if one is needed, claims it, runs the function
   * with heartbeats, and records its result. Repeated with the same key, it returns the recorded result.
   *
   * @throws UnknownOutcome if the worker of an earlier attempt disappeared and the tool must not run twice;
   *   ToolFailed if an earlier
   *   attempt failed, or the call was rejected or cancelled; what `run` threw, and then the call has failed.
   */
  async tool<Result, Args = Json>(
    name: string,
    args: Args,
    options: ToolOptions<Args, Result>,
  ): Promise<Result> {
    const { key, run, effect, needsApproval, signal, leaseMs = LEASE_MS } = options;
    const callId = this.callId(key);
    const request = {
      call_id: callId,
      session_id: this.id,
      tool_name: name,
      arguments: args,
      needs_approval: needsApproval,
    };
    const claim = { call_id: callId, lease_ms: leaseMs, worker: workerName() };
    const requested = await this.#registered(effect, name, () => this.#requestAndClaim(request, claim));
    // Queries have the stored id.
    claim.call_id = fieldOf(requested.row, "call_id", "string");
    let claimed = requested.isClaimed ? requested.row : undefined;
    for (;;) {
      if (!claimed) {
        const state = await this.#claimOrOutcome(name, claim, signal);
        if ("outcome" in state) return state.outcome as Result;
        claimed = state.claimed;
      }
      try {
        return await runTool(this.client, claimed, run, leaseMs);
      } catch (error) {
        if (!(error instanceof Retryable)) throw error;
        // It is pending again, or has no attempts left.
        claimed = undefined;
      }
    }
  }

  /** Asks a person for a decision, and waits for it. The decision is recorded under the key. */
  async approval(prompt: string, args: unknown, { key, signal }: WaitOptions): Promise<Decision> {
    const requested = await this.#registered("read_only", "approval", () =>
      this.client.call.request_tool_call({
        call_id: this.callId(key),
        session_id: this.id,
        tool_name: "approval",
        arguments: { prompt, args: args ?? null },
        needs_approval: true,
      }),
    );
    const id = fieldOf(requested, "call_id", "string");
    const row = await this.#until<ApprovalState>(
      APPROVAL,
      { id },
      signal,
      ({ decision }) => decision !== "pending",
    );
    const approved = row.decision === "approved";
    if (approved && row.status === "pending") await this.#completeApproved(id);
    const decided = storedJson(row.approved_arguments ?? row.arguments) as { args?: Json } | null;
    const comment = row.comment ?? (approved ? null : row.error);
    return { approved, args: decided?.args ?? null, decidedBy: row.decided_by, comment };
  }

  /** Hands the session off to a supervisor with this capability, and waits for the answer. */
  async handoff(
    reason: string,
    capability: string,
    { key, signal, data, expiresAfterMs }: HandoffOptions,
  ): Promise<Resolution> {
    const args = {
      session_id: this.id,
      reason,
      required_capability: capability,
      data,
      expires_after_ms: expiresAfterMs,
    };
    const requestId = this.#requestId("handoff", key);
    const requested = await this.client.call.request_supervisor_handoff(args, { requestId });
    const id = fieldOf(requested, "id", "string");
    type State = Pick<BuiltinTables["handoff_requests"], "status" | "resolution">;
    const sql = "SELECT status, resolution FROM handoff_requests WHERE id = :id";
    const isDone = ({ status }: State) => status !== "pending" && status !== "claimed";
    const row = await this.#until<State>(sql, { id }, signal, isDone);
    return { status: row.status as Resolution["status"], text: row.resolution };
  }

  /** Waits for a time, also across restarts. The first call with this key decides the time. */
  async sleepUntil(when: Date, { key, signal }: WaitOptions): Promise<void> {
    const id = await this.#timer(this.callId(key), micros(when));
    type State = Pick<BuiltinTables["timers"], "status">;
    const sql = "SELECT status FROM timers WHERE id = :id";
    const row = await this.#until<State>(sql, { id }, signal, ({ status }) => status !== "pending");
    if (row.status === "cancelled") throw new ToolFailed(id, "cancelled", "the timer was cancelled");
  }

  /** Completes the session. */
  async complete(result?: unknown): Promise<void> {
    await this.client.call.complete_session({ session_id: this.id, result });
  }

  /** The id of the tool call, or of the timer, of a step. All SDKs derive it in this way. */
  callId(key: string): string {
    return `${this.id}/${key}`;
  }

  #requestId(kind: string, key: string): string {
    return `${kind}/${this.id}/${key}`;
  }

  /** Repeats it with the tool registered, if the tool is unknown and its effect is given. */
  async #registered<Result>(
    effect: ToolOptions<never, never>["effect"],
    name: string,
    request: () => Promise<Result>,
  ): Promise<Result> {
    try {
      return await request();
    } catch (error) {
      if (effect === undefined || !isAbideError(error, "not_found")) throw error;
      await this.client.call.register_tool({ name, effect });
      return await request();
    }
  }

  /** Requests a call and claims it in the same transaction, if it can be claimed at once. */
  async #requestAndClaim(
    request: BuiltinReducers["request_tool_call"]["args"],
    claim: BuiltinReducers["claim_tool_call"]["args"],
  ): Promise<{ row: ToolCallRow; isClaimed: boolean }> {
    try {
      const { results } = await this.client.batch([
        { reducer: "request_tool_call", args: request },
        { reducer: "claim_tool_call", args: claim },
      ]);
      return { row: results[1], isClaimed: true };
    } catch (error) {
      if (!isBusy(error)) throw error;
      // The call exists, waits for an approval, or is held back by a limit.
      return { row: await this.client.call.request_tool_call(request), isClaimed: false };
    }
  }

  /** Waits until the call can be claimed, or has ended. */
  async #claimOrOutcome(
    toolName: string,
    claim: BuiltinReducers["claim_tool_call"]["args"],
    signal: AbortSignal | undefined,
  ): Promise<{ claimed: ToolCallRow } | { outcome: Json }> {
    const id = claim.call_id;
    const subscription = await this.client.subscribe<CallState>(CALL, { id }, signal ? { signal } : {});
    try {
      for await (const _ of subscription) {
        const [row] = subscription.rows;
        switch (row?.status) {
          case "succeeded":
            return { outcome: storedJson(row.result ?? "null") };
          case "unknown":
            throw new UnknownOutcome(id, toolName);
          case "failed":
          case "rejected":
          case "cancelled":
            throw new ToolFailed(id, row.status, row.error);
          case "pending": {
            const claimed = row.retry_at === null ? await this.#claim(claim) : undefined;
            if (claimed) return { claimed };
          }
        }
      }
      signal?.throwIfAborted();
      throw closedError();
    } finally {
      subscription.close();
    }
  }

  /** Claims a call; `undefined` if another worker was first. The next change of the call then decides. */
  async #claim(claim: BuiltinReducers["claim_tool_call"]["args"]): Promise<ToolCallRow | undefined> {
    try {
      return await this.client.call.claim_tool_call(claim);
    } catch (error) {
      if (isAbideError(error, "conflict")) return undefined;
      throw error;
    }
  }

  /** Ends the call of an approval. Another process of the session may do the same. */
  async #completeApproved(id: string): Promise<void> {
    const claimed = await this.#claim({ call_id: id, worker: workerName() });
    if (!claimed) return;
    const fencing_token = fieldOf(claimed, "fencing_token", "number");
    await this.client.call.complete_tool_call({ call_id: id, fencing_token, result: { approved: true } });
  }

  async #timer(id: string, due_at: number): Promise<string> {
    try {
      return fieldOf(await this.client.call.set_timer({ id, session_id: this.id, due_at }), "id", "string");
    } catch (error) {
      if (!isAbideError(error, "conflict")) throw error;
      const sql = "SELECT id FROM timers WHERE id = :id";
      const { rows } = await this.client.sql<{ id: string }>(sql, { id: await storedId(this.client, id) });
      if (!rows[0]) throw error;
      return rows[0].id;
    }
  }

  /** Waits until the only row of a query satisfies a condition, and returns it. */
  async #until<Row extends object>(
    sql: string,
    params: Params,
    signal: AbortSignal | undefined,
    isDone: (row: Row) => boolean,
  ): Promise<Row> {
    const subscription = await this.client.subscribe<Row>(sql, params, signal ? { signal } : {});
    try {
      for await (const _ of subscription) {
        const [row] = subscription.rows;
        if (row && isDone(row)) return row;
      }
      signal?.throwIfAborted();
      throw closedError();
    } finally {
      subscription.close();
    }
  }
}

/** The call cannot be claimed at the moment. */
function isBusy(error: unknown): error is AbideError {
  return isAbideError(error, "conflict") || isAbideError(error, "overloaded");
}
