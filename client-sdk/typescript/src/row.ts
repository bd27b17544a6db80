/**
 * One row of a result: its cells, and the object that a program sees, which is made when it is first read.
 */
import { type Cell, type Integers, setOwn, type SqlRow, type SqlValue, visibleCell } from "./values.js";
import { type Shape, visibleWidth } from "./wire.js";

/** How rows become objects. */
export class RowFormat {
  /** The names of the visible columns. */
  readonly names: readonly string[];

  constructor(
    readonly shape: Shape,
    readonly integers: Integers,
  ) {
    const visible = shape.columns.slice(0, visibleWidth(shape));
    this.names = visible.map((column) => column.name);
  }

  /** The row as an object. Of columns with the same name the last one counts. */
  object(cells: readonly Cell[], names: readonly string[] = this.names): SqlRow {
    const object: SqlRow = {};
    for (let at = 0; at < names.length; at += 1) {
      setOwn(object, names[at] as string, visibleCell(cells[at] as Cell, this.integers));
    }
    return object;
  }

  /** The row as an array of its visible cells. */
  array(cells: readonly Cell[], width = this.names.length): SqlValue[] {
    return cells.slice(0, width).map((cell) => visibleCell(cell, this.integers));
  }
}

/**
 * A row that a result holds. Its object is the same each time, so that user interfaces notice what changed.
 */
export class Row {
  #object: SqlRow | undefined;

  constructor(readonly cells: readonly Cell[]) {}

  object(format: RowFormat): SqlRow {
    this.#object ??= format.object(this.cells);
    return this.#object;
  }
}
