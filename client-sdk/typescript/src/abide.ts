/// <reference lib="esnext.disposable" preserve="true" />
/** The client: calls, batches, queries and subscriptions, over one connection. */
import { locateEngine, onWake, openSocket } from "#platform";

import { targetOf } from "./address.js";
import type { AbideError } from "./errors.js";
import { Emitter } from "./emitter.js";
import type { Start } from "./feed.js";
import { type Heartbeat, HEARTBEAT, Link } from "./link.js";
import { newId } from "./new-id.js";
import { checkOptions, checkQuery, kindOf, wrong } from "./options.js";
import { bodyOf } from "./requests.js";
import { RowFormat } from "./row.js";
import type { ArgsOf, BuiltinSchema, ReducerName, ResultOf, Schema } from "./schema.js";
import { Session, type SessionOptions } from "./session.js";
import type { Locate } from "./socket.js";
import { Subscription } from "./subscription.js";
import { Supervisor, type SupervisorOptions } from "./supervisor.js";
import {
  type Cell,
  cellsOf,
  type Integers,
  type Json,
  type Params,
  type SqlRow,
  type SqlValue,
  visibleJson,
  wireParams,
} from "./values.js";
import { type Frame, type Plan, protocolError, reading, shapeOf } from "./wire.js";
import { Worker, type WorkerOptions } from "./worker.js";

/** Options of a client. */
export interface OpenOptions {
  /** How long a request is tried before it fails with `timed_out`, in milliseconds. Default: 60,000. */
  deadlineMs?: number;
  /**
   * How integers appear in rows and results: `"auto"`, as `number`, and as `bigint` beyond 2^53 - 1; or
   * `"bigint"`, always as `bigint`, so that INTEGER and REAL differ. Default: `"auto"`.
   */
  integers?: Integers;
  /** Replaces times of the heartbeat. */
  heartbeat?: Partial<Heartbeat>;
  /**
   * Called when the rows of a subscription did not match the server's and were fetched again. Default:
   * `console.warn`.
   */
  onMismatch?: (why: string) => void;
}

/** Options of a client of a server. */
export interface ConnectOptions extends OpenOptions {
  /** A token of the server. */
  token?: string;
  /** Narrows all requests to a scope. Not in browsers. */
  scope?: Record<string, string>;
}

/** Options of a request. */
export interface RequestOptions {
  /**
   * Aborting it rejects the promise with the reason of the signal. A call that was sent may still take
   * effect.
   */
  signal?: AbortSignal;
  /** How long to try, in milliseconds, instead of the client's default. */
  deadlineMs?: number;
}

/** Options of a call or batch. */
export interface CallOptions extends RequestOptions {
  /**
   * The request id: a later call with the same id, from another process too, gets the first answer and has no
   * further effect. Default: a new one.
   */
  requestId?: string;
}

/** Options of a query. */
export interface SqlOptions extends RequestOptions {
  /** Reads the state as of this seq. */
  asOf?: number;
}

/** Options of a subscription. */
export interface SubscribeOptions extends RequestOptions {
  /**
   * Receives only the changes after this seq, for a program that kept `subscription.seq`. The subscription
   * then keeps no rows. Replaces `asOf`.
   */
  after?: number;
  /** Starts with the result as of this seq; the next update has all changes since. */
  asOf?: number;
  /** Verifies the rows against the server's checksum after each change. Default: `true`. */
  checksum?: boolean;
  /** Requests the SQL statements that produce the changes, in `subscription.plan`. */
  explain?: boolean;
}

/** The answer to a call. */
export interface Answer<Result> {
  /** The result of the reducer. */
  result: Result;
  /** The call's position in the log, or that of the first call with the same request id. */
  seq: number;
  /** Whether an earlier call with the same request id had taken effect. */
  duplicate: boolean;
}

/** The answer to a batch. */
export interface BatchAnswer<Results> {
  /** The results of the reducers, in order. */
  results: Results;
  /** The position of the last call in the log. */
  seq: number;
  /** Whether an earlier batch with the same request id had taken effect. */
  duplicate: boolean;
}

/** One call of a batch. */
export type BatchCall<S extends Schema> = {
  [Name in ReducerName<S>]: { reducer: Name; args: ArgsOf<S, Name> };
}[ReducerName<S>];

/** The results of the calls of a batch. */
export type BatchResults<S extends Schema, Calls extends readonly { reducer: string }[]> = {
  -readonly [At in keyof Calls]: ResultOf<S, Calls[At]["reducer"] & ReducerName<S>>;
};

/** The result of a query. */
export interface QueryResult<R extends object = SqlRow> {
  /** The state that the query read. */
  seq: number;
  /** The names of the columns. */
  columns: string[];
  /** The rows by column name. Of columns with the same name the last one counts. */
  rows: R[];
  /** The rows as arrays of cells. */
  cells: SqlValue[][];
}

/** How a live query is maintained, from `client.explain`. */
export interface Explanation {
  plan: Plan;
  [field: string]: Json | Plan;
}

/** The reducers as methods. */
export type CallMethods<S extends Schema> = {
  readonly [Name in ReducerName<S>]: (
    args: ArgsOf<S, Name>,
    options?: CallOptions,
  ) => Promise<ResultOf<S, Name>>;
};

/**
 * Events of a client. `lost` has the reason; the client then reconnects by itself. `closed` has the error that
 * ended the client, or nothing if the program closed it.
 */
export interface AbideEvents {
  connected: [];
  lost: [why: string];
  closed: [error: AbideError | undefined];
}

const DEADLINE_MS = 60_000;

const OPEN_OPTIONS = ["deadlineMs", "integers", "heartbeat", "onMismatch"];
const REQUEST_OPTIONS = ["signal", "deadlineMs"];
const CALL_OPTIONS = [...REQUEST_OPTIONS, "requestId"];
const SUBSCRIBE_OPTIONS = [...REQUEST_OPTIONS, "after", "asOf", "checksum", "explain"];

/** How often `Abide.open` starts an engine that ends before the connection is made. */
const OPEN_ATTEMPTS = 10;

/**
 * A client of a database. It reconnects by itself until it is closed.
 *
 * The type parameter has the tables and reducers; without it, those of the built-in modules.
 */
export class Abide<S extends Schema = BuiltinSchema> extends Emitter<AbideEvents> {
  /**
   * The reducers as methods: `await client.call.append_message({ … })`. They return what the reducer returns.
   */
  readonly call: CallMethods<S>;
  readonly #link: Link;
  readonly #options: OpenOptions;
  readonly #stopWaking: () => void;
  #mismatches = 0;

  private constructor(locate: Locate, options: OpenOptions) {
    super();
    this.#options = options;
    this.#link = new Link(locate, openSocket, { ...HEARTBEAT, ...options.heartbeat });
    this.#stopWaking = onWake(() => this.#link.wake());
    this.#link.on("connected", () => this.emit("connected"));
    this.#link.on("lost", (why) => this.emit("lost", why));
    this.#link.on("closed", (error) => {
      this.#stopWaking();
      this.emit("closed", error);
      this.removeListeners();
    });
    this.call = new Proxy({} as CallMethods<S>, {
      get: (_, name) => {
        // A client must not look like a promise.
        if (typeof name !== "string" || name === "then") return undefined;
        return async (args: object = {}, callOptions?: CallOptions) =>
          (await this.#request(name, args, callOptions)).result;
      },
    });
  }

  /**
   * Opens a database file, and creates it if it does not exist. The engine runs in a child process, which all
   * programs that open the file share, and which ends when the last of them has closed it.
   */
  static async open<S extends Schema = BuiltinSchema>(
    file: string,
    options: OpenOptions = {},
  ): Promise<Abide<S>> {
    checkFile(file);
    checkOptions("open", options, OPEN_OPTIONS);
    checkOpen(options);
    return await new Abide<S>(locateEngine(file), options).#connect(OPEN_ATTEMPTS);
  }

  /** Connects to a server, such as `http://127.0.0.1:7341`. */
  static async connect<S extends Schema = BuiltinSchema>(
    url: string,
    options: ConnectOptions = {},
  ): Promise<Abide<S>> {
    checkOptions("connect", options, [...OPEN_OPTIONS, "token", "scope"]);
    checkOpen(options);
    const { token } = options as { token?: unknown };
    if (token !== undefined && typeof token !== "string")
      throw wrong(`the token is ${kindOf(token)}, not a string`);
    const target = targetOf(url, options);
    return await new Abide<S>(async () => target, options).#connect(1);
  }

  /** Whether there is a connection at the moment. */
  get isConnected(): boolean {
    return this.#link.isConnected;
  }

  /** How often a lost connection was made again. */
  get reconnects(): number {
    return this.#link.reconnects;
  }

  /**
   * The prefix of the stored form of each id that the caller chooses, such as `tenant=acme/`; empty for a caller
   * without a scope. Calls accept ids without it; rows, answers and queries have it. `undefined` before the
   * first message of the server: it is known after any answer.
   */
  get namespace(): string | undefined {
    return this.#link.namespace;
  }

  /** How often the rows of a subscription did not match the server's and were fetched again. */
  get mismatches(): number {
    return this.#mismatches;
  }

  /** The number of subscriptions that have not ended. */
  get subscriptionCount(): number {
    return this.#link.subscriptions.size;
  }

  /** Calls a reducer, and returns its result with its position in the log. */
  async request<Name extends ReducerName<S>>(
    reducer: Name,
    args: ArgsOf<S, Name>,
    options?: CallOptions,
  ): Promise<Answer<ResultOf<S, Name>>> {
    return (await this.#request(reducer, args as object, options)) as Answer<ResultOf<S, Name>>;
  }

  /** Calls reducers in one transaction, all or nothing. */
  async batch<const Calls extends readonly BatchCall<S>[]>(
    calls: Calls,
    options: CallOptions = {},
  ): Promise<BatchAnswer<BatchResults<S, Calls>>> {
    if (!Array.isArray(calls)) throw wrong(`batch takes an array of calls, not ${kindOf(calls)}`);
    checkOptions("batch", options, CALL_OPTIONS);
    const requestId = options.requestId ?? newId();
    const message = { op: "batch", calls, request_id: requestId };
    const frame = await this.#ask(message, `the batch of ${calls.length} calls`, options, requestId);
    const seq = required(frame.seq, "seq");
    const results = required(frame.results, "results").map(({ result }) => this.#visible(result ?? null));
    if (results.length !== calls.length) {
      throw protocolError(`a batch of ${calls.length} calls has ${results.length} results`);
    }
    const answer = { results, seq, duplicate: frame.duplicate ?? false };
    return answer as BatchAnswer<BatchResults<S, Calls>>;
  }

  /** Runs a read-only statement once. */
  async sql<R extends object = SqlRow>(
    sql: string,
    params: Params = {},
    options: SqlOptions = {},
  ): Promise<QueryResult<R>> {
    checkQuery(sql, params);
    checkOptions("sql", options, [...REQUEST_OPTIONS, "asOf"]);
    const message = { op: "sql", sql, params: wireParams(params), as_of: options.asOf };
    const frame = await this.#ask(message, "the query", options);
    return reading("the result of a query", () => {
      const seq = required(frame.seq, "seq");
      const format = new RowFormat(shapeOf(frame), this.#integers);
      const rows: Cell[][] = required(frame.rows, "rows").map(cellsOf);
      for (const { length } of rows) {
        if (length !== format.names.length) throw protocolError("a row does not fit the columns");
      }
      return {
        seq,
        columns: [...format.names],
        rows: rows.map((cells) => format.object(cells) as R),
        cells: rows.map((cells) => format.array(cells)),
      };
    });
  }

  /** How a query would be maintained as a subscription, and at what cost. */
  async explain(sql: string, params: Params = {}, options: RequestOptions = {}): Promise<Explanation> {
    checkQuery(sql, params);
    checkOptions("explain", options, REQUEST_OPTIONS);
    const message = { op: "explain", sql, params: wireParams(params) };
    const frame = await this.#ask(message, "the explanation", options);
    const { op: _op, id: _id, ...explanation } = this.#visible(frame) as Record<string, Json>;
    return explanation as unknown as Explanation;
  }

  /** Subscribes to a query: its result, which `rows` has when the promise resolves, and all later changes. */
  subscribe<R extends object = SqlRow>(
    sql: string,
    params: Params = {},
    options: SubscribeOptions = {},
  ): Promise<Subscription<R>> {
    return new Promise((resolve, reject) => {
      checkQuery(sql, params);
      checkOptions("subscribe", options, SUBSCRIBE_OPTIONS);
      const { signal, deadlineMs = this.#deadlineMs } = options;
      if (this.#link.closed) throw this.#link.closed;
      signal?.throwIfAborted();
      const query = {
        sql,
        params: wireParams(params),
        checksum: (options.checksum ?? true) && options.after === undefined,
        explain: options.explain ?? false,
      };
      // It is sent again on each new connection, and must not end one.
      bodyOf({ op: "subscribe", ...query });
      const abort = () => {
        reject(signal?.reason);
        subscription.close();
      };
      const late = setTimeout(
        () => {
          reject(this.#link.requests.timedOut("the subscription", deadlineMs));
          subscription.close();
        },
        Math.min(deadlineMs, 2 ** 31 - 1),
      );
      const subscription = new Subscription<R>(
        this.#link.subscriptions,
        query,
        startOf(options),
        this.#integers,
        (why) => this.#noteMismatch(why),
        (error) => {
          clearTimeout(late);
          if (error) {
            signal?.removeEventListener("abort", abort);
            reject(error);
          } else {
            resolve(subscription);
          }
        },
      );
      signal?.addEventListener("abort", abort, { once: true });
      subscription.on("end", () => signal?.removeEventListener("abort", abort));
    });
  }

  /** Finds or creates a session: messages, tool calls that run once, approvals, handoffs and timers. */
  session(options: SessionOptions): Promise<Session> {
    return Session.open(this as unknown as Abide, options);
  }

  /**
   * The session with this id; `undefined` if there is none that the caller can see. A caller with a scope can
   * give the id that it chose, or the stored id, which begins with the namespace of its scope.
   */
  findSession(id: string): Promise<Session | undefined> {
    return Session.find(this as unknown as Abide, id);
  }

  /** A worker, which runs the tool calls of all sessions: `await client.worker().serve({ refund })`. */
  worker(options?: WorkerOptions): Worker {
    return new Worker(this as unknown as Abide, options);
  }

  /** A supervisor, which takes over sessions: `await client.supervisor().serve("refunds", answer)`. */
  supervisor(options?: SupervisorOptions): Supervisor {
    return new Supervisor(this as unknown as Abide, options);
  }

  /** Closes the client: unanswered requests fail with `closed`, and subscriptions end without an error. */
  async close(): Promise<void> {
    this.#link.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #connect(attempts: number): Promise<this> {
    try {
      await this.#link.connect(attempts);
      return this;
    } catch (error) {
      this.#link.close();
      throw error;
    }
  }

  async #request(reducer: string, args: object, options: CallOptions = {}): Promise<Answer<unknown>> {
    checkOptions(`call.${reducer}`, options, CALL_OPTIONS);
    const requestId = options.requestId ?? newId();
    const message = { op: "call", reducer, args, request_id: requestId };
    const frame = await this.#ask(message, `the call of ${reducer}`, options, requestId);
    const result = this.#visible(frame.result ?? null);
    return { result, seq: required(frame.seq, "seq"), duplicate: frame.duplicate ?? false };
  }

  #ask(
    message: Record<string, unknown>,
    what: string,
    { signal, deadlineMs }: RequestOptions,
    requestId?: string,
  ): Promise<Frame> {
    return this.#link.requests.ask({
      message,
      what,
      requestId,
      signal,
      deadlineMs: deadlineMs ?? this.#deadlineMs,
    });
  }

  get #deadlineMs(): number {
    return this.#options.deadlineMs ?? DEADLINE_MS;
  }

  get #integers(): Integers {
    return this.#options.integers ?? "auto";
  }

  #visible(json: unknown): Json {
    return visibleJson(json, this.#integers);
  }

  #noteMismatch(why: string): void {
    this.#mismatches += 1;
    const report = this.#options.onMismatch ?? ((reason) => console.warn(`abide: ${reason}`));
    report(`a change of a subscription does not apply, the result is fetched again: ${why}`);
  }
}

function checkFile(file: unknown): void {
  if (typeof file !== "string" || file === "") {
    const what = file === "" ? "an empty text" : kindOf(file);
    throw wrong(`open takes the path of a database file, not ${what}`, 'such as Abide.open("agents.db")');
  }
  if (/^(?:https?|wss?):/i.test(file)) {
    throw wrong(`open takes the path of a file, and ${file} is a URL`, "Abide.connect(url) uses a server");
  }
}

function checkOpen({ integers, heartbeat = {} }: OpenOptions): void {
  checkOptions("heartbeat", heartbeat, ["pingMs", "pongMs"]);
  if (integers === undefined || integers === "auto" || integers === "bigint") return;
  throw wrong(`integers is not ${String(integers)}`, '"auto" or "bigint"');
}

function required<T>(field: T | undefined, name: string): T {
  if (field === undefined) throw protocolError(`an answer without ${name}`);
  return field;
}

function startOf({ after, asOf }: SubscribeOptions): Start {
  if (after !== undefined) return { at: "after", seq: after };
  return asOf === undefined ? { at: "now" } : { at: "asOf", seq: asOf };
}
