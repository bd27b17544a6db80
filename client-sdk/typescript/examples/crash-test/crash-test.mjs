/**
 * A crash test: an agent, a worker and a supervisor are killed with SIGKILL in the middle of their work, and
 * started again. Run it with `node crash-test.mjs`.
 */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

import { Abide } from "@abide/client";

const folder = mkdtempSync(join(tmpdir(), "abide-crash-"));
const file = join(folder, "agents.db");
const client = await Abide.open(file);

/** Starts a program, and returns it with its lines. */
function start(role, env = {}) {
  const program = fileURLToPath(new URL("role.mjs", import.meta.url));
  const child = spawn(process.execPath, [program, file, role], {
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "inherit"],
  });
  return { child, lines: createInterface(child.stdout)[Symbol.asyncIterator]() };
}

async function next({ lines }) {
  return (await lines.next()).value;
}

/** Starts a program, kills it in the middle of its work, and starts it again. */
async function crash(role, work) {
  const first = start(role, { HANG: "1" });
  assert.equal(await next(first), `running ${work}`);
  first.child.kill("SIGKILL");
  await once(first.child, "exit");
  console.log(`killed the ${role} in the middle of ${work}`);
  return start(role);
}

async function stop({ child }) {
  const ended = once(child, "exit");
  child.kill("SIGTERM");
  await ended;
}

function effects(name) {
  return readFileSync(`${file}-effects`, "utf8")
    .split("\n")
    .filter((line) => line === name).length;
}

// 1. The refund of the agent must not run twice: its outcome is unknown until a person settles it.
const agent = await crash("agent", "refund");
assert.match(await next(agent), /must not run twice/);
await client.call.settle_tool_call({
  call_id: "order-8812/refund",
  outcome: "succeeded",
  result: { done: "by hand" },
  evidence: "the bank statement",
});
assert.equal(await next(start("agent")), 'refund: {"done":"by hand"}');
assert.equal(effects("refund"), 1);
console.log("the refund ran once, and the agent continues with the settled outcome");

// 2. The lookup of the worker can run twice: the next worker runs it again.
const session = await client.session({ id: "order-8813", agent: "support" });
await client.call.register_tool({ name: "lookup", effect: "read_only" });
await client.call.request_tool_call({
  call_id: "order-8813/lookup",
  session_id: session.id,
  tool_name: "lookup",
  arguments: { order: 8813 },
});
const worker = await crash("worker", "lookup");
const call = await client.subscribe(
  "SELECT status, attempt FROM tool_calls WHERE call_id = 'order-8813/lookup'",
);
for await (const _ of call) if (call.rows[0].status === "succeeded") break;
assert.deepEqual(call.rows, [{ status: "succeeded", attempt: 2 }]);
assert.equal(effects("lookup"), 2);
await stop(worker);
console.log("the lookup was repeated by another worker");

// 3. The handoff of the killed supervisor goes to another one.
const handoff = session.handoff("an angry customer", "refunds", { key: "handoff" });
const supervisor = await crash("supervisor", "answer");
assert.deepEqual(await handoff, { status: "resolved", text: "A refund is on its way." });
await stop(supervisor);
console.log("the handoff was answered by another supervisor");

await client.close();
rmSync(folder, { recursive: true });
console.log("nothing was lost, and nothing ran twice by accident");
