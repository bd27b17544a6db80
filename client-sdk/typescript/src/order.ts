/**
 * SQLite's order of values: NULL, numbers by their exact value, texts by a collation, blobs byte by byte.
 * See https://www.sqlite.org/datatype3.html#comparisons.
 */
import { type Cell, isReal, Real } from "./values.js";

/** How texts compare: byte by byte, without the case of the 26 ASCII letters, or without trailing spaces. */
export type Collation = "BINARY" | "NOCASE" | "RTRIM";

/** Looks up a collation by name; SQL names compare without case. */
export function collationOf(name: string): Collation | undefined {
  const upper = name.toUpperCase();
  return upper === "BINARY" || upper === "NOCASE" || upper === "RTRIM" ? upper : undefined;
}

/** Compares two cells: negative, 0 or positive. */
export function compareCells(left: Cell, right: Cell, collation: Collation = "BINARY"): number {
  const difference = classOf(left) - classOf(right);
  if (difference !== 0 || left === null) return difference;
  if (typeof left === "string") return compareTexts(left, right as string, collation);
  if (left instanceof Uint8Array) return compareBytes(left, right as Uint8Array);
  const [a, b] = [numberOf(left), numberOf(right as number | bigint | Real)];
  // A bigint and a number compare by their exact values.
  return a < b ? -1 : a > b ? 1 : 0;
}

/** Distinguishes values that SQLite considers equal: 1 and 1.0, 0.0 and -0.0. */
export function compareExactly(left: Cell, right: Cell): number {
  if (left === right && typeof left === "string") return 0;
  const order = compareCells(left, right);
  if (order !== 0) return order;
  const [leftReal, rightReal] = [isReal(left), isReal(right)];
  if (leftReal !== rightReal) return leftReal ? 1 : -1;
  if (!leftReal) return 0;
  const isNegativeZero = (cell: Cell) => Object.is(numberOf(cell as number | Real), -0);
  return Number(isNegativeZero(right)) - Number(isNegativeZero(left));
}

function classOf(cell: Cell): number {
  if (cell === null) return 0;
  if (typeof cell === "string") return 2;
  return cell instanceof Uint8Array ? 3 : 1;
}

function numberOf(cell: number | bigint | Real): number | bigint {
  return cell instanceof Real ? cell.value : cell;
}

function compareTexts(left: string, right: string, collation: Collation): number {
  switch (collation) {
    case "BINARY":
      return compareUtf8(left, right);
    case "RTRIM":
      return compareUtf8(trimmed(left), trimmed(right));
    case "NOCASE": {
      // SQLite stops at a NUL; then the lengths decide.
      const order = compareUtf8(folded(left), folded(right));
      return order !== 0 ? order : utf8Length(left) - utf8Length(right);
    }
  }
}

/** The order of the UTF-8 bytes, which is the order of code points. */
function compareUtf8(left: string, right: string): number {
  if (left === right) return 0;
  const length = Math.min(left.length, right.length);
  for (let at = 0; at < length; at += 1) {
    const [a, b] = [left.charCodeAt(at), right.charCodeAt(at)];
    if (a !== b) return rank(a) - rank(b);
  }
  return left.length - right.length;
}

/** UTF-16 units in the order of code points: surrogates are after all others. */
function rank(unit: number): number {
  if (unit < 0xd800) return unit;
  return unit < 0xe000 ? unit + 0x2000 : unit - 0x800;
}

function trimmed(text: string): string {
  let end = text.length;
  while (end > 0 && text.charCodeAt(end - 1) === 0x20) end -= 1;
  return text.slice(0, end);
}

function folded(text: string): string {
  const end = text.indexOf("\0");
  return (end < 0 ? text : text.slice(0, end)).replace(/[A-Z]+/g, (upper) => upper.toLowerCase());
}

function utf8Length(text: string): number {
  let length = 0;
  for (let at = 0; at < text.length; at += 1) {
    const unit = text.charCodeAt(at);
    if (unit < 0x80) length += 1;
    else if (unit < 0x800 || (unit >= 0xd800 && unit < 0xe000)) length += 2;
    else length += 3;
  }
  return length;
}

function compareBytes(left: Uint8Array, right: Uint8Array): number {
  const length = Math.min(left.length, right.length);
  for (let at = 0; at < length; at += 1) {
    const difference = (left[at] as number) - (right[at] as number);
    if (difference !== 0) return difference;
  }
  return left.length - right.length;
}
