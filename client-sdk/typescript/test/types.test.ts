/** `abide-types`: the types of a database, and the built-in ones of this package. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import { type JsonSchema, typesOf } from "#dist/bin/typegen.js";

import { Folder } from "./server.js";

const run = promisify(execFile);
const root = join(import.meta.dirname, "../..");
const program = join(root, "dist/bin/abide-types.js");

test("the built-in types of the package are those of the engine", async () => {
  const folder = await Folder.make();
  const out = folder.file("abide.d.ts");
  const args = ["--new", "--out", out, "--prefix", "Builtin", "--imports", "./values.js"];
  await run(process.execPath, [program, ...args]);
  const generated = await readFile(out, "utf8");
  const shipped = await readFile(join(root, "src/builtin.ts"), "utf8");
  assert.equal(shipped, generated, "run  cargo xtask generate  and commit src/builtin.ts");
  await folder.remove();
});

/** The address of a server that has ended. */
async function closedUrl(): Promise<string> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return `http://127.0.0.1:${port}`;
}

test("a wrong command line is reported, and creates no file", async () => {
  const folder = await Folder.make();
  const text = folder.file("text.db");
  await writeFile(text, "no database");
  const typo = folder.file("typo.db");
  const cases: [string[], RegExp][] = [
    [[], /^abide-types: one of --url, --db and --new is required\n {2}hint: /],
    [["--new", "--db", text], /^abide-types: one of --url, --db and --new is required\n {2}hint: /],
    [["--dbb", text], /^abide-types: Unknown option '--dbb'.*\n {2}hint: /],
    [["--db", typo], /^abide-types: there is no file .*typo\.db\n {2}hint: .*--new/],
    [["--db", text], /^abide-types: .*text\.db is not an Abide database/],
    [
      ["--db", text, "--program", "/no/program"],
      /^abide-types: cannot start \/no\/program: .*\n {2}hint: ABIDE_BINARY/,
    ],
    [["--new", "--program", "/bin/true"], /^abide-types: \/bin\/true serve did not start: it ended/],
    [["--new", "--program", "/bin/echo"], /^abide-types: \/bin\/echo serve did not start: serve --db/],
    [["--new", "--out", folder.file("no/folder")], /^abide-types: cannot write .*no\/folder/],
    [["--url", await closedUrl()], /^abide-types: http:.* cannot be read: .*ECONNREFUSED.*\n {2}hint: /],
    [["--url", "nonsense"], /^abide-types: "nonsense" is not the address of a server/],
  ];
  for (const [args, pattern] of cases) {
    const error: unknown = await run(process.execPath, [program, ...args]).catch((reason: unknown) => reason);
    const { code, stderr } = error as { code: number; stderr: string };
    assert.equal(code, 1, args.join(" "));
    assert.match(stderr, pattern);
  }
  assert.deepEqual(await readdir(folder.path), ["text.db"]);
  await folder.remove();
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

/** Texts that end what they are in, if they are not quoted. */
const HOSTILE = [
  "*/ declare const pwned: 1; /*",
  "*\u200b/ x",
  '"; import("fs"); "',
  "a; }\nexport const pwned = 1; //",
  "`${pwned}`",
  "\u2028export const pwned = 1;",
  "\u2029export const pwned = 1;",
  "\r\nexport const pwned = 1;",
  "\\",
  "__proto__",
  "constructor",
  "toString",
  "x */\n\n/** */ export const pwned = 1; /**",
];

/**
 * Texts of the server are data: in the generated file it is a string or a comment. So the file compiles, declares
 * nothing with the names in the texts, and leads to no JavaScript.
 */
test("no name, comment or value of a server becomes code", async () => {
  const folder = await Folder.make();
  const files: string[] = [];
  for (const [at, hostile] of HOSTILE.entries()) {
    const column = { name: hostile, type: hostile, nullable: true, json: true, description: hostile };
    const schema = {
      type: "object",
      description: hostile,
      properties: Object.fromEntries<JsonSchema>([
        [hostile, { type: hostile, description: hostile }],
        ["reference", { $ref: `#/$defs/${hostile}` }],
        ["constant", { const: hostile }],
        ["values", { enum: [hostile, { [hostile]: hostile }] }],
        ["several", { type: [hostile, "null"] }],
      ]),
      required: [hostile],
    };
    const text = typesOf(
      {
        tables: [{ name: hostile, columns: [column], description: hostile }],
        views: [{ name: `${hostile} view`, columns: [hostile] }],
        reducers: [{ name: hostile, description: hostile, arguments: schema, result: schema }],
      },
      [hostile],
    );
    const file = folder.file(`hostile${at}.mts`);
    // A second declaration of the name would be an error.
    await writeFile(
      file,
      `${text.replace("@abide/client", join(root, "dist/index.js"))}export const pwned = 0;\n`,
    );
    files.push(file);
  }
  const options = ["--ignoreConfig", "--strict", "--skipLibCheck", "--removeComments", "--types", ""];
  const target = ["--module", "nodenext", "--target", "es2022", "--outDir", folder.file("out")];
  const tsc = run(join(root, "node_modules/.bin/tsc"), [...options, ...target, ...files]);
  const { stdout } = await tsc.catch((error: { stdout: string }) => error);
  assert.equal(stdout, "");
  for (const at of HOSTILE.keys()) {
    assert.equal(await readFile(folder.file(`out/hostile${at}.mjs`), "utf8"), "export const pwned = 0;\n");
  }
  await folder.remove();
});
