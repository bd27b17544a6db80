/** The store with the token of a tenant, whose sessions have the namespace of the tenant in their stored ids. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Abide } from "@abide/client";
import { ChatStore } from "@abide/ai-sdk";
import type { UIMessage } from "ai";

import { startTenantServer, type TenantServer } from "../../tenant-server.js";

let server: TenantServer;
let admin: Abide;
const clients: Abide[] = [];

before(async () => {
  server = await startTenantServer();
  admin = await connect(server.admin);
  // Tools belong to all tenants, so an admin registers the one of streams.
  await admin.call.register_tool({ name: "ui_stream", effect: "at_most_once" });
});
after(async () => {
  await Promise.all(clients.map((client) => client.close()));
  server.stop();
});

async function connect(token: string): Promise<Abide> {
  const client = await Abide.connect(server.url, { token });
  clients.push(client);
  return client;
}

/** A store of its own, as another process has one. */
async function newStore(): Promise<ChatStore> {
  return new ChatStore(await connect(server.tenant));
}

const text = (id: string, content: string): UIMessage => ({
  id,
  role: "user",
  parts: [{ type: "text", text: content }],
});

/** The store asked for the messages of `c1`, and the rows have `tenant=acme/c1`: it always loaded nothing. */
test("a tenant's messages are loaded, by the store that saved them and by others", async () => {
  const [one, two] = [await newStore(), await newStore()];
  assert.deepEqual(await two.loadChat("c1"), []);
  const [a, b] = [text("a", "1"), text("b", "2")];
  await one.saveChat({ chatId: "c1", messages: [a] });
  assert.deepEqual(await one.loadChat("c1"), [a]);
  assert.deepEqual(await two.loadChat("c1"), [a]);
  await two.saveChat({ chatId: "c1", messages: [a, b] });
  assert.deepEqual(await one.loadChat("c1"), [a, b]);
  assert.deepEqual(await (await newStore()).loadChat("tenant=acme/c1"), [a, b]);
  const { rows } = await admin.sql("SELECT session_id, count(*) AS n FROM agent_state GROUP BY 1");
  assert.deepEqual(rows, [{ session_id: "tenant=acme/c1", n: 2 }], "each message is stored once");
  const sessions = await admin.sql("SELECT id FROM sessions");
  assert.deepEqual(sessions.rows, [{ id: "tenant=acme/c1" }], "loading creates no session");
});

test("a tenant's stream is resumed", async () => {
  const [producer, reader] = [await newStore(), await newStore()];
  assert.equal(await reader.resumeStream("c2"), null);
  const { readable, writable } = new TransformStream<string, string>();
  const writer = writable.getWriter();
  const recorded = producer.recordStream("c2", readable);
  await writer.write("data: one\n\n");
  const starts = await admin.subscribe(
    "SELECT id FROM agent_state WHERE kind = 'ui_stream' AND content = 'data: one\n\n'",
  );
  for await (const _ of starts) if (starts.size > 0) break;
  const resumed = await reader.resumeStream("c2");
  assert.ok(resumed, "a stream is running");
  await writer.write("data: two\n\n");
  await writer.close();
  const parts: string[] = [];
  for await (const part of resumed) parts.push(part);
  assert.equal(parts.join(""), "data: one\n\ndata: two\n\n");
  await recorded;
  assert.equal(await reader.resumeStream("c2"), null);
});

/** `"__proto__" in {}` is true: the changed message counted as equal. */
test("a change of a property named __proto__ is saved", async () => {
  const store = await newStore();
  const chat = (metadata: unknown): UIMessage[] => [{ ...text("a", "1"), metadata }];
  const [first, second] = [chat(JSON.parse('{"__proto__":{}}')), chat({ x: 1 })];
  await store.saveChat({ chatId: "c3", messages: first });
  const other = await newStore();
  await other.saveChat({ chatId: "c3", messages: second });
  assert.deepEqual(await store.loadChat("c3"), second);
});
