/** The session against the framework's own one, and in runs of agents. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import { Abide } from "@abide/client";
import { AbideSession } from "@abide/openai-agents";
import { type AgentInputItem, MemorySession, run } from "@openai/agents";

import { refundAgent } from "./agent.js";

let folder: string;
let client: Abide;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "abide-openai-"));
  client = await Abide.open(join(folder, "agents.db"));
});
after(async () => {
  await client.close();
  rmSync(folder, { recursive: true });
});

const user = (content: string): AgentInputItem => ({ type: "message", role: "user", content });
const call = (callId: string, args = "{}"): AgentInputItem & { type: "function_call" } => ({
  type: "function_call",
  callId,
  name: "lookup",
  status: "completed",
  arguments: args,
});

test("every operation leads to the same history as the framework's own session", async () => {
  const [ours, theirs] = [new AbideSession(client, { sessionId: "same" }), new MemorySession()];
  const both = async (step: (session: AbideSession | MemorySession) => Promise<unknown>) => {
    const outcomes = await Promise.all(
      [ours, theirs].map((session) =>
        step(session).then(
          (value) => ({ value }),
          () => "an error",
        ),
      ),
    );
    assert.deepEqual(outcomes[0], outcomes[1]);
    for (const limit of [undefined, 0, 2, 100]) {
      assert.deepEqual(await ours.getItems(limit), await theirs.getItems(limit));
    }
    assert.deepEqual(
      await new AbideSession(client, { sessionId: "same" }).getItems(),
      await theirs.getItems(),
    );
  };
  const image = new Uint8Array([0, 255, 7]);
  const file: AgentInputItem = {
    type: "message",
    role: "user",
    content: [
      { type: "input_text", text: "see" },
      { type: "input_image", image: "data:image/png;base64,AA==" },
    ],
    providerData: { bytes: image, big: 12345678901, half: 0.5, none: null },
  };
  await both((session) => session.addItems([]));
  await both((session) => session.addItems([user("a"), call("c1"), call("c2"), file]));
  await both((session) => session.popItem());
  await both((session) =>
    session.applyHistoryMutations({
      mutations: [{ type: "replace_function_call", callId: "c1", replacement: call("c1", '{"a":1}') }],
    }),
  );
  const append = { operationId: "o1", transaction: { type: "append_items" as const, items: [user("b")] } };
  await both((session) => session.applyHistoryTransaction(append));
  await both((session) => session.applyHistoryTransaction(append));
  await both((session) =>
    session.applyHistoryTransaction({ ...append, transaction: { type: "append_items", items: [user("x")] } }),
  );
  const replace = {
    operationId: "o2",
    transaction: {
      type: "replace_suffix" as const,
      expectedSuffix: [call("c2"), user("b")],
      replacement: [user("c")],
    },
  };
  await both((session) => session.applyHistoryTransaction(replace));
  await both((session) => session.applyHistoryTransaction(replace));
  await both((session) => session.applyHistoryTransaction({ ...replace, operationId: "o3" }));
  await both((session) => session.clearSession());
  await both((session) => session.popItem());
  await both((session) => session.addItems([user("again")]));
});

test("writers in several processes take each item once", async () => {
  const sessionId = "shared";
  const sessions = [0, 1, 2].map(() => new AbideSession(client, { sessionId }));
  await Promise.all(
    sessions.map((session, at) => session.addItems([0, 1, 2, 3].map((n) => user(`${at}.${n}`)))),
  );
  const popped = await Promise.all(
    sessions.flatMap((session) => [0, 1, 2, 3, 4].map(() => session.popItem())),
  );
  const taken = popped
    .filter((item) => item !== undefined)
    .map((item) => ("content" in item ? item.content : ""));
  assert.equal(taken.length, 12);
  assert.equal(new Set(taken).size, 12);
  assert.deepEqual(await sessions[0]?.getItems(), []);
});

test("a run of an agent with a tool stores its turn, and the next run has it", async () => {
  const session = new AbideSession(client);
  const agent = refundAgent(async () => "refunded");
  const first = await run(agent, "Refund order 8812.", { session });
  assert.equal(first.finalOutput, "The refund is done: refunded");
  const types = (await session.getItems()).map((item) => item.type);
  assert.deepEqual(types, ["message", "function_call", "function_call_result", "message"]);
  const second = await run(agent, "Refund order 8813.", { session });
  assert.equal(second.finalOutput, "The refund is done: refunded");
  assert.equal((await session.getItems()).length, 8);
  const sql =
    "SELECT role, content FROM agent_state WHERE session_id = :id AND kind = 'openai_item' ORDER BY id LIMIT 4";
  const { rows } = await client.sql(sql, { id: await session.getSessionId() });
  assert.deepEqual(rows, [
    { role: "user", content: "Refund order 8812." },
    { role: "assistant", content: null },
    { role: "tool", content: null },
    { role: "assistant", content: "The refund is done: refunded" },
  ]);
});

test("an agent that is killed in the middle of a tool continues, and the effect happens once", async () => {
  const program = join(import.meta.dirname, "program.js");
  const start = (env: Record<string, string>) => {
    const child = spawn(process.execPath, [program, join(folder, "agents.db")], {
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "inherit"],
    });
    const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
    return { child, line: async () => String((await lines.next()).value) };
  };
  const first = start({ HANG: "1" });
  assert.equal(await first.line(), "running refund");
  first.child.kill("SIGKILL");
  await once(first.child, "exit");
  const second = start({});
  assert.equal(await second.line(), "running refund");
  assert.equal(await second.line(), "The refund is done: refunded");
  const third = start({});
  assert.equal(await third.line(), "The refund is done: refunded");
  const session = new AbideSession(client, { sessionId: "killed" });
  const calls = (await session.getItems()).filter((item) => item.type === "function_call");
  assert.equal(calls.length, 2);
  const { rows } = await client.sql("SELECT status, attempt FROM tool_calls WHERE session_id = 'killed'");
  assert.deepEqual(rows, [{ status: "succeeded", attempt: 2 }]);
});
