/**
 * The blocks of `docs/typescript.md` as written: programs run, twice, and types compile under `strict`. The
 * installation is in `packed.mjs`.
 */
import assert from "node:assert/strict";
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";

import { Abide } from "@abide/client";

import { firstLine, ownChild } from "./server.js";
import { until, within } from "./within.js";

const run = promisify(execFile);
const root = join(import.meta.dirname, "../..");
/** Inside of the package, so that `@abide/client` is this one. */
const folder = join(root, "build/page");

interface Block {
  language: string;
  text: string;
  /** The name under which the page saves the block. */
  name: string | undefined;
  /** The next block `text`. */
  output: string;
}

let blocks: Block[];
let client: Abide;

before(async () => {
  const page = await readFile(join(root, "../../docs/typescript.md"), "utf8");
  const fence = /^```(\w+).*\n([^]*?)^```$/gm;
  const found = Array.from(page.matchAll(fence));
  blocks = found.map(([, language = "", text = ""], at) => {
    const earlier = page.slice(0, found[at]?.index).trimEnd().split("\n\n").at(-1) ?? "";
    const name = /[Ss]ave (?:this|it)[^]* as `([\w.]+)`/.exec(earlier)?.[1];
    const next = found.slice(at + 1).find(([, other]) => other === "text");
    return { language, text, name, output: next?.[2] ?? "" };
  });
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  client = await Abide.open(join(folder, "agents.db"));
});

after(async () => {
  await client.close();
});

/** The first block that contains a text. */
function block(part: string): Block {
  const found = blocks.find(({ language, text }) => language === "js" && text.includes(part));
  assert.ok(found, `the page has a block with ${part}`);
  return found;
}

/** Saves a block as a program. One without an import uses the client of the quickstart. */
async function save({ text, name }: Block, otherName: string): Promise<string> {
  const file = join(folder, name ?? otherName);
  const isProgram = text.includes("@abide/client");
  const start = 'import { Abide } from "@abide/client";\nconst client = await Abide.open("agents.db");\n';
  await writeFile(file, isProgram ? text : `${start}${text}\nawait client.close();\n`);
  return file;
}

async function outputOf(file: string): Promise<string> {
  const { stdout } = await run(process.execPath, [file], { cwd: folder });
  return stdout;
}

/** Starts a program that serves, and waits until it says so. */
async function start(file: string): Promise<ChildProcess> {
  const child = ownChild(
    spawn(process.execPath, [file], { cwd: folder, stdio: ["ignore", "pipe", "inherit"] }),
  );
  assert.match(await within("the first line", firstLine(child)), /runs$/);
  return child;
}

/** Stops it, as its user does. */
async function stop(child: ChildProcess): Promise<void> {
  const ended = once(child, "exit");
  child.kill("SIGTERM");
  assert.deepEqual(await within("the end", ended), [0, null]);
}

test("each block of JavaScript is tested here", () => {
  const parts = [
    "paying",
    "create_session",
    "sub.close",
    "settle_tool_call",
    "worker()",
    "request_tool_call",
  ];
  const tested = [...parts, "supervisor()", "session.handoff"].map(block);
  const all = blocks.filter(({ language }) => language === "js");
  assert.deepEqual(
    all.filter((one) => !tested.includes(one)),
    [],
  );
});

test("the quickstart prints what the page says, at the second run too", async () => {
  const file = await save(block("paying"), "");
  assert.equal(await outputOf(file), block("paying").output);
  const second = blocks.filter(({ language }) => language === "text")[1];
  assert.equal(await outputOf(file), second?.text);
});

test("calls, queries and subscriptions run twice", async () => {
  for (const part of ["create_session", "sub.close"]) {
    const file = await save(block(part), "fragment.mjs");
    await outputOf(file);
    await outputOf(file);
  }
});

test("the call of settle_tool_call settles a step", async () => {
  const session = await client.session({ id: "s1", agent: "support" });
  const call_id = session.callId("refund-8813");
  const request = { call_id, session_id: session.id, tool_name: "refund", arguments: {} };
  await client.call.register_tool({ name: "refund", effect: "at_most_once" });
  await client.call.request_tool_call(request);
  await client.call.claim_tool_call({ call_id, lease_ms: 50, worker: "vanished" });
  const unknown = await client.subscribe("SELECT call_id FROM unknown_tool_calls WHERE call_id = :id", {
    id: call_id,
  });
  await until(
    "the end of the lease",
    () => unknown.size === 1,
    (changed) => unknown.on("update", changed),
  );
  unknown.close();
  const file = await save(block("settle_tool_call"), "settle.mjs");
  assert.match(await outputOf(file), /s1\/refund-8813/);
  await outputOf(file);
  const step = session.tool("refund", {}, { key: "refund-8813", run: () => "not run" });
  assert.deepEqual(await within("the step", step), { paid: 25 });
});

test("the worker runs what the other program requests", async () => {
  const worker = await start(await save(block("worker()"), ""));
  const requested = block("request_tool_call");
  const file = await save(requested, "");
  assert.equal(await outputOf(file), requested.output);
  await stop(worker);
  assert.equal(await outputOf(file), requested.output, "the result is recorded");
});

test("the supervisor answers the handoff", async () => {
  const supervisor = await start(await save(block("supervisor()"), ""));
  const waiting = block("session.handoff");
  assert.equal(await outputOf(await save(waiting, "handoff.mjs")), waiting.output);
  await stop(supervisor);
});

test("the blocks of TypeScript compile under strict", async () => {
  const source = join(folder, "types");
  await mkdir(source, { recursive: true });
  const typed = blocks.filter(({ language }) => language === "ts" || language === "tsx");
  assert.deepEqual(
    typed.map(({ language }) => language),
    ["tsx", "ts"],
  );
  const files = typed.map(({ language }, at) => join(source, `block-${at}.${language}`));
  for (const [at, { text }] of typed.entries()) await writeFile(files[at] as string, text);
  // The types of a module with a table and a reducer, as abide-types writes them.
  await writeFile(
    join(source, "abide.d.ts"),
    `import type { Json } from "@abide/client";
    export interface Tables { notes: { id: number; session_id: string; body: string } }
    export interface Reducers { add_note: { args: { session_id: string; body: string }; result: Json } }
    export interface Schema { tables: Tables; reducers: Reducers }\n`,
  );
  const options = "--noEmit --strict --ignoreConfig --module nodenext --target es2022 --jsx react-jsx".split(
    " ",
  );
  const tsc = join(root, "node_modules/.bin/tsc");
  const { stdout } = await run(tsc, [...options, ...files]).catch((error: { stdout: string }) => error);
  assert.equal(stdout, "");
});
