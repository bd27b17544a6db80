/** A query result that is kept up to date: a snapshot with the later changes applied. */
import { Checksum } from "./checksum.js";
import { keyOfCells, isSameRow, Layout, Mismatch, type RowKey } from "./layout.js";
import { Row } from "./row.js";
import type { Cell } from "./values.js";
import type { Changes, Shape } from "./wire.js";

/**
 * Positions of the changes in a result with LIMIT, counted from 0. The n-th position of each list belongs to
 * the n-th row of the list with the same name. Remove the deletes in order, then insert the inserts, then
 * replace the updates, to get the new result.
 */
export interface Positions {
  /** Old positions of deleted rows, from last to first. */
  deletes: number[];
  /** New positions of inserted rows, from first to last. */
  inserts: number[];
  /** Positions of updated rows. */
  updates: number[];
}

/** Changes as they are shown. */
export interface Difference {
  /** Keys of deleted rows; whole rows if the result has no key. */
  deletes: (readonly Cell[])[];
  inserts: Row[];
  updates: Row[];
  positions?: Positions | undefined;
}

/** The effect of a change, before it is applied. */
interface Effect {
  gone: Row[];
  come: Row[];
  /** Keys with their new rows. */
  keys: Map<RowKey, Row | undefined>;
  /** All rows of a result with LIMIT at their new positions. */
  placed?: Row[];
  shown: Difference;
}

/** A result in its query's order; in the order of its key if the query has no ORDER BY. */
export class Rows {
  readonly layout: Layout;
  #sorted: Row[];
  readonly #byKey: Map<RowKey, Row>;
  /** The snapshot in the order received, if that differs from the order kept here; until the first change. */
  #asReceived: Row[] | undefined;
  /** The server determines the positions. */
  #isPlaced: boolean;
  #checksum: Checksum | undefined;

  /**
   * The rows of a snapshot, checked against the checksum if there is one.
   *
   * @throws Mismatch if they do not fit.
   */
  constructor(shape: Shape, snapshot: Cell[][], checksum: string | undefined) {
    this.layout = new Layout(shape);
    for (const row of snapshot) this.layout.checkWidth(row);
    if (checksum !== undefined) {
      this.#checksum = Checksum.of(snapshot);
      checkChecksum(this.#checksum, checksum);
    }
    this.#sorted = snapshot.map((cells) => new Row(cells));
    this.#byKey = this.#index();
    this.#isPlaced = shape.topN;
    if (!this.#isPlaced && !isSorted(this.#sorted, this.layout)) {
      this.#asReceived = this.#sorted;
      this.#sorted = this.#sorted.slice().sort(this.layout.compare);
    }
  }

  /** The rows, in order. The array changes with the next change. */
  get all(): readonly Row[] {
    return this.#asReceived && this.layout.isOrdered ? this.#asReceived : this.#sorted;
  }

  /**
   * Applies a change: deletes, then inserts, then updates. Applies all of it, or nothing.
   *
   * @throws Mismatch if it does not fit, or does not lead to the given checksum.
   */
  apply(changes: Changes, expected: string | undefined): Difference {
    const effect =
      this.#isPlaced || changes.placed ? this.#effectByPosition(changes) : this.#effectByRow(changes);
    if (this.#checksum) {
      const checksum = this.#checksum.copy();
      for (const row of effect.gone) checksum.remove(row.cells);
      for (const row of effect.come) checksum.add(row.cells);
      if (expected !== undefined) checkChecksum(checksum, expected);
      this.#checksum = checksum;
    }
    this.#asReceived = undefined;
    if (effect.placed) {
      this.#sorted = effect.placed;
      this.#isPlaced = true;
    } else {
      for (const [key, row] of effect.keys) {
        if (row) this.#byKey.set(key, row);
        else this.#byKey.delete(key);
      }
      this.#replace(effect.gone, effect.come);
    }
    return effect.shown;
  }

  /**
   * The difference from these earlier rows to the current ones. Rows that did not change keep their identity
   * if `keep` is set.
   */
  differenceFrom(earlier: readonly Row[], keep: boolean): Difference {
    if (this.#isPlaced) return this.#differenceByPosition(earlier, keep);
    return this.layout.hasKey ? this.#differenceByKey(earlier, keep) : this.#differenceOfMultisets(earlier);
  }

  #index(): Map<RowKey, Row> {
    const byKey = new Map<RowKey, Row>();
    if (!this.layout.hasKey) return byKey;
    for (const row of this.#sorted) byKey.set(this.layout.keyOf(row.cells), row);
    if (byKey.size !== this.#sorted.length) {
      throw new Mismatch("two rows of the snapshot have the same key");
    }
    return byKey;
  }

  #effectByPosition(changes: Changes): Effect {
    const rows = (this.#asReceived ?? this.#sorted).slice();
    const { deletes, inserts, updates } = changes.placed ?? { deletes: [], inserts: [], updates: [] };
    const effect: Effect = {
      gone: [],
      come: [],
      keys: new Map(),
      placed: rows,
      shown: { deletes: [], inserts: [], updates: [] },
    };
    const check = (at: number, length: number) => {
      if (at >= length) throw new Mismatch(`position ${at} is beyond the result`);
    };
    for (const at of deletes) {
      check(at, rows.length);
      const [row] = rows.splice(at, 1) as [Row];
      effect.gone.push(row);
      effect.shown.deletes.push(this.layout.keyCells(row.cells));
    }
    for (const { at, row: cells } of inserts) {
      this.layout.checkWidth(cells);
      check(at, rows.length + 1);
      const row = new Row(cells);
      rows.splice(at, 0, row);
      effect.come.push(row);
      effect.shown.inserts.push(row);
    }
    for (const { at, row: cells } of updates) {
      this.layout.checkWidth(cells);
      check(at, rows.length);
      const row = new Row(cells);
      effect.gone.push(rows[at] as Row);
      rows[at] = row;
      effect.come.push(row);
      effect.shown.updates.push(row);
    }
    effect.shown.positions = {
      deletes,
      inserts: inserts.map(({ at }) => at),
      updates: updates.map(({ at }) => at),
    };
    return effect;
  }

  #effectByRow(changes: Changes): Effect {
    for (const row of changes.inserts) this.layout.checkWidth(row);
    for (const row of changes.updates) this.layout.checkWidth(row);
    if (!this.layout.hasKey) return this.#effectOnMultiset(changes);
    const keys = new Map<RowKey, Row | undefined>();
    const set = (key: RowKey, row: Row | undefined, mustExist: boolean, otherwise: string) => {
      const exists = keys.has(key) ? keys.get(key) !== undefined : this.#byKey.has(key);
      if (exists !== mustExist) throw new Mismatch(otherwise);
      keys.set(key, row);
    };
    for (const key of changes.deletes) {
      set(keyOfCells(key), undefined, true, "a deleted row does not exist");
    }
    const inserts = changes.inserts.map((cells) => new Row(cells));
    for (const row of inserts) {
      set(this.layout.keyOf(row.cells), row, false, "an inserted row already exists");
    }
    const updates = changes.updates.map((cells) => new Row(cells));
    for (const row of updates) {
      set(this.layout.keyOf(row.cells), row, true, "an updated row does not exist");
    }
    const [gone, come]: [Row[], Row[]] = [[], []];
    for (const [key, row] of keys) {
      const earlier = this.#byKey.get(key);
      if (earlier) gone.push(earlier);
      if (row) come.push(row);
    }
    return { gone, come, keys, shown: { deletes: changes.deletes, inserts, updates } };
  }

  #effectOnMultiset(changes: Changes): Effect {
    if (changes.updates.length > 0) throw new Mismatch("an update in a result without a key");
    const gone = changes.deletes.map((cells) => {
      this.layout.checkWidth(cells);
      return new Row(cells);
    });
    gone.sort(this.layout.compare);
    // The n-th of several equal deletes needs the n-th of as many equal rows.
    let place = 0;
    gone.forEach((row, at) => {
      const previous = gone[at - 1];
      const isEqual = previous !== undefined && this.layout.compare(previous, row) === 0;
      place = isEqual ? place + 1 : lowerBound(this.#sorted, row, this.layout);
      const found = this.#sorted[place];
      if (!found || this.layout.compare(found, row) !== 0) {
        throw new Mismatch("a deleted row does not exist");
      }
    });
    const come = changes.inserts.map((cells) => new Row(cells));
    return {
      gone,
      come,
      keys: new Map(),
      shown: { deletes: changes.deletes, inserts: come, updates: [] },
    };
  }

  #replace(gone: Row[], come: Row[]): void {
    const compare = this.layout.compare;
    // For few rows, moving the tail of the array for each is cheapest; for many, one pass over all rows is.
    if (gone.length + come.length <= 8 + this.#sorted.length / 64) {
      for (const row of gone) {
        this.#sorted.splice(lowerBound(this.#sorted, row, this.layout), 1);
      }
      for (const row of come) this.#sorted.splice(upperBound(this.#sorted, row, this.layout), 0, row);
      return;
    }
    const leaving = gone.slice().sort(compare);
    let next = 0;
    this.#sorted = this.#sorted.filter((row) => {
      const leaves = next < leaving.length && compare(row, leaving[next] as Row) === 0;
      if (leaves) next += 1;
      return !leaves;
    });
    for (const row of come) this.#sorted.push(row);
    // The sort detects the sorted run and merges.
    this.#sorted.sort(compare);
  }

  #differenceByKey(earlier: readonly Row[], keep: boolean): Difference {
    const difference: Difference = { deletes: [], inserts: [], updates: [] };
    const before = new Map(earlier.map((row) => [this.layout.keyOf(row.cells), row]));
    const same = new Map<Row, Row>();
    for (const row of this.all) {
      const key = this.layout.keyOf(row.cells);
      const old = before.get(key);
      before.delete(key);
      if (!old) difference.inserts.push(row);
      else if (!isSameRow(old.cells, row.cells)) difference.updates.push(row);
      else same.set(row, old);
    }
    if (keep) this.#keep(same);
    difference.deletes = Array.from(before.values(), (row) => this.layout.keyCells(row.cells));
    return difference;
  }

  #differenceOfMultisets(earlier: readonly Row[]): Difference {
    const difference: Difference = { deletes: [], inserts: [], updates: [] };
    const [old, now] = [earlier.slice(), this.#sorted.slice()].map((rows) => rows.sort(this.layout.compare));
    let [i, j] = [0, 0];
    for (;;) {
      const [left, right] = [old?.[i], now?.[j]];
      if (!left && !right) return difference;
      const order = !left ? 1 : !right ? -1 : this.layout.compare(left, right);
      if (order < 0) difference.deletes.push((left as Row).cells);
      if (order > 0) difference.inserts.push(right as Row);
      if (order <= 0) i += 1;
      if (order >= 0) j += 1;
    }
  }

  /** The part between the common beginning and the common end. */
  #differenceByPosition(earlier: readonly Row[], keep: boolean): Difference {
    const now = this.#sorted;
    const alike = (old: Row | undefined, row: Row | undefined) =>
      old !== undefined && row !== undefined && isSameRow(old.cells, row.cells);
    let head = 0;
    while (alike(earlier[head], now[head])) head += 1;
    const most = Math.min(earlier.length, now.length) - head;
    let tail = 0;
    while (tail < most && alike(earlier.at(-1 - tail), now.at(-1 - tail))) tail += 1;
    const gone = earlier.slice(head, earlier.length - tail);
    const come = now.slice(head, now.length - tail);
    if (keep) {
      const same = new Map<Row, Row>();
      for (let at = 0; at < head; at += 1) same.set(now[at] as Row, earlier[at] as Row);
      for (let at = 1; at <= tail; at += 1) same.set(now.at(-at) as Row, earlier.at(-at) as Row);
      this.#keep(same);
    }
    const key = (row: Row) => this.layout.keyCells(row.cells);
    const isInPlace =
      this.layout.hasKey &&
      gone.length === come.length &&
      gone.every((row, at) => isSameRow(key(row), key(come[at] as Row)));
    if (isInPlace) {
      const changed = come.map((row, at) => ({ row, at })).filter(({ row, at }) => !alike(gone[at], row));
      const updates = changed.map(({ row }) => row);
      const positions = { deletes: [], inserts: [], updates: changed.map(({ at }) => head + at) };
      return { deletes: [], inserts: [], updates, positions };
    }
    const positions = {
      deletes: gone.map((_, at) => head + at).reverse(),
      inserts: come.map((_, at) => head + at),
      updates: [],
    };
    return { deletes: gone.map(key).reverse(), inserts: come, updates: [], positions };
  }

  /** Puts the earlier instances of unchanged rows in place of the new ones. */
  #keep(same: ReadonlyMap<Row, Row>): void {
    const kept = (row: Row) => same.get(row) ?? row;
    this.#sorted = this.#sorted.map(kept);
    this.#asReceived = this.#asReceived?.map(kept);
    for (const [key, row] of this.#byKey) this.#byKey.set(key, kept(row));
  }
}

function checkChecksum(checksum: Checksum, expected: string): void {
  const kept = checksum.toString();
  if (kept !== expected) {
    throw new Mismatch(`the rows have the checksum ${kept}, the server has ${expected}`);
  }
}

function isSorted(rows: readonly Row[], layout: Layout): boolean {
  return rows.every((row, at) => at === 0 || layout.compare(rows[at - 1] as Row, row) <= 0);
}

/** The first position whose row is not before this one. */
function lowerBound(rows: readonly Row[], row: Row, layout: Layout): number {
  return partitionPoint(rows, (other) => layout.compare(other, row) < 0);
}

/** The first position whose row is after this one. */
function upperBound(rows: readonly Row[], row: Row, layout: Layout): number {
  return partitionPoint(rows, (other) => layout.compare(other, row) <= 0);
}

function partitionPoint(rows: readonly Row[], isBefore: (row: Row) => boolean): number {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (isBefore(rows[middle] as Row)) low = middle + 1;
    else high = middle;
  }
  return low;
}
