/** Supervisors: take over the sessions that agents hand off. */
import type { Abide } from "./abide.js";
import { AbideError, brand, closedError, isAbideError, messageOf } from "./errors.js";
import { wellFormed } from "./json.js";
import { LEASE_MS, underLease } from "./lease.js";
import { checkConcurrency, checkFunction, checkOptions, kindOf, wrong } from "./options.js";
import { type Report, untilAnswered } from "./tool.js";
import type { Json } from "./values.js";
import { fieldOf, storedJson } from "./wire.js";
import type { ServeOptions, WorkerOptions } from "./worker.js";

/** Options of a supervisor. */
export type SupervisorOptions = Omit<WorkerOptions, "name">;

/** A session that was handed off. */
export interface Handoff {
  id: string;
  sessionId: string;
  reason: string;
  data: Json;
  /** Aborts when another supervisor has the handoff. */
  signal: AbortSignal;
}

/** Returns the resolution, a text that becomes a message of the session. */
export type SupervisorFunction = (handoff: Handoff) => string | PromiseLike<string>;

/** Thrown by a supervisor's function to reject the handoff. The message is the reason. */
export class Rejected extends Error {
  static {
    brand(this, "Rejected");
  }

  constructor(reason: string) {
    super(reason);
    this.name = "Rejected";
  }
}

interface Holder {
  id: string;
  fencing_token: number;
}

const PENDING = `SELECT id FROM handoff_requests
WHERE status = 'pending' AND required_capability = :capability ORDER BY created_at, id`;

/**
 * How long a supervisor leaves a handoff that it released to others. Without this, it would take it again at
 * once.
 */
const REST_MS = 5_000;

/** Takes over sessions. `client.supervisor` makes it. */
export class Supervisor {
  readonly #client: Abide;
  readonly #leaseMs: number;
  readonly #onProblem: (problem: string, error: unknown) => void;
  readonly #running = new Set<Promise<void>>();
  /** Handoffs that were released after an error, until they can be taken again. */
  readonly #resting = new Map<string, ReturnType<typeof setTimeout>>();
  #isStopping = false;
  #wake: () => void = () => {};

  constructor(client: Abide, options: SupervisorOptions = {}) {
    checkOptions("supervisor", options, ["leaseMs", "onProblem"]);
    const { leaseMs, onProblem } = options;
    this.#client = client;
    this.#leaseMs = leaseMs ?? LEASE_MS;
    this.#onProblem = onProblem ?? ((problem) => console.warn(`abide: ${problem}`));
  }

  /** Lets `serve` return after the handoffs that it works on. */
  stop(): void {
    this.#isStopping = true;
    this.#wake();
  }

  /**
   * Claims handoffs that require this capability, until `stop` is called. The function returns the
   * resolution, or throws `Rejected`; after another error the handoff is released to other supervisors. The
   * answer is reported until the server responds; after `stop`, until the deadline of the client.
   *
   * @throws AbideError if the client is closed or its token is revoked.
   */
  async serve(capability: string, run: SupervisorFunction, options: ServeOptions = {}): Promise<void> {
    checkFunction(`the second argument of serve(${JSON.stringify(capability)}, …)`, run);
    checkOptions("serve", options, ["concurrency"]);
    const { concurrency = 8 } = options;
    checkConcurrency(concurrency);
    const pending = await this.#client.subscribe<{ id: string }>(PENDING, { capability });
    // Until the claim is visible, a handoff is still pending.
    const taken = new Set<string>();
    try {
      pending.on("update", () => this.#wake());
      pending.on("end", () => this.#wake());
      while (!this.#isStopping && !pending.isEnded) {
        const ids = new Set(pending.rows.map(({ id }) => id));
        for (const id of taken) if (!ids.has(id)) taken.delete(id);
        const next = Array.from(ids).find((id) => !taken.has(id) && !this.#resting.has(id));
        if (next === undefined || this.#running.size >= concurrency) {
          await new Promise<void>((resolve) => (this.#wake = resolve));
          continue;
        }
        taken.add(next);
        this.#start(next, run, () => !this.#isStopping && !pending.isEnded);
      }
      if (!this.#isStopping) throw pending.error ?? closedError();
    } finally {
      pending.close();
      await Promise.all(this.#running);
      for (const timer of this.#resting.values()) clearTimeout(timer);
    }
  }

  #start(id: string, run: SupervisorFunction, goesOn: () => boolean): void {
    const running = this.#take(id, run, goesOn)
      .catch((error: unknown) => this.#onProblem(`handoff ${id}: ${messageOf(error)}`, error))
      .finally(() => {
        this.#running.delete(running);
        this.#wake();
      });
    this.#running.add(running);
  }

  /** `goesOn` tells whether to report the answer again when the deadline of the client has passed. */
  async #take(id: string, run: SupervisorFunction, goesOn: () => boolean): Promise<void> {
    const claimed = await this.#claim(id);
    if (!claimed) return;
    const holder = { id, fencing_token: fieldOf(claimed, "fencing_token", "number") };
    const report: Report = (send) => untilAnswered(send, goesOn);
    const sessionId = fieldOf(claimed, "session_id", "string");
    const { reason } = claimed;
    const data = storedJson(claimed.data ?? "null");
    const end = await underLease<string>({
      leaseMs: this.#leaseMs,
      run: (signal) => run({ id, sessionId, reason, data, signal }),
      heartbeat: async () => {
        const beat = { ...holder, lease_ms: this.#leaseMs };
        await this.#client.call.heartbeat_handoff(beat, { deadlineMs: this.#leaseMs });
        return true;
      },
    });
    if ("lost" in end) throw end.lost;
    if ("result" in end) {
      const resolution: unknown = end.result;
      if (typeof resolution === "string") await this.#resolve(report, holder, resolution);
      else await this.#giveUp(report, holder, noText(resolution));
    } else if ("error" in end) {
      await this.#giveUp(report, holder, end.error);
    }
  }

  /** Claims a handoff; `undefined` if another supervisor was first. */
  async #claim(id: string) {
    try {
      return await this.#client.call.claim_handoff({ id, lease_ms: this.#leaseMs });
    } catch (error) {
      if (isAbideError(error, "conflict")) return undefined;
      throw error;
    }
  }

  /** Records the answer. One that cannot be stored releases the handoff. */
  async #resolve(report: Report, holder: Holder, resolution: string): Promise<void> {
    try {
      const answer = { ...holder, resolution };
      await report((options) => this.#client.call.resolve_handoff(answer, options));
    } catch (error) {
      const isWrong = isAbideError(error, "bad_arguments") || isAbideError(error, "limit_exceeded");
      if (!isWrong) throw error;
      await this.#giveUp(report, holder, error);
    }
  }

  async #giveUp(report: Report, holder: Holder, error: unknown): Promise<void> {
    if (error instanceof Rejected) {
      const rejection = { ...holder, reason: wellFormed(error.message) };
      await report((options) => this.#client.call.reject_handoff(rejection, options));
      return;
    }
    this.#rest(holder.id);
    await report((options) => this.#client.call.release_handoff(holder, options));
    throw error;
  }

  #rest(id: string): void {
    const wake = () => {
      this.#resting.delete(id);
      this.#wake();
    };
    this.#resting.set(id, setTimeout(wake, REST_MS));
  }
}

/** The error of a function that returned something else than a text. */
function noText(returned: unknown): AbideError {
  const detail = `the function of the supervisor must return a text, not ${kindOf(returned)}`;
  return wrong(
    detail,
    "the handoff is released to other supervisors; throw new Rejected(reason) to reject it",
  );
}
