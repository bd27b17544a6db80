/**
 * Requests with one answer. A request is sent again on each new connection until it is answered, its deadline
 * passes or its caller gives up. That is safe: a query changes nothing, and a call has a request id with
 * which it takes effect at most once.
 */
import { Backoff } from "./backoff.js";
import { AbideError, isTemporary, refusalError } from "./errors.js";
import { writeJson } from "./json.js";
import { type Frame, MESSAGE_BYTES } from "./wire.js";

/** A request. */
export interface Ask {
  /** The message without its id. */
  message: Record<string, unknown>;
  /** The request as error messages name it. */
  what: string;
  requestId?: string | undefined;
  /** How long to try, in milliseconds. */
  deadlineMs: number;
  signal?: AbortSignal | undefined;
}

interface Pending extends Ask {
  body: string;
  id: string;
  /** It was sent on this connection. */
  isSent: boolean;
  /** It was sent on an earlier one, without an answer. */
  isUncertain: boolean;
  until: number;
  readonly backoff: Backoff;
  deadline: ReturnType<typeof setTimeout> | undefined;
  retry: ReturnType<typeof setTimeout> | undefined;
  onAbort: (() => void) | undefined;
  resolve(frame: Frame): void;
  reject(error: unknown): void;
}

/** Timers of JavaScript have 31 bits. */
const MOST_MS = 2 ** 31 - 1;

export class Requests {
  /** In the order of the requests, which is the order in which they are sent. */
  readonly #pending = new Map<string, Pending>();
  #next = 0;
  #isConnected = false;
  #closed: AbideError | undefined;

  /**
   * @param sendText sends a text on the current connection.
   * @param lastError why there is no connection.
   */
  constructor(
    readonly sendText: (text: string) => void,
    readonly lastError: () => string | undefined,
  ) {}

  get size(): number {
    return this.#pending.size;
  }

  /** Sends a request and waits for its answer. */
  ask(ask: Ask): Promise<Frame> {
    return new Promise((resolve, reject) => {
      if (this.#closed) throw this.#closed;
      ask.signal?.throwIfAborted();
      const deadlineMs = Math.min(ask.deadlineMs, MOST_MS);
      const request: Pending = {
        ...ask,
        body: bodyOf(ask.message),
        id: "",
        isSent: false,
        isUncertain: false,
        until: performance.now() + deadlineMs,
        backoff: new Backoff(),
        deadline: undefined,
        retry: undefined,
        onAbort: undefined,
        resolve,
        reject,
      };
      request.deadline = setTimeout(() => this.#giveUp(request, this.#timedOut(request)), deadlineMs);
      if (ask.signal) {
        const { signal } = ask;
        request.onAbort = () => this.#giveUp(request, signal.reason);
        signal.addEventListener("abort", request.onAbort);
      }
      this.#send(request);
    });
  }

  /** There is a new connection: sends what is not answered. */
  connected(): void {
    this.#isConnected = true;
    for (const request of Array.from(this.#pending.values())) {
      request.isUncertain ||= request.isSent;
      if (request.retry === undefined) this.#send(request);
    }
  }

  disconnected(): void {
    this.#isConnected = false;
  }

  /** An answer. */
  answer(frame: Frame): boolean {
    const request = this.#pending.get(frame.id ?? "");
    if (!request) return false;
    if (frame.op !== "error") {
      this.#remove(request);
      request.resolve(frame);
      return true;
    }
    const error = refusalError(frame);
    if (isTemporary(error.code) && this.#retryLater(request, error)) return true;
    // If an earlier attempt may have had an effect, the code would deny that.
    const isUncertain = request.isUncertain && isTemporary(error.code);
    this.#fail(request, isUncertain ? this.#timedOut(request, error.message) : error);
    return true;
  }

  /** Ends all. Later requests fail with the same error. */
  end(error: AbideError): void {
    this.#closed = error;
    for (const request of Array.from(this.#pending.values())) this.#fail(request, error);
  }

  #send(request: Pending): void {
    this.#pending.delete(request.id);
    this.#next += 1;
    request.id = `r${this.#next}`;
    this.#pending.set(request.id, request);
    if (!this.#isConnected) return;
    request.isSent = true;
    this.sendText(`{"id":"${request.id}",${request.body}`);
  }

  #retryLater(request: Pending, error: AbideError): boolean {
    const pause = Math.max(request.backoff.next(), error.retryAfterMs ?? 0);
    if (performance.now() + pause >= request.until) return false;
    request.retry = setTimeout(() => {
      request.retry = undefined;
      this.#send(request);
    }, pause);
    return true;
  }

  /** The caller no longer waits. A query that was sent does not have to run to its end. */
  #giveUp(request: Pending, error: unknown): void {
    const { op } = request.message;
    if (this.#isConnected && (op === "sql" || op === "explain")) {
      this.sendText(`{"op":"cancel","id":"${request.id}"}`);
    }
    this.#fail(request, error);
  }

  #fail(request: Pending, error: unknown): void {
    this.#remove(request);
    request.reject(error);
  }

  #remove(request: Pending): void {
    this.#pending.delete(request.id);
    clearTimeout(request.deadline);
    clearTimeout(request.retry);
    if (request.onAbort) request.signal?.removeEventListener("abort", request.onAbort);
  }

  #timedOut({ what, deadlineMs, requestId }: Pending, why?: string): AbideError {
    return this.timedOut(what, deadlineMs, requestId, why);
  }

  /** The error of something that was not answered in time. */
  timedOut(what: string, deadlineMs: number, requestId?: string, why = this.lastError()): AbideError {
    const because = why === undefined ? "" : ` (${why})`;
    return new AbideError("timed_out", `${what} was not answered within ${deadlineMs} ms${because}`, {
      hint:
        requestId === undefined
          ? "retry, or set a longer deadline"
          : "retry with the same request id: the call takes effect at most once",
      requestId,
    });
  }
}

/**
 * The message as JSON without its first brace.
 *
 * @throws AbideError `bad_arguments` or `limit_exceeded` if the server could not read it. It closes the
 *   connection of such a message without an answer.
 */
export function bodyOf(message: Record<string, unknown>): string {
  const text = writeJson(message);
  // A UTF-16 unit has at most three bytes in UTF-8.
  if (text.length * 3 > MESSAGE_BYTES) {
    const bytes = new TextEncoder().encode(text).length;
    if (bytes > MESSAGE_BYTES) {
      const detail = `the message has ${bytes} bytes; the limit is ${MESSAGE_BYTES}`;
      throw new AbideError("limit_exceeded", detail, {
        hint: "split it, or store large content elsewhere",
      });
    }
  }
  return text.slice(1);
}
