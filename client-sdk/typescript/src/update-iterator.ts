/**
 * An asynchronous iterator over the updates of a subscription, with bounded memory: if it is read slowly, the
 * changes of that time become one update.
 */
import type { AbideError } from "./errors.js";
import type { Row } from "./row.js";
import type { Update } from "./update.js";

/** The most updates that wait for their reader. */
const WAITING = 256;

/** The part of a subscription that the iterator uses. */
export interface UpdateSource<R extends object> {
  /** The current rows. */
  rows(): Row[];
  /** All rows, as an update. */
  whole(historyChanged: boolean): Update<R>;
  /** The difference from earlier rows to the current ones, as an update. */
  difference(earlier: Row[], from: number, historyChanged: boolean): Update<R>;
  /** Stops the subscription on the server, if nothing else reads it. */
  pause(): boolean;
  /** Continues it after this seq. */
  resume(seq: number): void;
  /** The reader has stopped. */
  done(): void;
  /** It keeps rows, so that a difference can be computed. */
  holdsRows: boolean;
}

type Result<R extends object> = IteratorResult<Update<R>, undefined>;

interface Waiter<R extends object> {
  resolve(result: Result<R>): void;
  reject(error: unknown): void;
}

export class UpdateIterator<R extends object> implements AsyncIterableIterator<Update<R>, undefined> {
  readonly #source: UpdateSource<R>;
  #queue: Update<R>[];
  #waiters: Waiter<R>[] = [];
  /** The rows after the last update of the queue, while further updates are not queued. */
  #behind: { rows: Row[]; from: number; historyChanged: boolean; reset: boolean } | undefined;
  /** The seq after which the subscription continues when the queue is read. */
  #pausedAt: number | undefined;
  /** The rows after the last update of the queue. */
  #last: Row[] | undefined;
  #ended: { error: AbideError | undefined } | undefined;

  constructor(first: Update<R> | undefined, source: UpdateSource<R>) {
    this.#source = source;
    this.#queue = first ? [first] : [];
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<Result<R>> {
    const update = this.#take();
    if (update) return Promise.resolve({ done: false, value: update });
    if (!this.#ended) {
      return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }));
    }
    const { error } = this.#ended;
    // The error is thrown once.
    this.#ended = { error: undefined };
    return error ? Promise.reject(error) : Promise.resolve({ done: true, value: undefined });
  }

  return(): Promise<Result<R>> {
    this.#queue = [];
    this.#behind = undefined;
    this.#source.done();
    this.end(undefined);
    return Promise.resolve({ done: true, value: undefined });
  }

  /** The subscription has an update. */
  push(update: Update<R>): void {
    const waiter = this.#waiters.shift();
    if (waiter) {
      waiter.resolve({ done: false, value: update });
    } else if (this.#behind) {
      this.#behind.historyChanged ||= update.historyChanged;
      this.#behind.reset ||= update.reset;
    } else if (this.#queue.length < WAITING) {
      this.#queue.push(update);
      this.#afterPush(update);
    } else if (this.#source.holdsRows) {
      const { from, historyChanged, reset } = update;
      this.#behind = { rows: this.#last ?? [], from, historyChanged, reset };
    } else {
      this.#queue.push(update);
      // It was on its way when the subscription was stopped.
      if (this.#pausedAt !== undefined) this.#pausedAt = update.seq;
    }
  }

  /** The subscription has ended. */
  end(error: AbideError | undefined): void {
    if (this.#ended) return;
    const [first, ...others] = this.#waiters;
    this.#waiters = [];
    this.#ended = { error: first ? undefined : error };
    if (first && error) first.reject(error);
    else first?.resolve({ done: true, value: undefined });
    for (const waiter of others) waiter.resolve({ done: true, value: undefined });
  }

  /** Remembers where to continue when the queue is full. */
  #afterPush(update: Update<R>): void {
    if (this.#queue.length < WAITING) return;
    if (this.#source.holdsRows) this.#last = this.#source.rows();
    else if (this.#source.pause()) this.#pausedAt = update.seq;
  }

  #take(): Update<R> | undefined {
    const update = this.#queue.shift();
    if (update) return update;
    if (this.#behind) {
      const { rows, from, historyChanged, reset } = this.#behind;
      this.#behind = undefined;
      this.#last = undefined;
      return reset ? this.#source.whole(historyChanged) : this.#source.difference(rows, from, historyChanged);
    }
    if (this.#pausedAt !== undefined) {
      const seq = this.#pausedAt;
      this.#pausedAt = undefined;
      this.#source.resume(seq);
    }
    return undefined;
  }
}
