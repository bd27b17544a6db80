/** `abide-types`: the types of a database, and the built-in ones of this package. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import { typesOf } from "#dist/bin/typegen.js";

import { Folder } from "./server.js";

const run = promisify(execFile);
const root = join(import.meta.dirname, "../..");
const program = join(root, "dist/bin/abide-types.js");

test("the built-in types of the package are those of the engine", async () => {
  const folder = await Folder.make();
  const out = folder.file("abide.d.ts");
  const args = ["--db", folder.file("x.db"), "--out", out, "--prefix", "Builtin", "--imports", "./values.js"];
  await run(process.execPath, [program, ...args]);
  const generated = await readFile(out, "utf8");
  const shipped = await readFile(join(root, "src/builtin.ts"), "utf8");
  assert.equal(shipped, generated, "run  npm run builtin-types  and commit src/builtin.ts");
  await folder.remove();
});

test("a wrong command line is reported", async () => {
  const error: unknown = await run(process.execPath, [program]).catch((reason: unknown) => reason);
  const { code, stderr } = error as { code: number; stderr: string };
  assert.equal(code, 1);
  assert.match(stderr, /abide-types: one of --url and --db is required\n {2}hint: /);
});

test("schemas of own modules become types that compile", async () => {
  const text = typesOf(
    {
      tables: [
        {
          name: "odd table",
          columns: [
            {
              name: "id",
              type: "INTEGER",
              nullable: false,
              json: false,
              description: "ends a comment */ here",
            },
            { name: "a-b", type: "BLOB", nullable: true, json: false },
            { name: "x", type: "", nullable: false, json: false },
          ],
        },
      ],
      views: [{ name: "v", columns: ["c"] }],
      reducers: [
        {
          name: "make",
          arguments: {
            type: "object",
            properties: {
              n: { type: "integer" },
              tree: { $ref: "#/$defs/Tree" },
              any: true,
              list: { type: "array", items: { enum: ["a", 1] } },
            },
            required: ["n"],
            $defs: { Tree: { type: "object", properties: { child: { $ref: "#/$defs/Tree" } } } },
          },
          result: { anyOf: [{ type: "null" }, { type: "object", additionalProperties: { type: "number" } }] },
        },
      ],
    },
    ["bad_sql"],
  );
  const folder = await Folder.make();
  const file = folder.file("abide.ts");
  const use = `
    const schema: Schema["reducers"]["make"]["args"] = { n: 1n, tree: { child: {} }, list: ["a", 1] };
    const row: Tables["odd table"] = { id: 1, "a-b": null, x: 2n };
    export const all: [unknown, unknown, Reducers["make"]["result"]] = [schema, row, { a: 1.5 }];
  `;
  const { writeFile } = await import("node:fs/promises");
  await writeFile(file, text.replace("@abide/client", join(root, "dist/index.js")) + use);
  const tsc = join(root, "node_modules/.bin/tsc");
  const { stdout } = await run(tsc, [
    "--ignoreConfig",
    "--noEmit",
    "--strict",
    "--skipLibCheck",
    "--module",
    "nodenext",
    "--target",
    "es2022",
    "--typeRoots",
    join(root, "node_modules/@types"),
    file,
  ]).catch((error: { stdout: string }) => error);
  assert.equal(stdout, "");
  await folder.remove();
});
