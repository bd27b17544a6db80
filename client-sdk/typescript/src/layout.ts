/** How the rows of one result compare, and what identifies them. */
import { type Collation, collationOf, compareCells, compareExactly } from "./order.js";
import type { Row } from "./row.js";
import { type Cell, Real } from "./values.js";
import type { Shape } from "./wire.js";

/** A change that does not apply to the rows, or an inconsistent shape. */
export class Mismatch extends Error {}

/** The identity of a row in a `Map`: cells that SQLite considers equal have the same one. */
export type RowKey = null | number | bigint | string;

interface Term {
  at: number;
  sign: 1 | -1;
  nulls: 1 | -1;
  collation: Collation;
}

export class Layout {
  readonly width: number;
  /** The positions of the key columns. */
  readonly key: readonly number[];
  readonly #terms: readonly Term[];

  constructor(shape: Shape) {
    this.width = shape.columns.length;
    this.#terms = shape.order.map((term) => {
      const collation = collationOf(term.collation);
      if (!collation) throw new Mismatch(`unknown collation ${term.collation}`);
      if (term.index >= this.width) throw new Mismatch(`there is no column ${term.index}`);
      const nulls = term.nulls === "last" ? 1 : -1;
      return { at: term.index, sign: term.desc ? -1 : 1, nulls, collation };
    });
    this.key = shape.key.map((name) => {
      const at = shape.columns.findIndex((column) => column.name === name);
      if (at < 0) throw new Mismatch(`the key ${name} is not among the columns`);
      return at;
    });
  }

  get isOrdered(): boolean {
    return this.#terms.length > 0;
  }

  get hasKey(): boolean {
    return this.key.length > 0;
  }

  checkWidth(row: readonly Cell[]): void {
    if (row.length !== this.width) {
      throw new Mismatch(`a row has ${row.length} cells, the result ${this.width} columns`);
    }
  }

  /** How a deleted row is reported: by its key, or whole if there is no key. */
  keyCells(row: readonly Cell[]): readonly Cell[] {
    return this.hasKey ? this.key.map((at) => row[at] as Cell) : row;
  }

  keyOf(row: readonly Cell[]): RowKey {
    const [only] = this.key;
    return this.key.length === 1 ? keyOfCell(row[only as number] as Cell) : keyOfCells(this.keyCells(row));
  }

  /** By the query's order, then the key; without a key, by all cells. */
  readonly compare = (left: Row, right: Row): number => this.compareCells(left.cells, right.cells);

  compareCells(left: readonly Cell[], right: readonly Cell[]): number {
    for (const { at, sign, nulls, collation } of this.#terms) {
      const [a, b] = [left[at] as Cell, right[at] as Cell];
      let order = 0;
      if (a === null || b === null) order = a === b ? 0 : a === null ? nulls : -nulls;
      else order = sign * compareCells(a, b, collation);
      if (order !== 0) return order;
    }
    if (!this.hasKey) return compareRowsExactly(left, right);
    for (const at of this.key) {
      const order = compareCells(left[at] as Cell, right[at] as Cell);
      if (order !== 0) return order;
    }
    return 0;
  }
}

/** Whether two rows have the same cells with the same types. */
export function isSameRow(left: readonly Cell[], right: readonly Cell[]): boolean {
  return left === right || compareRowsExactly(left, right) === 0;
}

function compareRowsExactly(left: readonly Cell[], right: readonly Cell[]): number {
  const length = Math.min(left.length, right.length);
  for (let at = 0; at < length; at += 1) {
    const order = compareExactly(left[at] as Cell, right[at] as Cell);
    if (order !== 0) return order;
  }
  return left.length - right.length;
}

/** A lone surrogate, which no text of the server has: it separates bytes and tuples from texts. */
const MARK = "\ud800";

/** The key of a deleted row, as a frame has it. */
export function keyOfCells(cells: readonly Cell[]): RowKey {
  if (cells.length === 1) return keyOfCell(cells[0] as Cell);
  const parts = cells.map((cell) => {
    const key = keyOfCell(cell);
    const text = String(key);
    return `${typeof key === "string" ? "t" : "n"}${text.length}:${text}`;
  });
  return MARK + parts.join("");
}

function keyOfCell(cell: Cell): RowKey {
  const plain = cell instanceof Real ? cell.value : cell;
  if (plain instanceof Uint8Array) return MARK + Array.from(plain, (byte) => byte.toString(16)).join(",");
  // The bigint of a REAL beyond 2^53 is equal to the INTEGER of the same value.
  const isLarge = typeof plain === "number" && Number.isInteger(plain) && !Number.isSafeInteger(plain);
  return isLarge ? BigInt(plain) : plain;
}
