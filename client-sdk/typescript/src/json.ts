/**
 * JSON without loss: integers beyond 2^53 keep their digits, and 1.0 differs from 1.
 *
 * `JSON.parse` is used for texts in which no number would lose anything, which a regular expression decides.
 * Others take the parser of this file. It is slower, but it needs no reviver with source text, which Node 20
 * does not have.
 */
import { AbideError } from "./errors.js";
import { base64OfBytes, type Integers, type Json, MOST_LEVELS, Real, setOwn, visibleJson } from "./values.js";

/**
 * A number that `JSON.parse` would change: with a fraction, an exponent, or 16 digits and more. It can also
 * match inside of a string; that costs time only.
 */
const INEXACT = /[[,:]\s*-?(?:\d+[.eE]|\d{17}|9\d{15})|^\s*-?\d/;

/**
 * Parses JSON. A safe integer is a `number`, a larger one a `bigint`. A number with a fraction or an exponent
 * is a `number`, or a {@link Real} if its value is an integer.
 *
 * @throws SyntaxError if the text is not JSON.
 */
export function parseJson(text: string): unknown {
  return INEXACT.test(text) ? new Parser(text).document() : (JSON.parse(text) as unknown);
}

/**
 * Parses the JSON text of a column. A safe integer is a `number`, a larger one a `bigint`; see {@link
 * Integers}.
 */
export function readJson(text: string, integers: Integers = "auto"): Json {
  return visibleJson(parseJson(text), integers);
}

const NUMBER = /-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/y;

/** The most digits of an integer. A `bigint` of millions of digits takes minutes to read. */
const MOST_DIGITS = 1_000;

class Parser {
  #at = 0;
  #level = 0;

  constructor(readonly text: string) {}

  document(): unknown {
    const value = this.#value();
    this.#space();
    return this.#at === this.text.length ? value : this.#fail();
  }

  /** A value inside of an array or object. */
  #inner(): unknown {
    this.#level += 1;
    if (this.#level > MOST_LEVELS) throw new SyntaxError(`JSON with more than ${MOST_LEVELS} levels`);
    const value = this.#value();
    this.#level -= 1;
    return value;
  }

  #value(): unknown {
    this.#space();
    switch (this.text.charCodeAt(this.#at)) {
      case 0x7b: // {
        return this.#object();
      case 0x5b: // [
        return this.#array();
      case 0x22: // "
        return this.#string();
      case 0x74: // t
        return this.#word("true", true);
      case 0x66: // f
        return this.#word("false", false);
      case 0x6e: // n
        return this.#word("null", null);
      default:
        return this.#number();
    }
  }

  #object(): Record<string, unknown> {
    const object: Record<string, unknown> = {};
    this.#at += 1;
    if (this.#skip(0x7d)) return object;
    do {
      this.#space();
      if (this.text.charCodeAt(this.#at) !== 0x22) this.#fail();
      const key = this.#string();
      if (!this.#skip(0x3a)) this.#fail();
      setOwn(object, key, this.#inner());
    } while (this.#skip(0x2c));
    return this.#skip(0x7d) ? object : this.#fail();
  }

  #array(): unknown[] {
    const array: unknown[] = [];
    this.#at += 1;
    if (this.#skip(0x5d)) return array;
    do array.push(this.#inner());
    while (this.#skip(0x2c));
    return this.#skip(0x5d) ? array : this.#fail();
  }

  #string(): string {
    const start = this.#at;
    let end = this.text.indexOf('"', start + 1);
    while (end > 0 && this.#isEscaped(start, end)) end = this.text.indexOf('"', end + 1);
    if (end < 0) this.#fail();
    this.#at = end + 1;
    return JSON.parse(this.text.slice(start, end + 1)) as string;
  }

  /** Whether an odd number of backslashes precedes a quote. */
  #isEscaped(start: number, quote: number): boolean {
    let first = quote;
    while (first - 1 > start && this.text.charCodeAt(first - 1) === 0x5c) first -= 1;
    return (quote - first) % 2 === 1;
  }

  #number(): number | bigint | Real {
    NUMBER.lastIndex = this.#at;
    const match = NUMBER.exec(this.text);
    if (!match) return this.#fail();
    this.#at = NUMBER.lastIndex;
    const [digits, fraction, exponent] = match;
    const value = Number(digits);
    if (fraction !== undefined || exponent !== undefined) {
      return Number.isInteger(value) ? new Real(value) : value;
    }
    if (digits.length > MOST_DIGITS) throw new SyntaxError(`an integer of ${digits.length} digits`);
    return Number.isSafeInteger(value) ? value : BigInt(digits);
  }

  #word<T>(word: string, value: T): T {
    if (!this.text.startsWith(word, this.#at)) this.#fail();
    this.#at += word.length;
    return value;
  }

  /** Skips white space and then this character, if it is next. */
  #skip(code: number): boolean {
    this.#space();
    if (this.text.charCodeAt(this.#at) !== code) return false;
    this.#at += 1;
    return true;
  }

  #space(): void {
    for (;;) {
      const code = this.text.charCodeAt(this.#at);
      if (code !== 0x20 && code !== 0x0a && code !== 0x0d && code !== 0x09) return;
      this.#at += 1;
    }
  }

  #fail(): never {
    throw new SyntaxError(`unexpected text in JSON at position ${this.#at}`);
  }
}

const LEAST_INTEGER = -(2n ** 63n);
const MOST_INTEGER = 2n ** 63n - 1n;

/** The most nested arrays and objects of a message. The server reads no more. */
const MESSAGE_LEVELS = 127;

/** Half of a surrogate pair. UTF-8 cannot express it. */
const LONE_SURROGATE = /\p{Surrogate}/u;

/**
 * Writes JSON as Abide reads it: a `bigint` and a safe integer as an INTEGER, other numbers and {@link Real}
 * with a fraction or an exponent, bytes as `{"$blob"}`. Properties that are `undefined` are omitted, in
 * arrays they are `null`, and objects with `toJSON`, such as dates, are converted, as in `JSON.stringify`.
 *
 * @throws AbideError `bad_arguments` for what JSON cannot express, with the path of the value: functions,
 *   circular objects, maps and sets, NaN, integers of more than 64 bits, half of a surrogate pair.
 */
export function writeJson(value: unknown): string {
  return write(value, "", "", []);
}

/** The text with a replacement character for each half of a surrogate pair. */
export function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, "\ufffd");
}

/** `parents` are the arrays and objects that contain the value. */
function write(value: unknown, path: string, key: string, parents: object[]): string {
  switch (typeof value) {
    case "string":
      return writeString(value, path);
    case "number":
      return writeNumber(value, path);
    case "bigint":
      if (value < LEAST_INTEGER || value > MOST_INTEGER) {
        throw wrong(path, `the integer ${value} does not fit 64 bits`, "send it as a string");
      }
      return value.toString();
    case "boolean":
      return value ? "true" : "false";
    case "object": {
      if (value === null) return "null";
      // A Buffer, too, which has a toJSON.
      if (value instanceof Uint8Array) return `{"$blob":"${base64OfBytes(value)}"}`;
      const { toJSON } = value as { toJSON?: unknown };
      if (typeof toJSON !== "function") return writeObject(value, path, parents);
      if (value instanceof Date && Number.isNaN(value.getTime())) {
        throw wrong(path, "an invalid Date is not JSON", "send null, or a valid date");
      }
      const plain: unknown = toJSON.call(value, key);
      // Its result is not converted again, so that it can return the object itself.
      if (typeof plain === "object" && plain !== null) return writeObject(plain, path, parents);
      return write(plain, path, key, parents);
    }
    case "undefined":
      throw wrong(path, "undefined is not JSON", "send null, or a value that JSON has");
    default:
      throw wrong(path, `a ${typeof value} is not JSON`, "send a value that JSON has");
  }
}

function writeString(value: string, path: string): string {
  const text = JSON.stringify(value);
  // JSON.stringify escapes halves of pairs, and no other characters from this range.
  if (text.includes("\\ud") && LONE_SURROGATE.test(value)) {
    throw wrong(path, "a string with half of a surrogate pair is not Unicode text", SURROGATE_HINT);
  }
  return text;
}

const SURROGATE_HINT = "cut strings between characters (Array.from(text)), or use text.toWellFormed()";

function writeObject(value: object, path: string, parents: object[]): string {
  if (value instanceof Real) return writeReal(value.value, path);
  if (parents.includes(value)) {
    throw wrong(path, "a circular object is not JSON", "send the id of the object instead");
  }
  if (parents.length >= MESSAGE_LEVELS) {
    const where = path.split("/").slice(0, 8).join("/");
    const detail = `more than ${MESSAGE_LEVELS} nested arrays and objects`;
    throw wrong(`${where}/…`, detail, "send it as a string of JSON, or flatten it");
  }
  const without = withoutJson(value);
  if (without !== undefined) throw wrong(path, `${without.name} is not JSON`, without.hint);
  parents.push(value);
  const text = Array.isArray(value) ? writeArray(value, path, parents) : writeFields(value, path, parents);
  parents.pop();
  return text;
}

/** Objects whose content `JSON.stringify` would drop. */
function withoutJson(value: object): { name: string; hint: string } | undefined {
  if (value instanceof Map) return { name: "a Map", hint: "send Object.fromEntries(map), or an array" };
  if (value instanceof Set) return { name: "a Set", hint: "send Array.from(set)" };
  if (value instanceof Promise) return { name: "a Promise", hint: "await it" };
  if (value instanceof ArrayBuffer || ArrayBuffer.isView(value)) {
    return { name: "a buffer that is no Uint8Array", hint: "send a Uint8Array, or an array" };
  }
  return undefined;
}

function writeArray(value: unknown[], path: string, parents: object[]): string {
  // Also the holes of the array.
  const items = Array.from(value, (item, at) =>
    write(item === undefined ? null : item, `${path}/${at}`, String(at), parents),
  );
  return `[${items.join(",")}]`;
}

function writeFields(value: object, path: string, parents: object[]): string {
  const fields: string[] = [];
  for (const [name, field] of Object.entries(value)) {
    if (field === undefined) continue;
    const where = `${path}/${name}`;
    fields.push(`${writeString(name, where)}:${write(field, where, name, parents)}`);
  }
  return `{${fields.join(",")}}`;
}

function writeNumber(value: number, path: string): string {
  const isInteger = Number.isSafeInteger(value) && !Object.is(value, -0);
  return isInteger ? String(value) : writeReal(value, path);
}

function writeReal(value: number, path: string): string {
  if (!Number.isFinite(value)) {
    throw wrong(path, `${value} is not a number of JSON`, "send null, or a string");
  }
  const text = Object.is(value, -0) ? "-0" : String(value);
  return /[.e]/.test(text) ? text : `${text}.0`;
}

function wrong(path: string, why: string, hint: string): AbideError {
  const where = wellFormed(path);
  return new AbideError("bad_arguments", where === "" ? why : `${where}: ${why}`, { hint });
}
