/** Supervisors: take over the sessions that agents hand off. */
import type { Abide } from "./abide.js";
import { AbideError, isAbideError, messageOf } from "./errors.js";
import { readJson } from "./json.js";
import { LEASE_MS, underLease } from "./lease.js";
import type { Json } from "./values.js";
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
  constructor(reason: string) {
    super(reason);
    this.name = "Rejected";
  }
}

const PENDING = `SELECT id FROM handoff_requests
WHERE status = 'pending' AND required_capability = :capability ORDER BY created_at, id`;

/** Takes over sessions. `client.supervisor` makes it. */
export class Supervisor {
  readonly #client: Abide;
  readonly #leaseMs: number;
  readonly #onProblem: (problem: string, error: unknown) => void;
  readonly #running = new Set<Promise<void>>();
  #isStopping = false;
  #wake: () => void = () => {};

  constructor(client: Abide, { leaseMs, onProblem }: SupervisorOptions = {}) {
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
   * Claims handoffs that require this capability, until `stop` is called. The function returns the resolution, or throws `Rejected`; after
   * another error the handoff is released to other supervisors.
   *
   * @throws AbideError if the client is closed or its token is revoked.
   */
  async serve(
    capability: string,
    run: SupervisorFunction,
    { concurrency = 8 }: ServeOptions = {},
  ): Promise<void> {
    const pending = await this.#client.subscribe<{ id: string }>(PENDING, { capability });
    // A handoff that was released stays pending: this supervisor does not take it again at once.
    const tried = new Set<string>();
    try {
      pending.on("update", () => this.#wake());
      pending.on("end", () => this.#wake());
      while (!this.#isStopping && !pending.isEnded) {
        const ids = new Set(pending.rows.map(({ id }) => id));
        for (const id of tried) if (!ids.has(id)) tried.delete(id);
        const next = Array.from(ids).find((id) => !tried.has(id));
        if (next === undefined || this.#running.size >= concurrency) {
          await new Promise<void>((resolve) => (this.#wake = resolve));
          continue;
        }
        tried.add(next);
        this.#start(next, run);
      }
    } finally {
      pending.close();
      await Promise.all(this.#running);
    }
    if (pending.error) throw pending.error;
  }

  #start(id: string, run: SupervisorFunction): void {
    const running = this.#take(id, run)
      .catch((error: unknown) => this.#onProblem(`handoff ${id}: ${messageOf(error)}`, error))
      .finally(() => {
        this.#running.delete(running);
        this.#wake();
      });
    this.#running.add(running);
  }

  async #take(id: string, run: SupervisorFunction): Promise<void> {
    const claimed = await this.#claim(id);
    if (!claimed) return;
    const holder = { id, fencing_token: claimed.fencing_token };
    const { session_id: sessionId, reason } = claimed;
    const data = readJson(claimed.data ?? "null");
    const end = await underLease<string>({
      leaseMs: this.#leaseMs,
      run: (signal) => run({ id, sessionId, reason, data, signal }),
      heartbeat: async () => {
        const beat = { ...holder, lease_ms: this.#leaseMs };
        await this.#client.call.heartbeat_handoff(beat, { deadlineMs: this.#leaseMs });
        return true;
      },
    });
    if ("result" in end) {
      await this.#client.call.resolve_handoff({ ...holder, resolution: end.result });
    } else if ("error" in end) {
      await this.#giveUp(holder, end.error);
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

  async #giveUp(holder: { id: string; fencing_token: number | null }, error: unknown): Promise<void> {
    if (error instanceof Rejected) {
      await this.#client.call.reject_handoff({ ...holder, reason: error.message });
      return;
    }
    if (!(error instanceof AbideError && error.code === "lease_lost")) {
      await this.#client.call.release_handoff(holder);
    }
    throw error;
  }
}
