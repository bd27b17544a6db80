/**
 * Values of cells and of JSON, and how JavaScript represents them.
 *
 * | SQL     | in rows                                  | as parameter                                        |
 * |---------|------------------------------------------|-----------------------------------------------------|
 * | NULL    | `null`                                   | `null`                                              |
 * | INTEGER | `number`; `bigint` beyond 2^53 - 1       | `bigint`, or a `number` that is a safe integer      |
 * | REAL    | `number`                                 | any other `number`, or `real(1)`                    |
 * | TEXT    | `string`                                 | `string`                                            |
 * | BLOB    | `Uint8Array`                             | `Uint8Array`                                        |
 *
 * JavaScript has one type for 1 and 1.0. With the option `integers: "bigint"` each INTEGER is a `bigint` and
 * each REAL is a `number`, so that the two differ. Inside of this SDK a REAL without a fraction is a {@link
 * Real}, because checksums and order depend on the type.
 */
import { AbideError, brand } from "./errors.js";

/** A cell of a row. */
export type SqlValue = null | number | bigint | string | Uint8Array;

/** A row: its cells by column name. */
export type SqlRow = Record<string, SqlValue>;

/** JSON, with integers of 64 bits. */
export type Json = null | boolean | number | bigint | string | Json[] | { [key: string]: Json };

/** How integers appear in rows and results: as numbers as long as they are exact, or always as `bigint`. */
export type Integers = "auto" | "bigint";

/** A floating point number that is not to be mistaken for an integer: `real(1)` is REAL 1.0. */
export class Real {
  static {
    brand(this, "Real");
  }

  constructor(readonly value: number) {}
}

/** Marks a number as REAL: `real(1)` is sent as `1.0`, where `1` is sent as an INTEGER. */
export function real(value: number): Real {
  return new Real(value);
}

/** A cell inside of this SDK: a `number` is a safe INTEGER, or a REAL that has a fraction or is infinite. */
export type Cell = null | number | bigint | string | Uint8Array | Real;

/** Parameters of a query: by name, or by position. */
export type Params = Record<string, SqlParam> | readonly SqlParam[];

/** A parameter of a query. */
export type SqlParam = SqlValue | boolean | Real | undefined;

/** Sets an own property, whatever its name is: an assignment to `__proto__` would set the prototype. */
export function setOwn(object: object, name: string, value: unknown): void {
  if (name === "__proto__") {
    Object.defineProperty(object, name, { value, configurable: true, enumerable: true, writable: true });
  } else {
    (object as Record<string, unknown>)[name] = value;
  }
}

/** Microseconds since the Unix epoch, the unit of all times. */
export function micros(date: Date): number {
  return date.getTime() * 1000;
}

/** The date of a time in microseconds. */
export function dateOf(time: number | bigint): Date {
  return new Date(Number(time) / 1000);
}

/** Whether a cell is a REAL. */
export function isReal(cell: Cell): boolean {
  return cell instanceof Real || (typeof cell === "number" && !Number.isInteger(cell));
}

/** The cell as a program sees it. */
export function visibleCell(cell: Cell, integers: Integers): SqlValue {
  if (cell instanceof Real) return cell.value;
  return integers === "bigint" && typeof cell === "number" && Number.isInteger(cell) ? BigInt(cell) : cell;
}

/** Reads a cell from parsed JSON, the inverse of the wire form. */
export function cellOf(json: unknown): Cell {
  switch (typeof json) {
    case "number":
    case "bigint":
    case "string":
      return json;
    case "boolean":
      return json ? 1 : 0;
    default:
      return json === null || json instanceof Real ? json : markedCell(json as object);
  }
}

function markedCell(json: object): Cell {
  const { $blob: blob, $real: marked } = json as { $blob?: unknown; $real?: unknown };
  if (typeof blob === "string") return bytesOfBase64(blob);
  if (marked === "Infinity") return Infinity;
  if (marked === "-Infinity") return -Infinity;
  throw new AbideError("protocol", "a cell is neither a value nor $blob nor $real", {
    hint: "use an SDK and a server of the same version",
  });
}

/** Converts the cells of a parsed row in place. */
export function cellsOf(row: unknown): Cell[] {
  if (!Array.isArray(row)) throw new AbideError("protocol", "a row is not an array");
  const cells = row as unknown[];
  for (let at = 0; at < cells.length; at += 1) {
    const cell = cells[at];
    if (typeof cell === "object" || typeof cell === "boolean") cells[at] = cellOf(cell);
  }
  return cells as Cell[];
}

/** The most levels of arrays and objects of JSON that is read. Values that a server stores have fewer. */
export const MOST_LEVELS = 1_000;

/**
 * JSON as a program sees it: without {@link Real}. Changes arrays and objects in place.
 *
 * @throws AbideError `protocol` if it has more than {@link MOST_LEVELS} levels.
 */
export function visibleJson(json: unknown, integers: Integers, level = 0): Json {
  if (json instanceof Real) return json.value;
  if (typeof json === "number") {
    return integers === "bigint" && Number.isInteger(json) ? BigInt(json) : json;
  }
  if (level > MOST_LEVELS) {
    throw new AbideError("protocol", `a JSON value has more than ${MOST_LEVELS} levels`, {
      hint: "use an SDK and a server of the same version",
    });
  }
  if (Array.isArray(json)) {
    for (let at = 0; at < json.length; at += 1) json[at] = visibleJson(json[at], integers, level + 1);
  } else if (typeof json === "object" && json !== null) {
    const object = json as Record<string, unknown>;
    // The keys are own properties, so that these assignments do not set a prototype.
    for (const key of Object.keys(object)) object[key] = visibleJson(object[key], integers, level + 1);
  }
  return json as Json;
}

/** The parameters of a query in the wire form. The name of `?1` is `1`. */
export function wireParams(params: Params): Record<string, unknown> {
  const entries = Array.isArray(params)
    ? params.map((value, at): [string, SqlParam] => [String(at + 1), value])
    : Object.entries(params as Record<string, SqlParam>);
  const wire: Record<string, unknown> = Object.create(null) as Record<string, unknown>;
  for (const [name, value] of entries) {
    wire[name.replace(/^[:@$?]/, "")] = wireParam(name, value);
  }
  return wire;
}

function wireParam(name: string, value: SqlParam): unknown {
  if (value === undefined || value === null) return null;
  const number = value instanceof Real ? value.value : value;
  if (number === Infinity || number === -Infinity) return { $real: String(number) };
  if (typeof value === "object" && !(value instanceof Real) && !(value instanceof Uint8Array)) {
    throw new AbideError("bad_arguments", `parameter ${name} is not a value of a cell`, {
      hint: "give null, a number, bigint, string, boolean or Uint8Array; micros(date) for a time",
    });
  }
  return value;
}

/** The bytes as base64. */
export function base64OfBytes(bytes: Uint8Array): string {
  const chunks: string[] = [];
  for (let at = 0; at < bytes.length; at += 0x8000) {
    chunks.push(String.fromCharCode(...bytes.subarray(at, at + 0x8000)));
  }
  return btoa(chunks.join(""));
}

function bytesOfBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}
