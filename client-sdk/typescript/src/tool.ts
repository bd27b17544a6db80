/** One attempt at a claimed tool call, and the errors of calls that have no result. */
import type { Abide, CallOptions } from "./abide.js";
import type { BuiltinTables } from "./builtin.js";
import { AbideError, brand, isAbideError, messageOf } from "./errors.js";
import { parseJson, wellFormed, writeJson } from "./json.js";
import { isPassing, underLease } from "./lease.js";
import { newId } from "./new-id.js";
import { visibleJson } from "./values.js";
import { fieldOf, storedJson } from "./wire.js";

/** The context of a tool call, in addition to its arguments. */
export interface ToolContext {
  /** The id of the call: the same for each attempt, so it can be an idempotency key elsewhere. */
  callId: string;
  sessionId: string;
  /** 1 for the first attempt. */
  attempt: number;
  /** Aborts when the call is cancelled, or when another worker has it. */
  signal: AbortSignal;
}

/**
 * A tool. What it returns or throws is recorded as the outcome. Each tool knows the type of its own
 * arguments.
 */
export type ToolFunction<Args = any, Result = unknown> = (
  args: Args,
  context: ToolContext,
) => Result | PromiseLike<Result>;

/** Thrown by a tool: the call failed, has had no effect, and can be tried again. */
export class Retryable extends Error {
  static {
    brand(this, "Retryable");
  }

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = "Retryable";
  }
}

/**
 * A tool call may have run: its worker disappeared, lost its lease or could not tell, and its tool must not run twice. Find
 * out whether it ran, and record that with `client.call.settle_tool_call`. The step then returns the settled
 * outcome.
 */
export class UnknownOutcome extends AbideError {
  static {
    brand(this, "UnknownOutcome");
  }

  constructor(
    readonly callId: string,
    readonly toolName: string,
    /** The report of the worker after it had lost the lease; the view `unknown_tool_calls` has it. */
    readonly reported: "succeeded" | "failed" | null = null,
    /** The reason that the worker reported. */
    readonly reason: string | null = null,
  ) {
    super(
      "unknown_outcome",
      reported !== null
        ? `the worker of call ${callId} of ${toolName} lost its lease before it reported that the tool ${reported}`
        : reason !== null
          ? `it is unknown whether call ${callId} of ${toolName} ran: ${reason}`
          : `the worker of call ${callId} of ${toolName} disappeared, and the tool must not run twice`,
      {
        hint:
          reported === null
            ? "find out whether it ran, then record the outcome with settle_tool_call"
            : `what it reported is in the view unknown_tool_calls (${REPORTED_IN[reported]}): check it, then record it with settle_tool_call`,
      },
    );
    this.name = "UnknownOutcome";
  }
}

const REPORTED_IN = { succeeded: "late_result", failed: "late_error" };

/** A tool call ended without a result: it failed, was rejected, or was cancelled. */
export class ToolFailed extends AbideError {
  static {
    brand(this, "ToolFailed");
  }

  constructor(
    readonly callId: string,
    /** How it ended. */
    readonly status: "failed" | "rejected" | "cancelled",
    /** The recorded error. */
    readonly error: string | null,
  ) {
    const codes = { failed: "tool_failed", rejected: "tool_rejected", cancelled: "tool_cancelled" };
    super(codes[status], `call ${callId} is ${status}: ${error ?? "no reason was given"}`);
    this.name = "ToolFailed";
  }
}

/** A row of a tool call. */
export type ToolCallRow = BuiltinTables["tool_calls"];

/** A name for one claim: of this process, and unique. */
export function workerName(): string {
  const { process } = globalThis as { process?: { pid?: number; title?: string } };
  const random = Math.random().toString(36).slice(2, 10);
  return `${process?.title ?? "browser"}:${process?.pid ?? 0}:${random}`;
}

/** A pause before an outcome is reported again: a limit that asks for a longer one refuses at once. */
const PAUSE_MS = 1_000;

/**
 * Runs the function once, with heartbeats, and records its result or its error. Returns the result as it is
 * recorded, which is what a repetition returns.
 *
 * `goesOn` tells whether to try on to record the outcome when the deadline of the client has passed without an
 * answer: nobody else can report what the tool has done.
 *
 * @throws what the function threw; AbideError `lease_lost` if the lease ended before the result was recorded;
 *   ToolFailed if the call was cancelled, or if its result cannot be stored.
 */
export async function runTool<Result>(
  client: Abide,
  call: ToolCallRow,
  run: ToolFunction<never, Result>,
  leaseMs: number,
  goesOn: () => boolean = () => false,
): Promise<Result> {
  const call_id = fieldOf(call, "call_id", "string");
  const holder = { call_id, fencing_token: fieldOf(call, "fencing_token", "number") };
  const report: Report = (send) => untilAnswered(send, goesOn);
  const args = storedJson(call.arguments) as never;
  const context = { callId: call.call_id, sessionId: call.session_id, attempt: call.attempt };
  const end = await underLease<Result>({
    leaseMs,
    run: (signal) => run(args, { ...context, signal }),
    heartbeat: async () => {
      const beat = { ...holder, lease_ms: leaseMs };
      const row = await client.call.heartbeat_tool_call(beat, { deadlineMs: leaseMs });
      return (row as ToolCallRow | null)?.cancel_requested_at == null;
    },
  });
  if ("result" in end) return await record(client, report, holder, end.result);
  if ("lost" in end) {
    // The result is reported all the same: `unknown_tool_calls` keeps it.
    if ("result" in end.end) return await record(client, report, holder, end.end.result);
    throw end.lost;
  }
  if ("cancelled" in end) {
    await report((options) => client.call.acknowledge_cancel(holder, options));
    throw new ToolFailed(call.call_id, "cancelled", "the call was cancelled while it ran");
  }
  const { error } = end;
  const retryable = error instanceof Retryable;
  const failure = { ...holder, error: wellFormed(messageOf(error)), retryable };
  await report((options) => client.call.fail_tool_call(failure, options));
  throw error;
}

interface Holder {
  call_id: string;
  fencing_token: number;
}

/** Sends an outcome. */
type Report = (send: (options: CallOptions) => Promise<unknown>) => Promise<void>;

/** Sends an outcome until there is an answer, as long as it goes on. All attempts are the same request. */
async function untilAnswered(
  send: (options: CallOptions) => Promise<unknown>,
  goesOn: () => boolean,
): Promise<void> {
  const requestId = newId();
  for (;;) {
    try {
      await send({ requestId });
      return;
    } catch (error) {
      if (!isPassing(error) || !goesOn()) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

/** Records the result of a tool that ran. If that is not possible, the call has failed. */
async function record<Result>(
  client: Abide,
  report: Report,
  holder: Holder,
  returned: Result,
): Promise<Result> {
  let result: unknown;
  try {
    result = parseJson(writeJson(returned ?? null));
  } catch (error) {
    throw await recordLoss(client, report, holder, error);
  }
  try {
    await report((options) => client.call.complete_tool_call({ ...holder, result }, options));
  } catch (error) {
    const isTooLarge = isAbideError(error, "bad_arguments") || isAbideError(error, "limit_exceeded");
    throw isTooLarge ? await recordLoss(client, report, holder, error) : error;
  }
  return visibleJson(result, "auto") as Result;
}

/** Records that a tool ran and its result is lost: the tool must not run again. */
async function recordLoss(
  client: Abide,
  report: Report,
  holder: Holder,
  why: unknown,
): Promise<ToolFailed> {
  // The path of a value begins at the result.
  const reason = messageOf(why).replace(/^(?:complete_tool_call: |\/args\/result)/, "");
  const error = wellFormed(`the tool ran, but its result cannot be stored: ${reason}`);
  await report((options) => client.call.fail_tool_call({ ...holder, error, retryable: false }, options));
  return new ToolFailed(holder.call_id, "failed", error);
}
