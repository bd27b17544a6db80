/** Checksums, the order of SQLite, and results that are kept up to date. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Checksum } from "#dist/checksum.js";
import { Mismatch } from "#dist/layout.js";
import { compareCells, compareExactly } from "#dist/order.js";
import { Rows } from "#dist/rows.js";
import { type Cell, Real } from "#dist/values.js";
import type { Shape } from "#dist/wire.js";

/** The vectors of `schema/src/checksum.rs`. */
test("checksums match the definition to the byte", () => {
  const cases: [Cell[], string][] = [
    [[], "efd01f60ba992926"],
    [[null], "b9034ad37056f5fb"],
    [[1], "fead53f7dfcabe65"],
    [[-1, new Real(1)], "c0b1e2d9a88b577d"],
    [[new Real(-0), Infinity], "6e89b263389aa660"],
    [["é\0", ""], "39b0d00c4d241501"],
    [[new Uint8Array([0, 255])], "2b7113b1b61a1ccc"],
  ];
  for (const [row, expected] of cases) assert.equal(Checksum.of([row]).toString(), expected);
  const sum = Checksum.of([[1], ["a"], [1]]);
  sum.remove([1]);
  assert.equal(sum.toString(), Checksum.of([["a"], [1]]).toString());
  assert.equal(Checksum.of([]).toString(), "0000000000000000");
});

test("values sort in the order of SQLite", () => {
  const ascending: Cell[] = [
    null,
    -Infinity,
    new Real(-1e19),
    -(2n ** 63n),
    new Real(-9223372036854774784),
    -0.5,
    0,
    0.5,
    9007199254740991,
    new Real(9007199254740992),
    9007199254740993n,
    2n ** 63n - 1n,
    new Real(9223372036854775808),
    Infinity,
    "",
    "B",
    "a",
    "a ",
    "é",
    "\uffff",
    "😀",
    new Uint8Array([]),
    new Uint8Array([0]),
    new Uint8Array([0, 0]),
    new Uint8Array([1]),
  ];
  ascending.forEach((left, i) =>
    ascending.forEach((right, j) => {
      assert.equal(
        Math.sign(compareCells(left, right)),
        Math.sign(i - j),
        `${String(left)} ${String(right)}`,
      );
    }),
  );
  assert.equal(compareCells("Straße\0a", "STRAßE\0b", "NOCASE"), 0);
  assert.notEqual(compareCells("É", "é", "NOCASE"), 0);
  assert.equal(compareCells("a", "a   ", "RTRIM"), 0);
  assert.equal(compareCells(1, new Real(1)), 0);
  assert.ok(compareExactly(1, new Real(1)) < 0 && compareExactly(new Real(-0), new Real(0)) < 0);
});

const KEYED: Shape = {
  columns: [
    { name: "id", type: "INTEGER" },
    { name: "v", type: "TEXT" },
    { name: "o", type: "", hidden: true },
  ],
  key: ["id"],
  order: [{ column: "o", index: 2, desc: true, nulls: "last", collation: "BINARY" }],
  topN: false,
};

const cells = (rows: Rows) => rows.all.map((row) => row.cells);

test("random changes lead to the same rows as a sort of them, with the same checksum", () => {
  let seed = 7;
  const random = (below: number) => {
    seed = (seed * 1103515245 + 12345) % 2 ** 31;
    return Math.floor((seed / 2 ** 31) * below);
  };
  const order = () => [null, random(5), 0.5, "x"][random(4)] as Cell;
  const rows = new Rows(KEYED, [], "0000000000000000");
  const model = new Map<number, Cell[]>();
  for (let commit = 0; commit < 400; commit += 1) {
    const changes = { deletes: [] as Cell[][], inserts: [] as Cell[][], updates: [] as Cell[][] };
    const touched = new Set<number>();
    for (let change = random(commit % 40 === 0 ? 60 : 4); change >= 0; change -= 1) {
      const id = random(80);
      if (touched.has(id)) continue;
      touched.add(id);
      const row: Cell[] = [id, `v${commit}`, order()];
      if (!model.has(id)) changes.inserts.push(row);
      else if (random(2) === 0) changes.updates.push(row);
      else changes.deletes.push([id]);
      if (changes.deletes.at(-1)?.[0] === id) model.delete(id);
      else model.set(id, row);
    }
    rows.apply(changes, Checksum.of(model.values()).toString());
    const expected = new Rows(KEYED, Array.from(model.values()), undefined);
    const sorted = Array.from(model.values()).sort((a, b) => rows.layout.compareCells(a, b));
    assert.deepEqual(cells(rows), sorted);
    assert.equal(cells(expected).length, sorted.length);
  }
});

test("a change that does not fit changes nothing", () => {
  const rows = new Rows(KEYED, [[1, "a", 1]], undefined);
  const none = { deletes: [], inserts: [], updates: [] };
  const wrong = [
    { ...none, deletes: [[2]] },
    { ...none, inserts: [[1, "b", 1]] },
    { ...none, updates: [[2, "b", 1]] },
    { ...none, inserts: [[2, "b"]] },
    { ...none, inserts: [[2, "b", 0]], deletes: [[3]] },
  ];
  for (const changes of wrong) assert.throws(() => rows.apply(changes, undefined), Mismatch);
  const checked = new Rows(KEYED, [[1, "a", 1]], Checksum.of([[1, "a", 1]]).toString());
  assert.throws(() => checked.apply({ ...none, deletes: [[1]] }, "0000000000000001"), Mismatch);
  assert.deepEqual([cells(rows), cells(checked)], [[[1, "a", 1]], [[1, "a", 1]]]);
});

test("a newer snapshot becomes a difference, and unchanged rows keep their identity", () => {
  const earlier = new Rows(
    KEYED,
    [
      [1, "a", 3],
      [2, "b", 2],
      [3, "c", 1],
    ],
    undefined,
  );
  const now = new Rows(
    KEYED,
    [
      [4, "d", 4],
      [1, "a", 3],
      [2, "B", 2],
    ],
    undefined,
  );
  const difference = now.differenceFrom(earlier.all, true);
  assert.deepEqual(difference.deletes, [[3]]);
  assert.deepEqual(
    difference.inserts.map((row) => row.cells),
    [[4, "d", 4]],
  );
  assert.deepEqual(
    difference.updates.map((row) => row.cells),
    [[2, "B", 2]],
  );
  assert.equal(now.all[1], earlier.all[0]);
  const bag: Shape = { ...KEYED, key: [], order: [] };
  const bags = new Rows(
    bag,
    [
      [1, "a", 1],
      [1, "a", 1],
      [new Real(1), "a", 1],
    ],
    undefined,
  );
  const next = new Rows(
    bag,
    [
      [1, "a", 1],
      [2, "a", 1],
    ],
    undefined,
  ).differenceFrom(bags.all, true);
  assert.deepEqual(next.deletes, [
    [1, "a", 1],
    [new Real(1), "a", 1],
  ]);
  assert.deepEqual(
    next.inserts.map((row) => row.cells),
    [[2, "a", 1]],
  );
});
