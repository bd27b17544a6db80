/** Exponential backoff with jitter, so that the clients of one server do not retry in step. */

const FIRST_MS = 50;
const MOST_MS = 2_000;

/** A sequence of pauses; each is between half and all of its length. */
export class Backoff {
  #next = FIRST_MS;

  /** The next pause, in milliseconds. */
  next(): number {
    const whole = this.#next;
    this.#next = Math.min(whole * 2, MOST_MS);
    return whole * (0.5 + Math.random() / 2);
  }

  /** Starts again with the shortest pause. */
  reset(): void {
    this.#next = FIRST_MS;
  }
}
