/** The session with the token of a tenant, whose sessions have the namespace of the tenant in their stored ids. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Abide } from "@abide/client";
import { AbideSession } from "@abide/openai-agents";
import type { AgentInputItem } from "@openai/agents";

import { startTenantServer, type TenantServer } from "../../tenant-server.js";

let server: TenantServer;
const clients: Abide[] = [];

before(async () => {
  server = await startTenantServer();
});
after(async () => {
  await Promise.all(clients.map((client) => client.close()));
  server.stop();
});

/** A session of its own, as another process has one. */
async function newSession(sessionId?: string): Promise<AbideSession> {
  const client = await Abide.connect(server.url, { token: server.tenant });
  clients.push(client);
  return new AbideSession(client, sessionId === undefined ? {} : { sessionId });
}

const user = (content: string): AgentInputItem => ({ type: "message", role: "user", content });

/** The second process had the id as it was given, with which its queries found no item. */
test("the processes of a tenant share the history of a session", async () => {
  const [one, two] = [await newSession("s1"), await newSession("s1")];
  await one.addItems([user("a"), user("b")]);
  assert.deepEqual(await one.getItems(), [user("a"), user("b")]);
  assert.deepEqual(await two.getItems(), [user("a"), user("b")]);
  assert.equal(await two.getSessionId(), "tenant=acme/s1");
  assert.equal(await one.getSessionId(), "tenant=acme/s1");
  assert.deepEqual(await two.popItem(), user("b"));
  const append = { operationId: "o1", transaction: { type: "append_items" as const, items: [user("c")] } };
  for (const session of [one, two]) await session.applyHistoryTransaction(append);
  assert.deepEqual(await one.getItems(), [user("a"), user("c")], "an operation takes effect once");
  assert.deepEqual(await (await newSession("tenant=acme/s1")).getItems(), [user("a"), user("c")]);
});

test("a tenant's session with a generated id has a history", async () => {
  const session = await newSession();
  await session.addItems([user("a")]);
  assert.deepEqual(await session.getItems(), [user("a")]);
  assert.deepEqual(await (await newSession(await session.getSessionId())).getItems(), [user("a")]);
});
