/// <reference lib="esnext.disposable" preserve="true" />
/** A query result and its changes. */
import { type AbideError, closedError, messageOf } from "./errors.js";
import { Emitter } from "./emitter.js";
import type { Consumer, DeltaEvent, FeedEvent, Info, Query, SnapshotEvent, Start } from "./feed.js";
import { Mismatch } from "./layout.js";
import { Row, RowFormat } from "./row.js";
import { type Difference, Rows } from "./rows.js";
import type { Entry, Subscriptions } from "./subscriptions.js";
import { Update } from "./update.js";
import { UpdateIterator } from "./update-iterator.js";
import type { Integers, SqlRow, SqlValue } from "./values.js";
import {
  type Changes,
  type Column,
  isSameShape,
  type OrderTerm,
  type Plan,
  protocolError,
  visibleWidth,
} from "./wire.js";

/** Events of a subscription. `end` has the error, or nothing if the program ended the subscription or the client. */
export interface SubscriptionEvents<R extends object> {
  update: [update: Update<R>];
  end: [error: AbideError | undefined];
}

/** Consecutive mismatches after which a subscription is given up: more than by chance. */
const REPAIRS = 3;

const NO_SHAPE = { columns: [], key: [], order: [], topN: false };

/**
 * A query result that is kept up to date.
 *
 * `rows` is the result as of `seq`, in the query's order. Each commit that changes it makes one {@link
 * Update}: for listeners of the event `update`, and for `for await (const update of subscription)`. There is
 * no gap and no repetition, across lost connections and restarts of the server too.
 */
export class Subscription<R extends object = SqlRow> extends Emitter<SubscriptionEvents<R>> {
  readonly #subscriptions: Subscriptions;
  readonly #integers: Integers;
  readonly #entry: Entry;
  /** It is not a subscription to changes only. */
  readonly #holdsRows: boolean;
  #format: RowFormat;
  #plan: Plan | undefined;
  #rows: Rows | undefined;
  /** The objects of the rows, until the next change. */
  #objects: readonly R[] | undefined;
  #seq: number;
  #historyChanged = false;
  /** A snapshot was requested; events before it are ignored. */
  #isRepairing = false;
  #mismatchesInARow = 0;
  #mismatches = 0;
  #error: AbideError | undefined;
  #isEnded = false;
  readonly #iterators = new Set<UpdateIterator<R>>();
  #onStart: ((error?: AbideError) => void) | undefined;
  /** Events that wait until the program has seen the first result and added its listeners. */
  #held: FeedEvent[] | undefined;
  readonly #onMismatch: (why: string) => void;

  /** @internal */
  constructor(
    subscriptions: Subscriptions,
    query: Query,
    start: Start,
    integers: Integers,
    onMismatch: (why: string) => void,
    onStart: (error?: AbideError) => void,
  ) {
    super();
    this.#subscriptions = subscriptions;
    this.#integers = integers;
    this.#holdsRows = start.at !== "after";
    this.#seq = start.at === "after" ? start.seq : 0;
    this.#format = new RowFormat(NO_SHAPE, integers);
    this.#onMismatch = onMismatch;
    this.#onStart = onStart;
    const consumer: Consumer = { take: (event) => this.#take(event), end: (error) => this.#end(error) };
    this.#entry = subscriptions.add(query, start, consumer);
  }

  /** The result as of the last update, in the query's order; without ORDER BY, in the order of its key. */
  get rows(): readonly R[] {
    this.#objects ??= this.#all.map((row) => row.object(this.#format) as R);
    return this.#objects;
  }

  /** The rows as arrays of cells, for results that have columns with the same name. */
  get cells(): SqlValue[][] {
    return this.#all.map((row) => this.#format.array(row.cells));
  }

  /** The number of rows. */
  get size(): number {
    return this.#all.length;
  }

  /** The seq up to which all changes are applied. Keep it to resume later with the option `after`. */
  get seq(): number {
    return this.#seq;
  }

  /** The columns of the result. */
  get columns(): readonly Column[] {
    const { shape } = this.#format;
    return shape.columns.slice(0, visibleWidth(shape));
  }

  /** The columns that identify a row; empty if there are none. */
  get key(): readonly string[] {
    return this.#format.shape.key;
  }

  /**
   * The terms of the ORDER BY, most significant first. A position beyond `columns` refers to a hidden column
   * that the query sorts by.
   */
  get order(): readonly OrderTerm[] {
    return this.#format.shape.order;
  }

  /** Whether the query has a LIMIT, so that the server determines the positions. */
  get isTopN(): boolean {
    return this.#format.shape.topN;
  }

  /** How the server maintains the result, and at what cost. */
  get plan(): Plan | undefined {
    return this.#plan;
  }

  /** How often the rows did not match the server's checksum or changes and were fetched again. */
  get mismatches(): number {
    return this.#mismatches;
  }

  /** Whether it has ended. */
  get isEnded(): boolean {
    return this.#isEnded;
  }

  /** Why it ended, if the program ended neither it nor the client. */
  get error(): AbideError | undefined {
    return this.#error;
  }

  /** Ends it. */
  close(): void {
    this.#subscriptions.remove(this.#entry);
    this.#end(undefined);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /**
   * Iterates over the updates. The first one is the current result, marked with `reset`. An iterator that is
   * read slowly gets the changes of that time as one update. The iteration ends when the subscription or the
   * client is closed, and throws the error of a subscription that failed. It does not end the subscription.
   */
  [Symbol.asyncIterator](): AsyncIterableIterator<Update<R>, undefined> {
    const first = this.#holdsRows && this.#rows ? this.#whole(false) : undefined;
    const iterator = new UpdateIterator<R>(first, {
      rows: () => this.#all.slice(),
      whole: (historyChanged) => this.#whole(historyChanged),
      difference: (earlier, from, historyChanged) => {
        const difference = this.#rows?.differenceFrom(earlier, false) ?? emptyDifference();
        return this.#update({ from, seq: this.#seq, reset: false, historyChanged }, difference);
      },
      pause: () => this.#pause(),
      resume: (seq) => this.#subscriptions.restart(this.#entry, { at: "after", seq }),
      done: () => this.#iterators.delete(iterator),
      holdsRows: this.#holdsRows,
    });
    if (this.#isEnded) iterator.end(this.#error);
    else this.#iterators.add(iterator);
    return iterator;
  }

  /** The text that `console.log` of Node, Bun and Deno shows. */
  [Symbol.for("nodejs.util.inspect.custom")](): object {
    const { seq, rows, isEnded, error } = this;
    return error === undefined ? { seq, rows, isEnded } : { seq, rows, isEnded, error };
  }

  get #all(): readonly Row[] {
    return this.#rows?.all ?? [];
  }

  #pause(): boolean {
    // With several readers, one that is slow must not stop the others.
    if (this.#iterators.size > 1) return false;
    this.#subscriptions.pause(this.#entry);
    return true;
  }

  #take(event: FeedEvent): void {
    if (this.#isEnded) return;
    if (this.#held) {
      this.#held.push(event);
      return;
    }
    if (this.#onStart && !this.#holdsRows) {
      // The first changes, too, wait until the program has added its listeners.
      if ("info" in event && event.info) this.#setInfo(event.info);
      this.#start([event]);
      return;
    }
    if (event.kind === "snapshot") {
      this.#isRepairing = false;
      // Kept over a repair, until the update that shows the other history.
      this.#historyChanged ||= event.historyChanged;
    }
    if (this.#isRepairing) return;
    if (event.kind === "progress") {
      this.#seq = Math.max(this.#seq, event.seq);
      return;
    }
    try {
      if (event.kind === "snapshot") this.#takeSnapshot(event);
      else this.#takeDelta(event);
    } catch (error) {
      if (!(error instanceof Mismatch)) throw error;
      this.#repair(error.message);
    }
  }

  #takeSnapshot(event: SnapshotEvent): void {
    const { info, seq } = event;
    if (!this.#holdsRows) {
      const { shape } = this.#setInfo(info);
      const inserts = event.rows.map((cells) => new Row(cells));
      const positions = shape.topN
        ? { deletes: [], inserts: inserts.map((_, at) => at), updates: [] }
        : undefined;
      this.#show(seq, true, { deletes: [], inserts, updates: [], positions });
      return;
    }
    const rows = new Rows(info.shape, event.rows, event.checksum);
    const earlier = this.#rows;
    const isSame = isSameShape(this.#format.shape, info.shape);
    this.#setInfo(info);
    this.#rows = rows;
    if (earlier && isSame) this.#show(seq, false, rows.differenceFrom(earlier.all, true));
    else this.#show(seq, true, this.#wholeDifference());
  }

  #takeDelta({ to, changes, checksum, info }: DeltaEvent): void {
    if (this.#rows) {
      if (info && !isSameShape(info.shape, this.#format.shape)) {
        throw new Mismatch("the columns of the query have changed");
      }
      this.#show(to, false, this.#rows.apply(changes, checksum));
      return;
    }
    if (info) this.#setInfo(info);
    this.#show(to, false, withoutRows(changes));
  }

  #setInfo(info: Info): RowFormat {
    if (!isSameShape(this.#format.shape, info.shape)) {
      this.#format = new RowFormat(info.shape, this.#integers);
    }
    this.#plan = info.plan ?? this.#plan;
    return this.#format;
  }

  /** The state has changed: informs listeners and iterators. */
  #show(seq: number, reset: boolean, difference: Difference): void {
    const from = this.#seq;
    const historyChanged = this.#historyChanged;
    this.#seq = seq;
    this.#historyChanged = false;
    this.#mismatchesInARow = 0;
    this.#objects = undefined;
    if (this.#onStart) return this.#start([]);
    const { deletes, inserts, updates } = difference;
    const isEmpty = deletes.length + inserts.length + updates.length === 0;
    if (isEmpty && !reset && !historyChanged) return;
    const update = this.#update({ from, seq, reset, historyChanged }, difference);
    for (const iterator of Array.from(this.#iterators)) iterator.push(update);
    this.emit("update", update);
  }

  /** Lets the program that waits for the first result run, before these and later events are taken. */
  #start(held: FeedEvent[]): void {
    this.#onStart?.();
    this.#onStart = undefined;
    this.#held = held;
    setTimeout(() => {
      this.#held = undefined;
      try {
        for (const event of held) this.#take(event);
      } catch (error) {
        this.#subscriptions.remove(this.#entry);
        this.#end(protocolError(messageOf(error), error));
      }
    }, 0);
  }

  /** The rows would be wrong: keeps the current ones, and fetches the result again. */
  #repair(why: string): void {
    this.#mismatches += 1;
    this.#mismatchesInARow += 1;
    this.#onMismatch(why);
    if (this.#mismatchesInARow > REPAIRS) {
      this.#subscriptions.remove(this.#entry);
      this.#end(protocolError(why));
      return;
    }
    this.#isRepairing = true;
    this.#subscriptions.restart(this.#entry, { at: "now" });
  }

  #end(error: AbideError | undefined): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.#error = error;
    const start = this.#onStart;
    this.#onStart = undefined;
    for (const iterator of Array.from(this.#iterators)) iterator.end(error);
    this.#iterators.clear();
    this.emit("end", error);
    this.removeListeners();
    start?.(error ?? closedError());
  }

  #wholeDifference(): Difference {
    const inserts = this.#all.slice();
    const positions = this.isTopN
      ? { deletes: [], inserts: inserts.map((_, at) => at), updates: [] }
      : undefined;
    return { deletes: [], inserts, updates: [], positions };
  }

  #whole(historyChanged: boolean): Update<R> {
    const head = { from: this.#seq, seq: this.#seq, reset: true, historyChanged };
    return this.#update(head, this.#wholeDifference());
  }

  #update(head: ConstructorParameters<typeof Update>[0], difference: Difference): Update<R> {
    return new Update<R>(head, difference, this.#format);
  }
}

function emptyDifference(): Difference {
  return { deletes: [], inserts: [], updates: [] };
}

/** The changes of a subscription that keeps no rows. */
function withoutRows({ deletes, inserts, updates, placed }: Changes): Difference {
  const all = { inserts: [...inserts], updates: [...updates] };
  for (const { row } of placed?.inserts ?? []) all.inserts.push(row);
  for (const { row } of placed?.updates ?? []) all.updates.push(row);
  return {
    deletes,
    inserts: all.inserts.map((cells) => new Row(cells)),
    updates: all.updates.map((cells) => new Row(cells)),
    positions: placed && {
      deletes: placed.deletes,
      inserts: placed.inserts.map(({ at }) => at),
      updates: placed.updates.map(({ at }) => at),
    },
  };
}
