/**
 * Errors: each has a stable code, one plain sentence, and a hint if there is something to do.
 */
import type { BuiltinErrorCode } from "./builtin.js";

/** A code of the server; `docs/protocol.md` lists them. */
export type ServerErrorCode = BuiltinErrorCode;

/**
 * A code of this SDK.
 *
 * - `bad_address`: the URL is not the address of a server.
 * - `unreachable`: no server answers at the address. Nothing was sent.
 * - `timed_out`: there was no answer within the deadline. It is unknown whether a call took effect.
 * - `protocol`: the server sent a message that violates `abide.v1`.
 * - `incompatible_version`: the engine speaks another protocol than this SDK.
 * - `closed`: the client was closed.
 * - `engine_not_found`, `engine_start`: `Abide.open` did not find the program, or it did not start.
 * - `untrusted_engine`: the socket of the engine belongs to another user, or another user can replace it.
 *   Nothing was sent.
 * - `unknown_outcome`, `tool_failed`, `tool_rejected`, `tool_cancelled`: see `Session.tool`.
 */
export type ClientErrorCode =
  | "bad_address"
  | "unreachable"
  | "timed_out"
  | "protocol"
  | "incompatible_version"
  | "closed"
  | "engine_not_found"
  | "engine_start"
  | "untrusted_engine"
  | "unknown_outcome"
  | "tool_failed"
  | "tool_rejected"
  | "tool_cancelled";

/** All codes. A newer server may send others, so it is open for any text. */
export type ErrorCode = ServerErrorCode | ClientErrorCode | (string & {});

/** The parts of an error other than its code and its sentence. */
export interface ErrorDetails {
  /** How to fix it. */
  hint?: string | undefined;
  /** How long to wait before a retry, if the caller's own rate limit or quota refused the request. */
  retryAfterMs?: number | undefined;
  /** The request id of a call that timed out: a retry with it has at most one effect. */
  requestId?: string | undefined;
  /** The error that led to this one. */
  cause?: unknown;
}

/**
 * Makes `instanceof` true for objects of the same class in another copy of this package. Two copies in one program are
 * usual in npm: a library with its own dependency, or a bundled and an external copy.
 */
export function brand(kind: { readonly prototype: object }, name: string): void {
  const mark = Symbol.for(`@abide/client/${name}`);
  Object.defineProperty(kind.prototype, mark, { value: true });
  Object.defineProperty(kind, Symbol.hasInstance, {
    value(this: unknown, value: unknown): boolean {
      // A class of the program that extends this one inherits the method.
      if (this !== kind) return Function.prototype[Symbol.hasInstance].call(this as Function, value);
      return typeof value === "object" && value !== null && mark in value;
    },
  });
}

/** An error of Abide. Programs branch on `code`. */
export class AbideError extends Error {
  static {
    brand(this, "AbideError");
  }

  /** The stable code. */
  readonly code: ErrorCode;
  /** How to fix it. */
  declare readonly hint: string | undefined;
  /** How long to wait before a retry, in milliseconds. */
  declare readonly retryAfterMs: number | undefined;
  /** The request id of a call that timed out. */
  declare readonly requestId: string | undefined;

  constructor(code: ErrorCode, detail: string, details: ErrorDetails = {}) {
    super(detail, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = "AbideError";
    this.code = code;
    // A part that an error does not have is not a property, so that a printed error does not list it.
    const { hint, retryAfterMs, requestId } = details;
    if (hint !== undefined) this.hint = hint;
    if (retryAfterMs !== undefined) this.retryAfterMs = retryAfterMs;
    if (requestId !== undefined) this.requestId = requestId;
  }
}

/** The fields of a refusal, in a message of the WebSocket and in a problem document. */
export interface Refusal {
  code?: string;
  detail?: string;
  hint?: string;
  retry_after_ms?: number;
  batch_position?: number;
}

/** The longest pause that a server can ask for, in milliseconds. */
const MOST_RETRY_MS = 3_600_000;

/** The longest text of a server in an error, in UTF-16 units. */
const MOST_TEXT = 2_000;

/** A text of a server that fits in a message: a server decides how long its texts are. */
function cut(text: string): string {
  if (text.length <= MOST_TEXT) return text;
  return `${text.slice(0, MOST_TEXT)} … (${text.length - MOST_TEXT} more characters)`;
}

/** The error of a refusal. Fields of another type than expected do not count. */
export function refusalError(refusal: Refusal): AbideError {
  const { code, detail, hint, retry_after_ms: retry, batch_position: position } = refusal;
  const text = (value: unknown) => (typeof value === "string" && value !== "" ? cut(value) : undefined);
  const isTime = typeof retry === "number" && retry >= 0;
  const place = typeof position === "number" ? `call ${position} of the batch: ` : "";
  return new AbideError(text(code) ?? "internal", place + (text(detail) ?? "the server gives no reason"), {
    hint: text(hint),
    retryAfterMs: isTime ? Math.min(retry, MOST_RETRY_MS) : undefined,
  });
}

/** Whether a value is an error of Abide, with this code if one is given. */
export function isAbideError(error: unknown, code?: ErrorCode): error is AbideError {
  return error instanceof AbideError && (code === undefined || error.code === code);
}

/** Whether a code says that the request had no effect and may succeed after a pause. */
export function isTemporary(code: string | undefined): boolean {
  return code === "rate_limited" || code === "overloaded" || code === "unavailable";
}

/** The error of a closed client. */
export function closedError(): AbideError {
  return new AbideError("closed", "the client is closed", { hint: "open or connect a new client" });
}

/** The sentence of any thrown value. */
export function messageOf(error: unknown): string {
  if (error instanceof Error) return error.message;
  try {
    return String(error);
  } catch {
    return "an object without a text was thrown";
  }
}
