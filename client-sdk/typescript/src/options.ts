/**
 * Checks of what a program passes, before anything is sent: JavaScript itself accepts a misspelt option and a
 * missing key.
 */
import { AbideError } from "./errors.js";
import { wellFormed } from "./json.js";

/** Error messages about options. */
type Names = readonly string[];

/**
 * Checks that these are options with known names.
 *
 * @throws AbideError `bad_arguments`.
 */
export function checkOptions(what: string, options: unknown, names: Names): void {
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    throw wrong(`${what} takes an object of options, not ${kindOf(options)}`, listOf(names));
  }
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined) continue;
    if (!names.includes(name)) throw wrong(`${what} has no option ${name}`, listOf(names));
    if (name === "signal" && typeof (value as AbortSignal).throwIfAborted !== "function") {
      throw wrong(`signal of ${what} is not an AbortSignal`, "pass controller.signal, not the controller");
    }
    const isNumber = name === "asOf" || name === "after";
    if (isNumber && !Number.isSafeInteger(value)) throw wrong(`${name} of ${what} is not a whole number`);
    if (name === "requestId" && typeof value !== "string") {
      throw wrong(`requestId of ${what} is ${kindOf(value)}, not a string`);
    }
    const isTime = name.endsWith("Ms");
    if (isTime && (typeof value !== "number" || !(value >= 0))) {
      throw wrong(`${name} of ${what} is not a number of milliseconds`);
    }
  }
}

/**
 * Checks the key of a step. Two steps without a key would be the same step.
 *
 * @throws AbideError `bad_arguments`.
 */
export function checkKey(step: string, key: unknown): void {
  if (typeof key === "string" && key !== "") {
    if (wellFormed(key) === key) return;
    throw wrong(`the key of ${step} has half of a surrogate pair`, "cut strings between characters");
  }
  const what = key === "" ? "an empty text" : kindOf(key);
  throw wrong(
    `the key of ${step} must be a text that is not empty, not ${what}`,
    "name the step, such as refund-8812",
  );
}

/**
 * Checks a statement and its parameters.
 *
 * @throws AbideError `bad_arguments`.
 */
export function checkQuery(sql: unknown, params: unknown): void {
  if (typeof sql !== "string") throw wrong(`a statement is a text, not ${kindOf(sql)}`);
  if (typeof params !== "object" || params === null || isDate(params)) {
    throw wrong(
      `the parameters of a statement are an object or an array, not ${kindOf(params)}`,
      "{ s: value } for :s, or [value] for ?",
    );
  }
}

/**
 * Checks that this is a function.
 *
 * @throws AbideError `bad_arguments`.
 */
export function checkFunction(what: string, value: unknown): void {
  if (typeof value !== "function") throw wrong(`${what} must be a function, not ${kindOf(value)}`);
}

/**
 * Checks how many pieces of work may run at the same time.
 *
 * @throws AbideError `bad_arguments`.
 */
export function checkConcurrency(value: unknown): void {
  if (!Number.isInteger(value) || (value as number) < 1) {
    throw wrong("concurrency must be a whole number from 1");
  }
}

/** The kind of a value, as error messages name it. */
export function kindOf(value: unknown): string {
  if (value === undefined || value === null) return String(value);
  if (Array.isArray(value)) return "an array";
  if (isDate(value)) return "a Date";
  return typeof value === "object" ? "an object" : `a ${typeof value}`;
}

/** Whether it is a date, including of another realm. */
export function isDate(value: unknown): value is Date {
  return Object.prototype.toString.call(value) === "[object Date]";
}

function listOf(names: Names): string {
  return `the options are ${names.join(", ")}`;
}

/** An error about what the program passed. */
export function wrong(detail: string, hint?: string, cause?: unknown): AbideError {
  return new AbideError("bad_arguments", detail, { hint, cause });
}
