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

/**
 * Writes JSON as Abide reads it: a `bigint` and a safe integer as an INTEGER, other numbers and {@link Real}
 * with a fraction or an exponent, bytes as `{"$blob"}`. Properties that are `undefined` are left out, and
 * objects with `toJSON` are converted, as in `JSON.stringify`.
 *
 * @throws AbideError `bad_arguments` for what JSON cannot express, with the path of the value.
 */
export function writeJson(value: unknown): string {
  return write(value, "", "", 0);
}

function write(value: unknown, path: string, key: string, level: number): string {
  switch (typeof value) {
    case "string":
      return JSON.stringify(value);
    case "number":
      return writeNumber(value, path);
    case "bigint":
      if (value < LEAST_INTEGER || value > MOST_INTEGER) {
        throw wrong(path, `the integer ${value} does not fit 64 bits`, "send it as a string");
      }
      return value.toString();
    case "boolean":
      return value ? "true" : "false";
    case "object":
      return value === null ? "null" : writeObject(value, path, key, level + 1);
    default:
      throw wrong(path, `a ${typeof value} is not JSON`, "send a value that JSON has");
  }
}

function writeObject(value: object, path: string, key: string, level: number): string {
  if (value instanceof Real) return writeReal(value.value, path);
  if (value instanceof Uint8Array) return `{"$blob":"${base64OfBytes(value)}"}`;
  if (level > MOST_LEVELS) {
    throw wrong("", `a value has more than ${MOST_LEVELS} levels`, "send it as a string");
  }
  const { toJSON } = value as { toJSON?: unknown };
  if (typeof toJSON === "function") return write(toJSON.call(value, key), path, key, level);
  if (Array.isArray(value)) {
    const items = value.map((item: unknown, at) =>
      write(item === undefined ? null : item, `${path}/${at}`, String(at), level),
    );
    return `[${items.join(",")}]`;
  }
  const fields: string[] = [];
  for (const [name, field] of Object.entries(value)) {
    if (field === undefined) continue;
    fields.push(`${JSON.stringify(name)}:${write(field, `${path}/${name}`, name, level)}`);
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
  return new AbideError("bad_arguments", path === "" ? why : `${path}: ${why}`, { hint });
}
