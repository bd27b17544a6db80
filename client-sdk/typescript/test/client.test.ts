/** The client against a real server: requests, subscriptions, lost connections, and their limits. */
import assert from "node:assert/strict";
import { createServer, type AddressInfo } from "node:net";
import { once } from "node:events";
import { after, before, test } from "node:test";

import { Abide, AbideError, isAbideError, type SqlRow, type Update } from "@abide/client";

import { Proxy } from "./proxy.js";
import { Server } from "./server.js";
import { until, within } from "./within.js";

const unhandled: unknown[] = [];
process.on("unhandledRejection", (reason) => unhandled.push(reason));

let server: Server;
let client: Abide;

before(async () => {
  server = await Server.start();
  client = await Abide.connect(server.url);
});

after(async () => {
  await client.close();
  await server.stop();
  assert.deepEqual(unhandled, [], "no promise was rejected without a handler");
});

const code = (expected: string) => (error: unknown) => isAbideError(error, expected);
const updated = (sub: { on(name: "update", listener: () => void): () => void }) => (changed: () => void) =>
  sub.on("update", changed);

async function newSession(): Promise<string> {
  return (await client.call.create_session({ agent: "support" })).id;
}

test("calls are typed, batches are all or nothing, and queries return rows", async () => {
  const id = await newSession();
  const { id: number } = await client.call.append_message({ session_id: id, role: "user", content: "é" });
  const { results, duplicate } = await client.batch([
    { reducer: "append_message", args: { session_id: id, role: "assistant", content: null } },
    { reducer: "complete_session", args: { session_id: id, result: { done: true } } },
  ]);
  assert.equal(results[0].id, number + 1);
  assert.equal(results[1].status, "completed");
  assert.equal(duplicate, false);
  const { rows, columns, cells } = await client.sql<{ role: string; content: string | null }>(
    "SELECT role, content FROM agent_state WHERE session_id = ?1 ORDER BY id",
    [id],
  );
  assert.deepEqual(rows, [
    { role: "user", content: "é" },
    { role: "assistant", content: null },
  ]);
  assert.deepEqual(
    [columns, cells[0]],
    [
      ["role", "content"],
      ["user", "é"],
    ],
  );
  // @ts-expect-error: an argument is missing.
  await assert.rejects(client.call.append_message({ session_id: id, role: "user" }), code("bad_arguments"));
  // @ts-expect-error: there is no such reducer.
  await assert.rejects(client.call.sing({}), code("unknown_reducer"));
  const { plan } = await client.explain("SELECT id FROM sessions");
  assert.equal(plan.rule, "row_filter");
});

test("parameters that are no cells are refused before they are sent", async () => {
  for (const wrong of [new Date(), {}, [], () => 1] as never[]) {
    await assert.rejects(client.sql("SELECT :x", { x: wrong }), code("bad_arguments"));
    await assert.rejects(client.subscribe("SELECT :x", { x: wrong }), code("bad_arguments"));
  }
  await assert.rejects(
    client.call.create_session({ agent: "a", metadata: { n: 2n ** 63n } }),
    code("bad_arguments"),
  );
  const large = client.call.create_session({ agent: "a", title: "x".repeat(17 << 20) });
  await assert.rejects(large, code("limit_exceeded"));
});

test("an update has the inserts, updates and keys of deletes, and rows keep their identity", async () => {
  const [one, two] = [await newSession(), await newSession()];
  const sub = await client.subscribe<{ id: string; status: string }>(
    "SELECT id, status FROM sessions WHERE (id = :one OR id = :two) AND status <> 'completed' ORDER BY id",
    { one, two },
  );
  const updates: Update<{ id: string; status: string }>[] = [];
  sub.on("update", (update) => updates.push(update));
  const [first, second] = sub.rows;
  assert.deepEqual(sub.key, ["id"]);
  assert.deepEqual(
    sub.columns.map(({ name }) => name),
    ["id", "status"],
  );
  await client.call.append_message({ session_id: two, role: "user", content: "x" });
  await client.call.complete_session({ session_id: one });
  await until("two updates", () => updates.length === 2, updated(sub));
  const [{ updates: changed } = { updates: [] }, { deletes } = { deletes: [] }] = updates;
  assert.deepEqual(changed, [{ id: two, status: "active" }]);
  assert.deepEqual(deletes, [{ id: one }]);
  assert.notEqual(sub.rows[0], second);
  assert.notEqual(sub.rows[0], first);
  assert.equal(sub.rows, sub.rows, "without a change the array is the same");
  sub.close();
  assert.equal(sub.isEnded, true);
});

test("an iterator begins with the result, and ends with its subscription", async () => {
  const id = await newSession();
  const sql = "SELECT id, content FROM agent_state WHERE session_id = :id ORDER BY id";
  const sub = await client.subscribe<{ content: string }>(sql, { id });
  const seen: string[] = [];
  for (let n = 0; n < 3; n += 1) {
    void client.call.append_message({ session_id: id, role: "user", content: String(n) });
  }
  for await (const { inserts, reset } of sub) {
    assert.equal(reset, seen.length === 0 && inserts.length === 0);
    seen.push(...inserts.map(({ content }) => content));
    if (seen.length === 3) break;
  }
  assert.deepEqual(seen, ["0", "1", "2"]);
  const next = sub[Symbol.asyncIterator]();
  assert.equal((await next.next()).value?.inserts.length, 3);
  const end = next.next();
  sub.close();
  assert.equal((await end).done, true);
});

test("an iterator that is read slowly gets the changes of that time as one update", async () => {
  const id = await newSession();
  const sql = "SELECT id, content FROM agent_state WHERE session_id = :id ORDER BY id";
  const sub = await client.subscribe(sql, { id });
  const changesOnly = await client.subscribe<{ id: number }>(sql, { id }, { after: sub.seq });
  const all = sub[Symbol.asyncIterator]();
  const changes = changesOnly[Symbol.asyncIterator]();
  const count = 700;
  for (let n = 0; n < count; n += 1) {
    void client.call.append_message({ session_id: id, role: "user", content: String(n) });
  }
  await until("all rows", () => sub.size === count, updated(sub));
  const rows: SqlRow[] = [];
  let steps = 0;
  while (rows.length < count) {
    const { value } = await within("an update", all.next());
    rows.push(...(value?.inserts ?? []));
    steps += 1;
  }
  assert.ok(steps < count / 2, `${steps} steps`);
  assert.deepEqual(rows, sub.rows);
  const ids: number[] = [];
  while (ids.length < count) {
    const { value } = await within("changes", changes.next());
    ids.push(...(value?.inserts ?? []).map((row) => row.id));
  }
  assert.deepEqual(
    ids,
    sub.rows.map((row) => row["id"]),
  );
  sub.close();
  changesOnly.close();
});

test("an aborted request or subscription rejects with the reason of the signal", async () => {
  const reason = new Error("enough");
  await assert.rejects(client.sql("SELECT 1", {}, { signal: AbortSignal.abort(reason) }), reason);
  await assert.rejects(
    client.subscribe("SELECT id FROM sessions", {}, { signal: AbortSignal.abort(reason) }),
    reason,
  );
  const controller = new AbortController();
  const { signal } = controller;
  const pending = client.call.create_session({ agent: "a" }, { signal });
  const subscribing = client.subscribe("SELECT id FROM timers", {}, { signal });
  controller.abort(reason);
  await assert.rejects(pending, reason);
  await assert.rejects(subscribing, reason);
  const later = new AbortController();
  const sub = await client.subscribe("SELECT id FROM timers", {}, { signal: later.signal });
  later.abort();
  assert.equal(sub.isEnded, true);
});

/** They ran to the limit of ten seconds, and the other queries of the caller waited for them. */
test("an aborted query, and one whose deadline passes, frees its reader", async () => {
  const endless = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
  const reason = new Error("enough");
  const controller = new AbortController();
  const aborted = assert.rejects(client.sql(endless, {}, { signal: controller.signal }), reason);
  const late = assert.rejects(client.sql(endless, {}, { deadlineMs: 200 }), code("timed_out"));
  // The queries of a caller begin in order, and two of them run at a time.
  await late;
  await within("the first reader", client.sql("SELECT 1"), 4_000);
  const other = client.sql(endless, {}, { signal: controller.signal }).catch((error: unknown) => error);
  const waiting = client.sql("SELECT 2");
  controller.abort(reason);
  await aborted;
  await within("both readers", Promise.all([waiting, client.sql("SELECT 3")]), 4_000);
  assert.equal(await other, reason);
});

test("a request without an answer times out with its request id, and a retry with that id is safe", async () => {
  const silent = createServer(() => {}).listen(0, "127.0.0.1");
  await once(silent, "listening");
  const proxy = await Proxy.to(() => server.port);
  const one = await Abide.connect(proxy.url);
  proxy.silence();
  const error = await one.call.create_session({ agent: "a" }, { deadlineMs: 100 }).then(
    () => assert.fail("an answer"),
    (reason: unknown) => reason as AbideError,
  );
  assert.ok(isAbideError(error, "timed_out") && error.hint !== undefined && error.requestId !== undefined);
  const { duplicate } = await client.request(
    "create_session",
    { agent: "a" },
    { requestId: error.requestId },
  );
  assert.equal(typeof duplicate, "boolean");
  await assert.rejects(one.subscribe("SELECT 1", {}, { deadlineMs: 50 }), code("timed_out"));
  await one.close();
  await assert.rejects(one.call.create_session({ agent: "a" }), code("closed"));
  await assert.rejects(one.subscribe("SELECT 1"), code("closed"));
  proxy.close();
  silent.close();
});

test("addresses and unreachable servers have codes and hints", async () => {
  for (const url of ["", "localhost:7341", "ftp://a", "http://a?token=1", "http://me@a"]) {
    await assert.rejects(
      Abide.connect(url),
      (error) => isAbideError(error, "bad_address") && error.hint !== undefined,
    );
  }
  const unused = createServer().listen(0, "127.0.0.1");
  await once(unused, "listening");
  const { port } = unused.address() as AddressInfo;
  unused.close();
  await assert.rejects(
    Abide.connect(`http://127.0.0.1:${port}`),
    (error) => isAbideError(error, "unreachable") && error.hint !== undefined,
  );
});

/** A laptop or a tab that slept: the connection is open, but nothing passes any more. */
test("a connection that went silent is made again, and the subscription has every change", async () => {
  const proxy = await Proxy.to(() => server.port);
  const one = await Abide.connect(proxy.url, { heartbeat: { pingMs: 50, pongMs: 50 } });
  const id = await newSession();
  const sub = await one.subscribe("SELECT content FROM agent_state WHERE session_id = :id", { id });
  const lost = new Promise<string>((resolve) => one.on("lost", resolve));
  proxy.silence();
  await client.call.append_message({ session_id: id, role: "user", content: "while asleep" });
  assert.match(await within("the loss", lost), /silent/);
  await until("the change", () => sub.size === 1, updated(sub));
  assert.equal(one.reconnects, 1);
  assert.equal(sub.mismatches, 0);
  await one.close();
  proxy.close();
});

test("a connection that is cut again and again loses and repeats nothing", async () => {
  const proxy = await Proxy.to(() => server.port);
  const one = await Abide.connect(proxy.url);
  const id = await newSession();
  const sub = await one.subscribe<{ content: string }>(
    "SELECT id, content FROM agent_state WHERE session_id = :id ORDER BY id",
    { id },
  );
  const seen: string[] = [];
  sub.on("update", ({ inserts }) => seen.push(...inserts.map(({ content }) => content)));
  const expected = Array.from({ length: 60 }, (_, n) => String(n));
  for (const content of expected) {
    const call = one.call.append_message({ session_id: id, role: "user", content });
    if (Number(content) % 10 === 5) proxy.cut();
    if (Number(content) % 20 === 9) proxy.loseAnswer();
    await within("the call", call);
  }
  await until("all", () => seen.length === expected.length, updated(sub));
  assert.deepEqual(seen, expected);
  assert.deepEqual(
    sub.rows.map(({ content }) => content),
    expected,
  );
  assert.equal(one.mismatches, 0);
  await one.close();
  proxy.close();
});

test("the listener of an update can end the subscription", async () => {
  const id = await newSession();
  const sub = await client.subscribe("SELECT id FROM agent_state WHERE session_id = :id", { id });
  const ended = new Promise((resolve) => sub.on("end", resolve));
  sub.on("update", () => sub.close());
  await client.call.append_message({ session_id: id, role: "user", content: "x" });
  assert.equal(await within("the end", ended), undefined);
});

test("results of a megabyte and of many rows arrive whole", async () => {
  const id = await newSession();
  const content = "é".repeat(500_000);
  const sub = await client.subscribe("SELECT id, content FROM agent_state WHERE session_id = :id", { id });
  await client.call.append_message({ session_id: id, role: "user", content });
  await until("the row", () => sub.size === 1, updated(sub));
  assert.equal(sub.rows[0]?.["content"], content);
  const numbers = `WITH d(x) AS (VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9))
    SELECT a.x + 10 * b.x + 100 * c.x + 1000 * e.x AS n FROM d a, d b, d c, d e ORDER BY n`;
  const { rows } = await client.sql<{ n: number }>(numbers);
  assert.deepEqual(
    rows.map(({ n }) => n),
    Array.from({ length: 10_000 }, (_, n) => n),
  );
  sub.close();
});
