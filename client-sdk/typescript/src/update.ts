/** One change of a subscription's result. */
import type { Row, RowFormat } from "./row.js";
import type { Difference, Positions } from "./rows.js";
import type { Cell, SqlRow, SqlValue } from "./values.js";

/** The parts of an update other than its rows. */
export interface UpdateHead {
  from: number;
  seq: number;
  reset: boolean;
  historyChanged: boolean;
}

/**
 * A change of a result: the previous result, without the deletes, with the inserts, and with rows replaced by
 * updates of the same key, is the new result.
 */
export class Update<R extends object = SqlRow> {
  /** The previous result was current up to here. */
  readonly from: number;
  /** The new result is as of here. */
  readonly seq: number;
  /**
   * The inserts are the whole result, and earlier updates are void: the first update of an iterator, or a
   * subscription that started `after` a seq whose history is gone.
   */
  readonly reset: boolean;
  /**
   * The server has another history than before: an older backup was restored, or another file is served at
   * the same address. Seqs of earlier updates mean nothing in the new one.
   */
  readonly historyChanged: boolean;
  readonly #difference: Difference;
  readonly #format: RowFormat;

  constructor(head: UpdateHead, difference: Difference, format: RowFormat) {
    this.from = head.from;
    this.seq = head.seq;
    this.reset = head.reset;
    this.historyChanged = head.historyChanged;
    this.#difference = difference;
    this.#format = format;
  }

  /** New rows. */
  get inserts(): R[] {
    return this.#difference.inserts.map((row) => row.object(this.#format) as R);
  }

  /** New versions of rows with the same key. */
  get updates(): R[] {
    return this.#difference.updates.map((row) => row.object(this.#format) as R);
  }

  /** Keys of deleted rows: `{ id: 7 }` if the key is `id`. Whole rows if the result has no key. */
  get deletes(): Partial<R>[] {
    const names = this.#deleteNames();
    return this.#difference.deletes.map((key) => this.#format.object(key, names) as Partial<R>);
  }

  /** The positions of the rows, for a query with LIMIT. */
  get positions(): Positions | undefined {
    return this.#difference.positions;
  }

  /** The three lists as arrays of cells, for results that have columns with the same name. */
  get cells(): { inserts: SqlValue[][]; updates: SqlValue[][]; deletes: SqlValue[][] } {
    const arrays = (rows: Row[]) => rows.map((row) => this.#format.array(row.cells));
    const width = this.#deleteNames().length;
    const deletes = this.#difference.deletes.map((key: readonly Cell[]) => this.#format.array(key, width));
    return {
      inserts: arrays(this.#difference.inserts),
      updates: arrays(this.#difference.updates),
      deletes,
    };
  }

  /** The text that `console.log` of Node, Bun and Deno shows. */
  [Symbol.for("nodejs.util.inspect.custom")](): object {
    const { from, seq, reset, historyChanged, inserts, updates, deletes, positions } = this;
    const shown = { from, seq, reset, historyChanged, inserts, updates, deletes };
    return positions === undefined ? shown : { ...shown, positions };
  }

  #deleteNames(): readonly string[] {
    const { key } = this.#format.shape;
    return key.length > 0 ? key : this.#format.names;
  }
}
