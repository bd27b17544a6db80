/** The messages of `abide.v1`, as this SDK reads them. `docs/protocol.md` describes them. */
import { AbideError, type Refusal } from "./errors.js";
import { parseJson } from "./json.js";
import { type Cell, cellsOf } from "./values.js";

/** The subprotocol of the WebSocket. */
export const PROTOCOL = "abide.v1";

/** The most bytes of a message to the server. */
export const MESSAGE_BYTES = 16 << 20;

/** A column of a result. */
export interface Column {
  /** Its name. */
  name: string;
  /** Its declared type, such as TEXT; empty if it has none. */
  type: string;
  /** It only carries the order and is not part of the rows. */
  hidden?: boolean;
}

/** A term of the ORDER BY of a result. */
export interface OrderTerm {
  /** The column. */
  column: string;
  /** Its position among all columns, the hidden ones included. */
  index: number;
  /** Whether the order is descending. */
  desc: boolean;
  /** Where NULLs are. */
  nulls: "first" | "last";
  /** How texts compare. */
  collation: string;
}

/** How the server maintains a result, and at what cost. */
export interface Plan {
  rule: string;
  cost: string;
  state: string;
  statements?: string[];
}

/** What describes a result. */
export interface Shape {
  /** All columns, the hidden ones last. */
  columns: Column[];
  /** The columns that identify a row; empty if there are none. */
  key: string[];
  /** The terms of the ORDER BY, most significant first. */
  order: OrderTerm[];
  /** The query has a LIMIT: the server determines the positions of the rows. */
  topN: boolean;
}

/** A row at a position of a result with LIMIT. */
export interface PlacedRow {
  at: number;
  row: Cell[];
}

/** The changes of one result. */
export interface Changes {
  /** Keys, or whole rows if the result has no key. */
  deletes: Cell[][];
  inserts: Cell[][];
  updates: Cell[][];
  /** The changes of a result with LIMIT: positions. */
  placed?: { deletes: number[]; inserts: PlacedRow[]; updates: PlacedRow[] };
}

/** A message of the server. */
export interface Frame extends Refusal {
  op: string;
  id?: string;
  seq?: number;
  timeline?: string;
  from?: number;
  to?: number;
  columns?: (Column | string)[];
  key?: string[];
  order?: OrderTerm[];
  top_n?: boolean;
  rows?: unknown[];
  more?: boolean;
  history_changed?: boolean;
  plan?: Plan;
  checksum?: string;
  changes?: FrameChange[];
  result?: unknown;
  results?: { seq: number; result?: unknown }[];
  duplicate?: boolean;
}

/** The entry of one subscription in a frame. */
export interface FrameChange {
  id: string;
  deletes?: unknown[];
  inserts?: unknown[];
  updates?: unknown[];
  stale?: boolean;
  checksum?: string;
  columns?: (Column | string)[];
  key?: string[];
  order?: OrderTerm[];
  top_n?: boolean;
  plan?: Plan;
}

/** Parses a message of the server. */
export function parseFrame(text: string): Frame {
  let frame: unknown;
  try {
    frame = parseJson(text);
  } catch (cause) {
    throw protocolError("cannot parse a message", cause);
  }
  if (typeof frame !== "object" || frame === null || !("op" in frame)) {
    throw protocolError("a message without op");
  }
  return frame as Frame;
}

/** The shape in a snapshot, or in the answer to a resume. */
export function shapeOf(part: Pick<Frame, "columns" | "key" | "order" | "top_n">): Shape {
  const columns = (part.columns ?? []).map((column) =>
    typeof column === "string" ? { name: column, type: "" } : column,
  );
  return { columns, key: part.key ?? [], order: part.order ?? [], topN: part.top_n ?? false };
}

/** The changes in an entry of a frame. */
export function changesOf(entry: FrameChange): Changes {
  const changes: Changes = { deletes: [], inserts: [], updates: [] };
  for (const list of ["deletes", "inserts", "updates"] as const) {
    for (const item of entry[list] ?? []) {
      if (Array.isArray(item)) {
        changes[list].push(cellsOf(item));
        continue;
      }
      const { at, row } = item as { at: number; row?: unknown };
      changes.placed ??= { deletes: [], inserts: [], updates: [] };
      if (list === "deletes") changes.placed.deletes.push(at);
      else changes.placed[list].push({ at, row: cellsOf(row ?? []) });
    }
  }
  return changes;
}

/** The number of columns that a program sees; the others carry the order. */
export function visibleWidth(shape: Shape): number {
  const hidden = shape.columns.findIndex((column) => column.hidden === true);
  return hidden < 0 ? shape.columns.length : hidden;
}

/** Whether two results have the same columns, key and order. */
export function isSameShape(left: Shape, right: Shape): boolean {
  return left === right || JSON.stringify(left) === JSON.stringify(right);
}

/** The server violates the protocol. */
export function protocolError(why: string, cause?: unknown): AbideError {
  return new AbideError("protocol", `the server violates the protocol: ${why}`, {
    hint: "use an SDK and a server of the same version",
    cause,
  });
}
