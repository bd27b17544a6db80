/** Workers: run the tool calls that other programs request. */
import type { Abide } from "./abide.js";
import { isAbideError, messageOf } from "./errors.js";
import { isPassing, LEASE_MS } from "./lease.js";
import { newId } from "./new-id.js";
import { checkConcurrency, checkFunction, checkOptions, kindOf, wrong } from "./options.js";
import type { Subscription } from "./subscription.js";
import { runTool, type ToolCallRow, type ToolFunction, workerName } from "./tool.js";
import { fieldOf, protocolError } from "./wire.js";

/** Tools by name. */
export type ToolFunctions = Record<string, ToolFunction>;

/** Options of a worker. */
export interface WorkerOptions {
  /** A display name, in `tool_calls.claimed_by`. */
  name?: string;
  /** The lease. A heartbeat extends it while a tool runs. Default: 30,000 ms. */
  leaseMs?: number;
  /** Called with problems that have no caller to throw to. Default: `console.warn`. */
  onProblem?: (problem: string, error: unknown) => void;
}

/** Options of one run of a worker. */
export interface ServeOptions {
  /** How many calls run at the same time. Default: 8. */
  concurrency?: number;
}

// With `seq`, a call that leaves and returns during a lost connection is a change.
const PENDING =
  "SELECT call_id, seq FROM tool_calls WHERE status = 'pending' AND retry_at IS NULL AND tool_name = :tool";

/**
 * How soon to claim again when a limit of a tool holds its calls back, or the server is about to stop: no change
 * of a row shows when that ends.
 */
const RETRY_MS = 1_000;

/** How long to wait for an answer to a claim before the same request is sent again. */
const CLAIM_MS = 5_000;

/** Runs tool calls. `client.worker` makes it. */
export class Worker {
  readonly name: string;
  readonly #client: Abide;
  readonly #leaseMs: number;
  readonly #onProblem: (problem: string, error: unknown) => void;
  readonly #running = new Set<Promise<void>>();
  readonly #watched = new Map<string, Subscription>();
  #isStopping = false;
  #isServing = false;
  /** Calls may be pending that were not claimed. */
  #mayClaim = false;
  #wake: () => void = () => {};
  #failure: unknown;

  constructor(client: Abide, options: WorkerOptions = {}) {
    checkOptions("worker", options, ["name", "leaseMs", "onProblem"]);
    const { name, leaseMs, onProblem } = options;
    this.#client = client;
    this.name = name ?? workerName();
    this.#leaseMs = leaseMs ?? LEASE_MS;
    this.#onProblem = onProblem ?? ((problem) => console.warn(`abide: ${problem}`));
  }

  /** Lets `serve` return: it claims no more calls, and finishes those that run. */
  stop(): void {
    this.#isStopping = true;
    this.#wake();
  }

  /**
   * Runs calls of these tools until `stop` is called. What a tool returns or throws is recorded as the
   * outcome; after `Retryable` the call is pending again.
   *
   * A tool goes on while the server is away or restarts. Its lease is renewed when the server is back, and its
   * outcome is reported until the server answers; after `stop`, until the deadline of the client.
   *
   * @throws AbideError if the client is closed or its token is revoked.
   */
  async serve(tools: ToolFunctions, options: ServeOptions = {}): Promise<void> {
    checkOptions("serve", options, ["concurrency"]);
    const { concurrency = 8 } = options;
    checkConcurrency(concurrency);
    checkTools(tools);
    const names = Object.keys(tools);
    let retry: ReturnType<typeof setTimeout> | undefined;
    this.#isServing = true;
    try {
      for (const name of names) await this.#watch(name);
      while (!this.#isStopping && this.#failure === undefined) {
        if (!this.#mayClaim || this.#running.size >= concurrency) {
          await new Promise<void>((resolve) => (this.#wake = resolve));
          continue;
        }
        this.#mayClaim = false;
        const call = await this.#claim(names.filter((name) => (this.#watched.get(name)?.size ?? 0) > 0));
        if (call === "later") {
          clearTimeout(retry);
          retry = setTimeout(() => this.#notice(), RETRY_MS);
        } else if (call !== "none") {
          this.#mayClaim = true;
          const name = fieldOf(call, "tool_name", "string");
          if (!names.includes(name)) throw protocolError("a claimed call of a tool that was not requested");
          this.#start(call, tools[name] as ToolFunction);
        }
      }
    } finally {
      this.#isServing = false;
      clearTimeout(retry);
      for (const subscription of this.#watched.values()) subscription.close();
      this.#watched.clear();
      await Promise.all(this.#running);
    }
    if (this.#failure !== undefined) throw this.#failure;
  }

  /** Notices when calls of a tool are pending. */
  async #watch(tool: string): Promise<void> {
    const subscription = await this.#client.subscribe(PENDING, { tool });
    this.#watched.set(tool, subscription);
    if (subscription.size > 0) this.#notice();
    subscription.on("update", () => {
      if (subscription.size > 0) this.#notice();
    });
    subscription.on("end", (error) => {
      if (!error) return;
      this.#failure = error;
      this.#wake();
    });
  }

  #notice(): void {
    this.#mayClaim = true;
    this.#wake();
  }

  #goesOn(): boolean {
    return this.#isServing && !this.#isStopping && this.#failure === undefined;
  }

  /**
   * Claims the oldest call of these tools. A claim without an answer may have taken effect, and nobody else would run
   * the call: so it is sent again until there is an answer; after `stop`, until its lease would have expired. A
   * refusal of a later attempt does not deny that.
   */
  async #claim(tools: string[]): Promise<ToolCallRow | "none" | "later"> {
    // A claim that names a tool that is not registered is refused.
    if (tools.length === 0) return "none";
    const args = { tools, lease_ms: this.#leaseMs, worker: this.name };
    const options = { requestId: newId(), deadlineMs: CLAIM_MS };
    const expires = performance.now() + this.#leaseMs;
    let isUncertain = false;
    while (this.#goesOn() || (isUncertain && performance.now() < expires)) {
      try {
        const { result, duplicate } = await this.#client.request("claim_next_tool_call", args, options);
        return duplicate ? await this.#checked(result, expires) : result;
      } catch (error) {
        if (isAbideError(error, "not_found")) return "none";
        if (!isPassing(error)) throw error;
        if (isAbideError(error, "timed_out")) isUncertain = true;
        else if (!isUncertain) return "later";
        else await pause();
      }
    }
    return "none";
  }

  /** Renews the lease of a claim whose answer was lost at first; "later" if the lease has expired since. */
  async #checked(call: ToolCallRow, expires: number): Promise<ToolCallRow | "later"> {
    const call_id = fieldOf(call, "call_id", "string");
    const fencing_token = fieldOf(call, "fencing_token", "number");
    const beat = { call_id, fencing_token, lease_ms: this.#leaseMs };
    while (this.#goesOn() || performance.now() < expires) {
      try {
        await this.#client.call.heartbeat_tool_call(beat, { deadlineMs: CLAIM_MS });
        return call;
      } catch (error) {
        if (isAbideError(error, "closed")) throw error;
        if (!isPassing(error)) {
          this.#onProblem(`call ${call_id}: ${messageOf(error)}`, error);
          return "later";
        }
        await pause();
      }
    }
    return "later";
  }

  #start(call: ToolCallRow, run: ToolFunction): void {
    const running = this.#run(call, run).finally(() => {
      this.#running.delete(running);
      this.#wake();
    });
    this.#running.add(running);
  }

  async #run(call: ToolCallRow, run: ToolFunction): Promise<void> {
    try {
      await runTool(this.#client, call, run, this.#leaseMs, () => this.#goesOn());
    } catch (error) {
      this.#onProblem(`call ${call.call_id} of ${call.tool_name}: ${messageOf(error)}`, error);
    }
  }
}

function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, RETRY_MS));
}

function checkTools(tools: unknown): void {
  if (typeof tools !== "object" || tools === null || Array.isArray(tools)) {
    throw wrong(
      `serve takes an object of functions, not ${kindOf(tools)}`,
      "serve({ refund: async (args) => … })",
    );
  }
  const entries = Object.entries(tools);
  if (entries.length === 0) throw wrong("serve needs at least one tool");
  for (const [name, run] of entries) checkFunction(`the tool ${name}`, run);
}
