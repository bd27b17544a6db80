/** A caller with a scope: it chooses short ids, and the server stores them in the namespace of the scope. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Abide, type Session, UnknownOutcome } from "@abide/client";

import { Server } from "./server.js";
import { within } from "./within.js";

let server: Server;
let tokens: Map<string, string>;
const clients: Abide[] = [];

before(async () => {
  const acme = { tenant: "acme 7" };
  ({ server, tokens } = await Server.withTokens([
    { name: "root", identity: "root", role: "admin", capabilities: ["*"] },
    { name: "acme", identity: "acme", role: "app", scope: acme },
    { name: "worker", identity: "worker", role: "agent", scope: acme },
    { name: "bob", identity: "bob", role: "app", scope: { ...acme, user: "bob" } },
    { name: "zeta", identity: "zeta", role: "app", scope: { tenant: "zeta" } },
  ]));
});

after(async () => {
  await Promise.all(clients.map((client) => client.close()));
  await server.stop();
});

/** A client of its own, as another process has one. */
async function connect(name: string): Promise<Abide> {
  const client = await Abide.connect(server.url, { token: tokens.get(name) ?? "" });
  clients.push(client);
  return client;
}

const NAMESPACE = "tenant=acme%207/";

/** The second program had the short id, with which queries found nothing and keyed messages were appended again. */
test("a session that exists has the same stored id, so its steps are the same", async () => {
  const root = await connect("root");
  await root.call.register_tool({ name: "pay", effect: "at_most_once" });
  await root.call.register_tool({ name: "approval", effect: "read_only" });
  let runs = 0;
  const program = async (): Promise<unknown> => {
    const session = await (await connect("worker")).session({ agent: "a", id: "order-1" });
    assert.equal(session.id, `${NAMESPACE}order-1`);
    await session.message("user", "Please pay.", { key: "question" });
    const paid = await session.tool("pay", {}, { key: "pay", run: () => (runs += 1) });
    await session.sleepUntil(new Date(0), { key: "sleep" });
    return [paid, (await session.messages()).map(({ content }) => content)];
  };
  const expected = [1, ["Please pay."]];
  assert.deepEqual(await within("the first run", program()), expected);
  assert.deepEqual(await within("the second run", program()), expected);
});

/** The id was looked for in the text of a refusal, `session already already exists`, and found in the wrong place. */
test("the id of a session can be a word of a refusal", async () => {
  for (const id of ["already", "exists", "session"]) {
    for (const name of ["worker", "worker"]) {
      const session = await (await connect(name)).session({ agent: "a", id });
      assert.equal(session.id, `${NAMESPACE}${id}`);
    }
  }
});

/** The ids of its calls and timers are in the namespace, but not its own id. */
test("the steps of a session with a generated id are found again", async () => {
  const [root, worker] = [await connect("root"), await connect("worker")];
  const session = await worker.session({ agent: "a" });
  assert.ok(session.id.startsWith("s_"));
  const again = (await (await connect("worker")).findSession(session.id)) as Session;
  let runs = 0;
  const pay = (of: Session) => of.tool("pay", {}, { key: "pay", run: () => (runs += 1) });
  assert.equal(await pay(session), 1);
  assert.equal(await within("the recorded result", pay(again)), 1);
  for (const one of [session, again]) {
    await within("the timer", one.sleepUntil(new Date(Date.now() - 1000), { key: "sleep" }));
  }
  const asked = session.approval("Pay?", { amount: 5 }, { key: "ask" });
  const pending = await root.subscribe<{ id: string; call_id: string }>(
    "SELECT id, call_id FROM approvals WHERE status = 'pending'",
  );
  for await (const _ of pending) if (pending.size === 1) break;
  const [approval] = pending.rows;
  assert.equal(approval?.call_id, `${NAMESPACE}${session.id}/ask`);
  await root.call.decide_approval({ id: approval?.id ?? "", decision: "approve" });
  assert.equal((await within("the decision", asked)).approved, true);
  // A worker that disappeared: the error has an id that exists.
  const lost = { call_id: session.callId("lost"), session_id: session.id, tool_name: "pay", arguments: {} };
  await worker.call.request_tool_call(lost);
  await worker.call.claim_tool_call({ call_id: lost.call_id, lease_ms: 100, worker: "gone" });
  const retried = session.tool("pay", {}, { key: "lost", run: () => assert.fail("it may have run") });
  await assert.rejects(within("the end of the lease", retried), UnknownOutcome);
});

/** The call was looked up with the id that the caller chose, so the error was `lease_lost`. */
test("a tool that blocks longer than its lease ends with where its result is", async () => {
  const session = await (await connect("worker")).session({ agent: "a" });
  const run = () => {
    const end = performance.now() + 300;
    while (performance.now() < end);
    return "paid";
  };
  const step = session.tool("pay", {}, { key: "slow", leaseMs: 100, run });
  const error = await within(
    "the outcome",
    step.catch((reason: unknown) => reason),
  );
  assert.ok(error instanceof UnknownOutcome && error.reported === "succeeded", String(error));
  assert.equal(error.callId, `${NAMESPACE}${session.id}/slow`);
});

test("a session is found by the short and by the stored id, and never another caller's", async () => {
  const [acme, bob, zeta, root] = await Promise.all(["acme", "bob", "zeta", "root"].map(connect)) as [
    Abide,
    Abide,
    Abide,
    Abide,
  ];
  for (const client of [acme, bob, zeta, root]) assert.equal(await client.findSession("main"), undefined);
  await bob.session({ agent: "a", id: "main" });
  // The caller of the whole tenant sees the session of a user, but this id means its own.
  assert.equal(await acme.findSession("main"), undefined);
  assert.equal((await bob.findSession("main"))?.id, "tenant=acme%207,user=bob/main");
  assert.equal((await acme.findSession("tenant=acme%207,user=bob/main"))?.id, "tenant=acme%207,user=bob/main");
  await acme.session({ agent: "a", id: "main" });
  assert.equal((await acme.findSession("main"))?.id, `${NAMESPACE}main`);
  assert.equal((await acme.findSession(`${NAMESPACE}main`))?.id, `${NAMESPACE}main`);
  assert.equal(await zeta.findSession("main"), undefined);
  assert.equal(await zeta.findSession(`${NAMESPACE}main`), undefined);
  assert.equal(await root.findSession("main"), undefined);
  const { rows } = await root.sql("SELECT id FROM sessions WHERE agent NOT IN ('a')");
  assert.deepEqual(rows, [], "looking for a session leaves nothing");
});
