/** Work under a lease: heartbeats while it runs, and a signal when the work is not wanted any more. */
import { isAbideError, isTemporary } from "./errors.js";

/** The default lease in milliseconds. A heartbeat extends it while the work runs. */
export const LEASE_MS = 30_000;

/** The options of the work and its heartbeat. */
export interface LeasedWork<Result> {
  leaseMs: number;
  /** Does the work. It should stop when the signal aborts. */
  run(signal: AbortSignal): Result | PromiseLike<Result>;
  /** Extends the lease. Returns whether the work is still wanted; throws if the lease is lost. */
  heartbeat(): Promise<boolean>;
}

/** The result of the work itself. */
export type WorkEnd<Result> = { result: Result } | { error: unknown };

/** How leased work ended. After `lost`, `end` is what the work did without a lease. */
export type LeasedEnd<Result> =
  WorkEnd<Result> | { cancelled: true } | { lost: unknown; end: WorkEnd<Result> };

/** Whether the server gave no answer, or none that is final: it restarts, is not reachable, or is overloaded. */
export function isPassing(error: unknown): boolean {
  return isAbideError(error) && (error.code === "timed_out" || isTemporary(error.code));
}

/**
 * Runs the work, with a heartbeat each third of the lease. Waits until the work has ended, even if it was
 * cancelled: JavaScript cannot stop it.
 */
export async function underLease<Result>(work: LeasedWork<Result>): Promise<LeasedEnd<Result>> {
  const controller = new AbortController();
  let isCancelled = false;
  let lost: { why: unknown } | undefined;
  let isRunning = true;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const beat = async () => {
    try {
      if (await work.heartbeat()) return schedule();
      isCancelled = true;
      controller.abort(new Error("the call was cancelled"));
    } catch (error) {
      // The lease may still hold when the server answers again.
      if (isPassing(error)) return schedule();
      lost = { why: error };
      controller.abort(error);
    }
  };
  const schedule = () => {
    if (!isRunning) return;
    timer = setTimeout(() => void beat(), work.leaseMs / 3);
  };
  schedule();
  let end: WorkEnd<Result>;
  try {
    end = { result: await work.run(controller.signal) };
  } catch (error) {
    end = { error };
  } finally {
    isRunning = false;
    clearTimeout(timer);
  }
  if (lost) return { lost: lost.why, end };
  return isCancelled ? { cancelled: true } : end;
}
