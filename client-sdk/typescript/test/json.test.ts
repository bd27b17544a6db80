/** JSON without loss. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { AbideError, readJson, real, Real, writeJson } from "@abide/client";
import { parseJson } from "#dist/json.js";

test("JSON.parse and the lossless parser agree on texts without large integers and without fractions", () => {
  const values = [
    null,
    true,
    false,
    0,
    -1,
    9007199254740991,
    "",
    'a"\\\n\u0000\u2028é😀',
    [],
    {},
    [[], [{}]],
    { a: { b: [1, "2", null] }, "": 0, 'a"b': [] },
    [1e15, -1e15],
  ];
  for (const value of values) {
    // A fraction in the same value selects the lossless parser.
    const text = `[1.5, ${JSON.stringify(value, null, 1)}]`;
    assert.deepEqual(parseJson(text), [1.5, value], text);
    assert.deepEqual(parseJson(JSON.stringify(value)), value);
  }
});

test("integers keep all digits, and a number with a fraction is a REAL", () => {
  const text =
    "[9007199254740991,9007199254740993,-9223372036854775808,1.0,-0.0,1e300,0.1,5e-324,1E2,123456789012345678]";
  const expected = [
    9007199254740991,
    9007199254740993n,
    -9223372036854775808n,
    new Real(1),
    new Real(-0),
    new Real(1e300),
    0.1,
    5e-324,
    new Real(100),
    123456789012345678n,
  ];
  assert.deepEqual(parseJson(text), expected);
  assert.deepEqual(readJson('{"a":[1.0,9007199254740993]}'), { a: [1, 9007199254740993n] });
  assert.deepEqual(readJson('{"a":[1.0,2]}', "bigint"), { a: [1, 2n] });
});

test("malformed JSON is refused by both parsers", () => {
  const malformed = [
    "",
    "{",
    "[1.5,]",
    "[1.5",
    '{"a" 1.5}',
    "[1.5 2]",
    "[01.5]",
    "[.5]",
    "[1.]",
    "[1.5,tru]",
    '[1.5,"a]',
    "[+1.5]",
    "[1.5] x",
    '{"a":1.5,}',
    "[1.5,'a']",
    '[1.5,"\n"]',
    "{1.5:1}",
    "[-]",
  ];
  for (const text of malformed) assert.throws(() => parseJson(text), SyntaxError, text);
});

test("a key __proto__ is a key", () => {
  for (const text of ['{"__proto__":{"polluted":1}}', '{"__proto__":{"polluted":1},"x":1.5}']) {
    const object = parseJson(text) as { polluted?: number };
    assert.equal(object.polluted, undefined);
    assert.deepEqual(Object.keys(object)[0], "__proto__");
  }
});

test("values are written as Abide reads them", () => {
  const itself = { b: 1 };
  Object.defineProperty(itself, "toJSON", { value: () => itself });
  const cases: [unknown, string][] = [
    [1, "1"],
    [1n, "1"],
    [real(1), "1.0"],
    [1.5, "1.5"],
    [-0, "-0.0"],
    [1e300, "1e+300"],
    [2 ** 60, "1152921504606847000.0"],
    [9223372036854775807n, "9223372036854775807"],
    [[undefined, 1], "[null,1]"],
    [{ a: undefined, b: 1 }, '{"b":1}'],
    [new Uint8Array([0, 255, 16]), '{"$blob":"AP8Q"}'],
    [{ toJSON: () => "x" }, '"x"'],
    ["👍 \\ud800", '"👍 \\\\ud800"'],
    [{ a: new Date(0) }, '{"a":"1970-01-01T00:00:00.000Z"}'],
    [itself, '{"b":1}'],
    [Buffer.from([0, 255, 16]), '{"$blob":"AP8Q"}'],
    [new Array(2), "[null,null]"],
  ];
  for (const [value, text] of cases) assert.equal(writeJson(value), text);
});

test("values that JSON cannot express are refused with their path", () => {
  const circular: Record<string, unknown> = {};
  circular["self"] = circular;
  const numbers = [2n ** 63n, -(2n ** 63n) - 1n, NaN, Infinity];
  const objects = [circular, new Map(), new Set(), Promise.resolve(1), new ArrayBuffer(1), new Date(NaN)];
  for (const value of [...numbers, ...objects, () => 1, Symbol("x"), "\ud83d", "\udc4d\ud83d"]) {
    assert.throws(
      () => writeJson({ a: [0, value] }),
      (error) =>
        error instanceof AbideError &&
        error.code === "bad_arguments" &&
        /^\/a\/1(?:\/self)?: /.test(error.message),
    );
  }
});

test("an object that occurs twice is not circular, and the levels of a message are limited", () => {
  const shared = { n: 1 };
  assert.equal(writeJson([shared, shared]), '[{"n":1},{"n":1}]');
  const nested = (levels: number): unknown => (levels === 0 ? 1 : [nested(levels - 1)]);
  assert.equal(writeJson(nested(127)).length, 255);
  assert.throws(() => writeJson(nested(128)), /127 nested arrays and objects/);
});
