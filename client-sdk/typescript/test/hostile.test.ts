/** A server that is malformed or hostile: every message ends in an error with a code, and costs little. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Abide, AbideError, isAbideError, writeJson } from "@abide/client";
import { FrameReader, type Message } from "#dist/platform/frames.js";

import { ScriptPeer } from "./script-peer.js";
import { Server } from "./server.js";
import { within } from "./within.js";

const unhandled: unknown[] = [];
process.on("unhandledRejection", (reason) => unhandled.push(reason));

let server: Server;
before(async () => {
  server = await Server.start();
});
after(async () => {
  await server.stop();
  assert.deepEqual(unhandled, [], "no promise was rejected without a handler");
});

/** A client of a server that answers each request with this text, in which `ID` is the id of the request. */
async function against(answer: string, use: (client: Abide) => Promise<unknown>): Promise<unknown> {
  const peer = await ScriptPeer.listen();
  const accepted = peer.accept({ seq: 1, timeline: "t" });
  const client = await Abide.connect(peer.url, { onMismatch: () => {}, deadlineMs: 5_000 });
  await accepted;
  const outcome = use(client).catch((error: unknown) => error);
  const { id } = await peer.hear(({ op }) => op !== "ping");
  peer.sayText(answer.replaceAll("ID", String(id)));
  const error = await within(answer, outcome);
  await client.close();
  peer.close();
  return error;
}

const CALL = (client: Abide) => client.call.create_session({ agent: "a" });
const BATCH = (client: Abide) =>
  client.batch([{ reducer: "create_session", args: { agent: "a" } }]);
const SQL = (client: Abide) => client.sql("SELECT 1");
const SUBSCRIBE = (client: Abide) => client.subscribe("SELECT 1");
const CHANGES = (client: Abide) => client.subscribe("SELECT 1", {}, { after: 0 });

test("a malformed answer is the error protocol", async () => {
  const session = (client: Abide) => client.session({ agent: "a", id: "s1" });
  const cases: [(client: Abide) => Promise<unknown>, string][] = [
    [CALL, "nothing"],
    [CALL, "null"],
    [CALL, "[]"],
    [CALL, '{"op":7,"id":"ID"}'],
    [CALL, '{"op":"result","id":{},"seq":1}'],
    [CALL, '{"op":"result","id":"ID"}'],
    [CALL, '{"op":"result","id":"ID","seq":{"a":1},"result":[1]}'],
    [CALL, '{"op":"result","id":"ID","seq":-1,"result":1}'],
    [CALL, `{"op":"result","id":"ID","seq":${"9".repeat(6000)},"result":1}`],
    [CALL, `{"op":"result","id":"ID","seq":1,"result":${"[".repeat(5000)}${"]".repeat(5000)}}`],
    [CALL, `{"op":"result","id":"ID","seq":1,"result":${"[".repeat(5000)}1.5${"]".repeat(5000)}}`],
    [session, '{"op":"result","id":"ID","seq":1,"result":null}'],
    [session, '{"op":"result","id":"ID","seq":1,"result":{"id":7}}'],
    [BATCH, '{"op":"result","id":"ID","seq":1,"results":7}'],
    [BATCH, '{"op":"result","id":"ID","seq":1,"results":[null]}'],
    [BATCH, '{"op":"result","id":"ID","seq":1,"results":[]}'],
    [SQL, '{"op":"result","id":"ID","seq":1,"result":{}}'],
    [SQL, '{"op":"rows","id":"ID","seq":1,"columns":7,"rows":[]}'],
    [SQL, '{"op":"rows","id":"ID","seq":1,"columns":[null],"rows":[]}'],
    [SQL, '{"op":"rows","id":"ID","seq":1,"columns":["a"],"rows":{"length":1}}'],
    [SQL, '{"op":"rows","id":"ID","seq":1,"columns":["a"],"rows":[7]}'],
    [SQL, '{"op":"rows","id":"ID","seq":1,"columns":["a"],"rows":[[]]}'],
    [SQL, '{"op":"rows","id":"ID","seq":1,"columns":["a"],"rows":[[{"$blob":"%"}]]}'],
    [SQL, '{"op":"rows","id":"ID","seq":1,"columns":["a"],"rows":[[[]]]}'],
    [SUBSCRIBE, '{"op":"snapshot","id":"ID","seq":1,"columns":[{"name":7}],"rows":[]}'],
    [SUBSCRIBE, '{"op":"snapshot","id":"ID","seq":1,"columns":["a"],"key":[null],"rows":[]}'],
    [SUBSCRIBE, '{"op":"snapshot","id":"ID","seq":1,"columns":["a"],"order":[{"index":-1}],"rows":[]}'],
    [SUBSCRIBE, '{"op":"snapshot","id":"ID","seq":1,"columns":["a"],"rows":[{}]}'],
    [SUBSCRIBE, '{"op":"delta","from":0,"to":1,"changes":[null]}'],
    [SUBSCRIBE, '{"op":"delta","from":"0","to":1,"changes":[]}'],
    [CHANGES, '{"op":"delta","from":0,"to":1,"changes":[{"id":"ID","inserts":[{"at":-1,"row":[]}]}]}'],
    [CHANGES, '{"op":"delta","from":0,"to":1,"changes":[{"id":"ID","deletes":[null]}]}'],
  ];
  for (const [use, answer] of cases) {
    const error = await against(answer, use);
    assert.ok(isAbideError(error, "protocol"), `${answer.slice(0, 100)}: ${String(error)}`);
  }
});

test("a client that a malformed message has ended says so, and a deep value ends no client", async () => {
  const again = async (client: Abide) => {
    await CALL(client).catch(() => {});
    return await Promise.all([CALL(client), SUBSCRIBE(client)].map((one) => one.catch((error) => error)));
  };
  const errors = (await against('{"op":"progress","seq":"x"}', again)) as AbideError[];
  assert.deepEqual(
    errors.map(({ code }) => code),
    ["protocol", "protocol"],
  );
  const deep = `{"op":"result","id":"ID","seq":1,"result":${"[".repeat(5000)}${"]".repeat(5000)}}`;
  const stillOpen = async (client: Abide) => {
    await assert.rejects(CALL(client), (error) => isAbideError(error, "protocol"));
    return client.isConnected;
  };
  assert.equal(await against(deep, stillOpen), true);
});

test("a refusal with fields of other types is still a refusal", async () => {
  const cases = ['"code":"bad_sql","detail":{"a":1},"hint":[]', '"code":"bad_sql","retry_after_ms":"abc"'];
  for (const fields of cases) {
    const error = await against(`{"op":"error","id":"ID",${fields}}`, SQL);
    assert.ok(isAbideError(error, "bad_sql") && error.hint === undefined, String(error));
    assert.equal(error.retryAfterMs, undefined);
  }
  const unnamed = await against('{"op":"error","id":"ID","code":7}', SUBSCRIBE);
  assert.ok(isAbideError(unnamed, "internal"));
});

/** A server that is none decides how long its texts are, and programs print them. */
test("a long refusal is a short error", async () => {
  const long = "x".repeat(20_000);
  const error = await against(`{"op":"error","id":"ID","code":"bad_sql","detail":"${long}","hint":"${long}"}`, SQL);
  assert.ok(isAbideError(error, "bad_sql"), String(error));
  assert.ok(error.message.endsWith("x … (18000 more characters)"), error.message);
  assert.ok((error.hint ?? "").length < 2_100);
});

test("a value with too many levels is refused before it is sent", () => {
  let deep: unknown = 1;
  for (let level = 0; level < 20_000; level += 1) deep = [deep];
  assert.throws(
    () => writeJson(deep),
    (error) => isAbideError(error, "bad_arguments"),
  );
});

/** An assignment to this name would set the prototype of the row. */
test("a column named __proto__ is a column", async () => {
  const client = await Abide.connect(server.url);
  const { rows } = await client.sql<Record<string, unknown>>(
    `SELECT x'6869' AS "__proto__", 1 AS "constructor", :__proto__ AS p`,
    JSON.parse('{"__proto__":7}'),
  );
  const [row] = rows as [Record<string, unknown>];
  assert.deepEqual(Object.keys(row), ["__proto__", "constructor", "p"]);
  assert.equal(Object.getPrototypeOf(row), Object.prototype);
  assert.deepEqual([row["__proto__"], row["constructor"], row["p"]], [new Uint8Array([0x68, 0x69]), 1, 7]);
  await client.call.create_session({ agent: "a", id: "proto" });
  const sub = await client.subscribe(`SELECT id AS "__proto__" FROM sessions WHERE id = 'proto'`);
  assert.deepEqual(Object.entries(sub.rows[0] ?? {}), [["__proto__", "proto"]]);
  const key = JSON.parse('{"__proto__":{"polluted":true}}') as Record<string, unknown>;
  const { result } = await client.request("append_message", {
    session_id: "proto",
    role: "user",
    content: null,
    data: key,
  });
  const stored = await client.sql<{ data: string }>("SELECT data FROM agent_state WHERE id = :id", {
    id: result.id,
  });
  assert.equal(stored.rows[0]?.data, '{"__proto__":{"polluted":true}}');
  assert.equal(({} as { polluted?: unknown }).polluted, undefined);
  await client.close();
});

const fragment = (opcode: number, isLast: boolean, payload: string): Buffer =>
  Buffer.concat([Buffer.from([(isLast ? 0x80 : 0) | opcode, payload.length]), Buffer.from(payload)]);

/** The memory of the process, in bytes. */
function held(): number {
  globalThis.gc?.();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

/** Each fragment used to be a `Buffer` of its own: four million bytes of empty ones took 270 MB. */
test("fragments and small parts take no more memory than their bytes", () => {
  const none = () => assert.fail("the message has not ended");
  for (const payload of ["", "x"]) {
    const many = Buffer.concat(Array<Buffer>(20_000).fill(fragment(0, false, payload)));
    const [reader, before] = [new FrameReader(), held()];
    reader.push(fragment(1, false, "{"), none);
    for (let part = 0; part < 50; part += 1) reader.push(many, none);
    const grown = held() - before;
    assert.ok(grown < 8 << 20, `a million fragments of ${payload.length} bytes hold ${grown} bytes`);
    const messages: Message[] = [];
    reader.push(fragment(0, true, "}"), (message) => messages.push(message));
    assert.equal(messages[0]?.payload.toString(), `{${payload.repeat(1_000_000)}}`);
  }
  const large = Buffer.from([0x81, 127, 0, 0, 0, 0, 0, 0x10, 0, 0]);
  const [reader, before] = [new FrameReader(), held()];
  reader.push(large, none);
  for (let at = 0; at < 200_000; at += 1) reader.push(Buffer.from([0x20]), none);
  const grown = held() - before;
  assert.ok(grown < 4 << 20, `200,000 parts of one byte hold ${grown} bytes`);
});

test("messages are the same however their bytes are cut", () => {
  const text = "é".repeat(40_000);
  const payload = Buffer.from(text);
  const long = Buffer.concat([Buffer.from([0x81, 127, 0, 0, 0, 0, 0, 1, 0x38, 0x80]), payload]);
  assert.equal(payload.length, 0x13880);
  const bytes = Buffer.concat([
    fragment(1, true, "a"),
    fragment(1, false, "b"),
    fragment(9, true, "ping"),
    fragment(0, false, ""),
    fragment(0, true, "c"),
    long,
    fragment(1, false, ""),
    fragment(0, true, ""),
    fragment(1, true, "d"),
  ]);
  const expected = [[1, "a"], [9, "ping"], [1, "bc"], [1, text], [1, ""], [1, "d"]];
  for (const size of [1, 2, 3, 7, 1000, 65_536, bytes.length]) {
    const [reader, messages] = [new FrameReader(), [] as [number, string][]];
    for (let at = 0; at < bytes.length; at += size) {
      reader.push(bytes.subarray(at, at + size), ({ opcode, payload: part }) =>
        messages.push([opcode, part.toString()]),
      );
    }
    assert.deepEqual(messages, expected, `parts of ${size} bytes`);
  }
  for (const wrong of [fragment(0, true, "x"), Buffer.concat([fragment(1, false, ""), fragment(1, true, "")])]) {
    assert.throws(() => new FrameReader().push(wrong, () => {}), /out of order/);
  }
});
