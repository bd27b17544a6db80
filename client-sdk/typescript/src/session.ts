/**
 * Sessions, and durable steps in your own code: a step that has run returns its recorded outcome when it is
 * repeated.
 *
 * Each step has a `key`, unique among the steps of its kind in its session. A program that crashed runs from
 * the beginning again, and its steps return what they returned before, without a second effect.
 */
import type { Abide } from "./abide.js";
import type { BuiltinReducers, BuiltinTables } from "./builtin.js";
import { AbideError, closedError, isAbideError, isTemporary } from "./errors.js";
import { LEASE_MS } from "./lease.js";
import { findStoredId } from "./namespace.js";
import { checkFunction, checkKey, checkOptions, isDate, kindOf, wrong } from "./options.js";
import {
  Retryable,
  runTool,
  type ToolCallRow,
  ToolFailed,
  type ToolFunction,
  UnknownOutcome,
  workerName,
} from "./tool.js";
import type { Json, Params } from "./values.js";
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
  /** The key of the step, unique among the tool and approval steps of its session. */
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
  /** The key of the step, unique among the steps of its kind in its session. */
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

const WAIT_OPTIONS = ["key", "signal"];

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
    checkOptions("session", options, ["agent", "id", "title", "parentId", "metadata"]);
    const { agent, id, title, parentId: parent_id, metadata } = options;
    const row = await client.call.open_session({ agent, id, title, parent_id, metadata });
    return new Session(client, fieldOf(row, "id", "string"));
  }

  /** The session with this id, as it is stored or as the caller chose it. */
  static async find(client: Abide, id: string): Promise<Session | undefined> {
    const stored = await findStoredId(client, "SELECT id FROM sessions WHERE id = :id", id);
    return stored === undefined ? undefined : new Session(client, stored);
  }

  /** Appends a message, and returns its number. */
  async message(role: string, content: string | null, options: MessageOptions = {}): Promise<number> {
    checkOptions("message", options, ["key", "kind", "data"]);
    const { key, kind, data } = options;
    // A key that is undefined by mistake would append the message again in each repetition.
    if ("key" in options) checkKey("a message", key);
    const args = { session_id: this.id, role, content, kind, data };
    const call = key === undefined ? {} : { requestId: this.#requestId("message", key) };
    const appended = await inTermsOfStep("message", key, () => this.client.call.append_message(args, call));
    return fieldOf(appended, "id", "number");
  }

  /** The messages and other entries, in order; with `after` only those with a larger number. */
  async messages(options: { after?: number } = {}): Promise<BuiltinTables["agent_state"][]> {
    checkOptions("messages", options, ["after"]);
    const { after = 0 } = options;
    const sql = "SELECT * FROM agent_state WHERE session_id = :id AND id > :after ORDER BY id";
    return (await this.client.sql<BuiltinTables["agent_state"]>(sql, { id: this.id, after })).rows;
  }

  /**
   * Runs a tool once: requests the call, waits for an approval if one is needed, claims it, runs the function
   * with heartbeats, and records its result. Repeated with the same key, it returns the recorded result.
   *
   * @throws UnknownOutcome if the worker of an earlier attempt disappeared and the tool must not run twice;
   *   ToolFailed if an earlier attempt failed, if the call was rejected or cancelled, or if the result cannot
   *   be stored; what `run` threw, and then the call has failed for ever, except for `Retryable`.
   */
  async tool<Result, Args = Json>(
    name: string,
    args: Args,
    options: ToolOptions<Args, Result>,
  ): Promise<Result> {
    checkOptions("tool", options, ["key", "run", "effect", "needsApproval", "leaseMs", "signal"]);
    const { key, run, effect, needsApproval, signal, leaseMs = LEASE_MS } = options;
    if (typeof name !== "string") throw wrong(`the name of a tool is a text, not ${kindOf(name)}`);
    checkKey("a tool step", key);
    checkFunction("run", run);
    checkEffect(effect);
    const request = {
      call_id: this.callId(key),
      session_id: this.id,
      tool_name: name,
      arguments: args,
      needs_approval: needsApproval,
    };
    const claim = { call_id: request.call_id, lease_ms: leaseMs, worker: workerName() };
    const requested = await inTermsOfStep("tool", key, () =>
      this.#registered(effect, name, () => this.#requestAndClaim(request, claim)),
    );
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
        if (isAbideError(error, "lease_lost") && (await this.#isUnknown(claim.call_id))) {
          throw await this.#unknownOutcome(claim.call_id, name);
        }
        if (!(error instanceof Retryable)) throw error;
        // It is pending again, or has no attempts left.
        claimed = undefined;
      }
    }
  }

  /** Asks a person for a decision, and waits for it. The decision is recorded under the key. */
  async approval(prompt: string, args: unknown, options: WaitOptions): Promise<Decision> {
    checkOptions("approval", options, WAIT_OPTIONS);
    const { key, signal } = options;
    checkKey("an approval", key);
    const request = {
      call_id: this.callId(key),
      session_id: this.id,
      tool_name: "approval",
      arguments: { prompt, args: args ?? null },
      needs_approval: true,
    };
    const requested = await inTermsOfStep("tool", key, () =>
      this.#registered("read_only", "approval", () => this.client.call.request_tool_call(request)),
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
  async handoff(reason: string, capability: string, options: HandoffOptions): Promise<Resolution> {
    checkOptions("handoff", options, [...WAIT_OPTIONS, "data", "expiresAfterMs"]);
    const { key, signal, data, expiresAfterMs } = options;
    checkKey("a handoff", key);
    const args = {
      session_id: this.id,
      reason,
      required_capability: capability,
      data,
      expires_after_ms: expiresAfterMs,
    };
    const requestId = this.#requestId("handoff", key);
    const requested = await inTermsOfStep("handoff", key, () =>
      this.client.call.request_supervisor_handoff(args, { requestId }),
    );
    const id = fieldOf(requested, "id", "string");
    type State = Pick<BuiltinTables["handoff_requests"], "status" | "resolution">;
    const sql = "SELECT status, resolution FROM handoff_requests WHERE id = :id";
    const isDone = ({ status }: State) => status !== "pending" && status !== "claimed";
    const row = await this.#until<State>(sql, { id }, signal, isDone);
    return { status: row.status as Resolution["status"], text: row.resolution };
  }

  /** Waits for a time, also across restarts. The first call with this key decides the time. */
  async sleepUntil(when: Date, options: WaitOptions): Promise<void> {
    checkOptions("sleepUntil", options, WAIT_OPTIONS);
    const { key, signal } = options;
    checkKey("a timer", key);
    if (!isDate(when)) throw wrong(`sleepUntil takes a Date, not ${kindOf(when)}`, "new Date(milliseconds)");
    if (Number.isNaN(when.getTime())) throw wrong("sleepUntil takes a valid Date");
    const id = await this.#timer(this.callId(key), BigInt(when.getTime()) * 1000n);
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
      if (!isAbideError(error, "not_found") || !error.message.endsWith(`there is no tool ${name}`)) {
        throw error;
      }
      if (effect === undefined) {
        const hint = 'pass `effect` to register it, such as effect: "at_most_once"';
        throw new AbideError("not_found", `tool ${name} is not registered`, { hint, cause: error });
      }
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
            throw await this.#unknownOutcome(id, toolName);
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

  async #isUnknown(call_id: string): Promise<boolean> {
    const { rows } = await this.client.sql<CallState>(CALL, { id: call_id });
    return rows[0]?.status === "unknown";
  }

  /** The error of a call whose outcome is unknown, with what its worker reported too late. */
  async #unknownOutcome(id: string, toolName: string): Promise<UnknownOutcome> {
    type Known = Pick<UnknownOutcome, "reported" | "reason">;
    const sql = "SELECT late_outcome AS reported, error AS reason FROM unknown_tool_calls WHERE call_id = :id";
    // A caller that may not read the view gets the error without this.
    const known = (await this.client.sql<Known>(sql, { id }).catch(() => undefined))?.rows[0];
    return new UnknownOutcome(id, toolName, known?.reported ?? null, known?.reason ?? null);
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

  async #timer(id: string, due_at: bigint): Promise<string> {
    try {
      return fieldOf(await this.client.call.set_timer({ id, session_id: this.id, due_at }), "id", "string");
    } catch (error) {
      if (!isAbideError(error, "conflict")) throw error;
      const stored = await findStoredId(this.client, "SELECT id FROM timers WHERE id = :id", id);
      if (stored === undefined) throw error;
      return stored;
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
  return isAbideError(error) && (error.code === "conflict" || isTemporary(error.code));
}

/** The owners of the keys of each kind of step. A tool step and an approval have the id of a tool call. */
const OWNERS = {
  tool: "tool step or approval",
  message: "message",
  handoff: "handoff",
};

/** Makes a request of a step. Its errors speak of the step and its key, not of the ids that follow from it. */
async function inTermsOfStep<Result>(
  kind: keyof typeof OWNERS,
  key: string | undefined,
  request: () => Promise<Result>,
): Promise<Result> {
  try {
    return await request();
  } catch (error) {
    if (!isAbideError(error)) throw error;
    const { code, hint, retryAfterMs, requestId } = error;
    if (code === "call_id_conflict" || code === "request_id_conflict") {
      const other = /with other (.+)$/.exec(error.message)?.[1] ?? "arguments";
      const owner = `another ${OWNERS[kind]} of this session`;
      const detail = `the key ${JSON.stringify(key)} belongs to ${owner}, with other ${other}`;
      throw new AbideError(code, detail, {
        hint: "a repeated step must not change; give each step of a session a key of its own",
        cause: error,
      });
    }
    const isTooLong = /^(?:call \d+ of the batch: )?(?:call_id has|a request id must)/;
    if (isTooLong.test(error.message)) {
      const start = JSON.stringify(`${key?.slice(0, 20)}…`);
      throw wrong(`the key ${start} is too long`, "a key has at most 400 bytes", error);
    }
    // The step is one request for its caller, with arguments of its own.
    const detail = error.message
      .replace(/^call \d+ of the batch: /, "")
      .replace(/^(?:\/calls\/\d+)?\/args\//, "/");
    if (detail === error.message) throw error;
    throw new AbideError(code, detail, { hint, retryAfterMs, requestId, cause: error });
  }
}

const EFFECTS: readonly unknown[] = ["read_only", "idempotent", "at_most_once", undefined];

function checkEffect(effect: unknown): void {
  if (EFFECTS.includes(effect)) return;
  throw wrong(`effect is not ${JSON.stringify(effect)}`, "read_only, idempotent or at_most_once");
}
