/** The messages of `abide.v1`, as this SDK reads them. `docs/protocol.md` describes them. */
import { AbideError, isAbideError, messageOf, type Refusal } from "./errors.js";
import { parseJson, readJson } from "./json.js";
import { type Cell, cellsOf, type Json } from "./values.js";

/** The subprotocol of the WebSocket. */
export const PROTOCOL = "abide.v1";

/** What to update if the other side speaks another version of the protocol. `other` is the name of the other program. */
export function updateHint(protocol: string | null | undefined, other: string): string {
  const version = (name: string | null | undefined) => /^abide\.v(\d+)$/.exec(name ?? "")?.[1];
  const theirs = version(protocol);
  if (theirs === undefined) return `use an SDK and ${other} of the same version`;
  return Number(theirs) > Number(version(PROTOCOL))
    ? "this SDK is older: update it"
    : `${other} is older: update it`;
}

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

/** The description of a result. */
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
  namespace?: string;
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

/**
 * Parses a message of the server.
 *
 * @throws AbideError `protocol` if it is not JSON, or a field that this SDK reads has another type.
 */
export function parseFrame(text: string): Frame {
  let frame: unknown;
  try {
    frame = parseJson(text);
  } catch (cause) {
    throw protocolError(`cannot parse a message: ${messageOf(cause)}`, cause);
  }
  if (typeof frame !== "object" || frame === null || typeof (frame as Frame).op !== "string") {
    throw protocolError("a message without op");
  }
  const { op } = frame as Frame;
  if (!OPS.includes(op)) return frame as Frame;
  checkFields(frame, FIELDS);
  for (const change of (frame as Frame).changes ?? []) checkFields(change, CHANGE_FIELDS);
  return frame as Frame;
}

/** The messages whose fields have a meaning here. A newer server may send others, which are ignored. */
const OPS = ["hello", "snapshot", "delta", "rerun", "progress", "rows", "result", "error"];

type Check = (value: unknown) => boolean;

const isText: Check = (value) => typeof value === "string";
const isFlag: Check = (value) => typeof value === "boolean";
const isList: Check = (value) => Array.isArray(value);
const isObject: Check = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isCount: Check = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const isListOf = (check: Check) => (value: unknown) => Array.isArray(value) && value.every(check);

const isColumn: Check = (value) => isText(value) || (isObject(value) && isText((value as Column).name));
const isTerm: Check = (value) => {
  if (!isObject(value)) return false;
  const { index, collation } = value as OrderTerm;
  return isCount(index) && isText(collation);
};
const isPlan: Check = (value) => isObject(value) || isText(value);
const hasId: Check = (value) => isObject(value) && isText((value as FrameChange).id);

const SHAPE_FIELDS = {
  columns: isListOf(isColumn),
  key: isListOf(isText),
  order: isListOf(isTerm),
  top_n: isFlag,
  plan: isPlan,
  checksum: isText,
};

/** The fields of a message that this SDK reads. Each may be absent or null, and others are ignored. */
const FIELDS: ReadonlyMap<string, Check> = new Map(
  Object.entries({
    ...SHAPE_FIELDS,
    id: isText,
    seq: isCount,
    from: isCount,
    to: isCount,
    timeline: isText,
    namespace: isText,
    rows: isList,
    more: isFlag,
    history_changed: isFlag,
    changes: isListOf(hasId),
    results: isListOf(isObject),
    duplicate: isFlag,
  }),
);

const CHANGE_FIELDS: ReadonlyMap<string, Check> = new Map(
  Object.entries({
    ...SHAPE_FIELDS,
    deletes: isList,
    inserts: isList,
    updates: isList,
    stale: isFlag,
  }),
);

function checkFields(part: object, fields: ReadonlyMap<string, Check>): void {
  const values = part as Record<string, unknown>;
  for (const name of Object.keys(values)) {
    const check = fields.get(name);
    if (!check) continue;
    if (values[name] === null) delete values[name];
    else if (!check(values[name])) throw protocolError(`a message has no valid ${name}`);
  }
}

/**
 * Reads what the server sent. Any error means that it is malformed.
 *
 * @throws AbideError `protocol`.
 */
export function reading<T>(what: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    throw isAbideError(error) ? error : protocolError(`${what} is malformed: ${messageOf(error)}`, error);
  }
}

/** A field of a reducer's result, which must have this type. */
export function fieldOf(result: unknown, name: string, type: "string"): string;
export function fieldOf(result: unknown, name: string, type: "number"): number;
export function fieldOf(result: unknown, name: string, type: "string" | "number"): unknown {
  const value = isObject(result) ? (result as Record<string, unknown>)[name] : undefined;
  // With the option `integers: "bigint"` an integer is one.
  if (typeof value === type || (type === "number" && typeof value === "bigint")) return value;
  throw protocolError(`a result has no valid ${name}`);
}

/** The JSON text of a column, as a program sees it. */
export function storedJson(text: unknown): Json {
  return reading("the JSON of a column", () => readJson(text as string));
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
      const { at, row } = (item ?? {}) as { at?: unknown; row?: unknown };
      if (typeof at !== "number" || !isCount(at)) throw protocolError("a change has no valid position");
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
