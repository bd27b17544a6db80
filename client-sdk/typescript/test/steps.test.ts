/** Durable steps: tools that run once, approvals, handoffs, timers, workers and supervisors. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";

import {
  Abide,
  AbideError,
  isAbideError,
  Rejected,
  Retryable,
  ToolFailed,
  UnknownOutcome,
} from "@abide/client";

import { Proxy } from "./proxy.js";
import { Server } from "./server.js";
import { until, within } from "./within.js";

let server: Server;
let client: Abide;

before(async () => {
  server = await Server.start();
  client = await Abide.connect(server.url);
});

after(async () => {
  await client.close();
  await server.stop();
});

const quiet = { onProblem: () => {} };

test("a step runs once, and its repetition returns what was recorded", async () => {
  const session = await client.session({ agent: "a" });
  let runs = 0;
  const step = () =>
    session.tool(
      "pay",
      { order: 7 },
      {
        key: "pay",
        effect: "at_most_once",
        run: (args, { callId, attempt, sessionId }) => {
          runs += 1;
          return { args, callId, attempt, sessionId };
        },
      },
    );
  const first = await step();
  assert.deepEqual(first, {
    args: { order: 7 },
    callId: `${session.id}/pay`,
    attempt: 1,
    sessionId: session.id,
  });
  assert.deepEqual(await step(), first);
  assert.equal(runs, 1);
  const other = session.tool("pay", { order: 8 }, { key: "pay", run: () => 1 });
  await assert.rejects(other, (error) => isAbideError(error, "call_id_conflict"));
});

test("two programs that run the same step at the same time run it once", async () => {
  const id = (await client.session({ agent: "a" })).id;
  const two = await Abide.connect(server.url);
  let runs = 0;
  const step = async (one: Abide) => {
    const session = await one.session({ agent: "a", id });
    return await session.tool("pay", null, {
      key: "k",
      effect: "at_most_once",
      run: async () => (runs += 1),
    });
  };
  assert.deepEqual(await Promise.all([step(client), step(two)]), [1, 1]);
  assert.equal(runs, 1);
  await two.close();
});

test("a failure is recorded, and a retryable one is tried again", async () => {
  const session = await client.session({ agent: "a" });
  const failing = (run: () => unknown) =>
    session.tool("pay", {}, { key: "fails", effect: "at_most_once", run });
  const refused = new Error("refused by the bank");
  await assert.rejects(
    failing(() => {
      throw refused;
    }),
    refused,
  );
  const repeated: unknown = await failing(() => "not run").catch((error: unknown) => error);
  assert.ok(repeated instanceof ToolFailed && repeated.code === "tool_failed");
  assert.deepEqual([repeated.status, repeated.error], ["failed", "refused by the bank"]);
  let attempts = 0;
  const run = () => {
    attempts += 1;
    if (attempts === 1) throw new Retryable("busy");
    return attempts;
  };
  assert.equal(await session.tool("pay", {}, { key: "retries", run }), 2);
  await client.call.register_tool({ name: "once", effect: "read_only", retry: { max_attempts: 1 } });
  const exhausted = session.tool(
    "once",
    {},
    {
      key: "once",
      run: () => {
        throw new Retryable("busy");
      },
    },
  );
  await assert.rejects(exhausted, (error) => error instanceof ToolFailed && error.error === "busy");
});

test("a tool without a result, and one with integers of 64 bits, are recorded exactly", async () => {
  const session = await client.session({ agent: "a" });
  const nothing = () =>
    session.tool("pay", undefined, { key: "nothing", effect: "at_most_once", run: () => {} });
  await assert.rejects(nothing(), (error) => isAbideError(error, "bad_arguments"), "arguments are required");
  const large = () =>
    session.tool<unknown, unknown>(
      "pay",
      { n: 9223372036854775807n },
      { key: "large", effect: "at_most_once", run: (args: unknown) => args },
    );
  assert.deepEqual(
    [await large(), await large()],
    [{ n: 9223372036854775807n }, { n: 9223372036854775807n }],
  );
});

test("the lease of a worker that vanished leads to an unknown outcome, which is settled", async () => {
  const session = await client.session({ agent: "a" });
  await client.call.register_tool({ name: "pay", effect: "at_most_once" });
  const call_id = session.callId("k");
  await client.call.request_tool_call({ call_id, session_id: session.id, tool_name: "pay", arguments: {} });
  await client.call.claim_tool_call({ call_id, lease_ms: 50, worker: "vanished" });
  const step = () => session.tool("pay", {}, { key: "k", run: () => "again" });
  const error: unknown = await within(
    "the outcome",
    step().catch((reason: unknown) => reason),
  );
  assert.ok(error instanceof UnknownOutcome && error.callId === call_id && error.toolName === "pay");
  assert.ok(error.hint?.includes("settle_tool_call"));
  await client.call.settle_tool_call({ call_id, outcome: "succeeded", result: "paid" });
  assert.equal(await step(), "paid");
});

test("heartbeats extend the lease, and a cancelled call stops its tool", async () => {
  const session = await client.session({ agent: "a" });
  const slow = await session.tool(
    "slow",
    {},
    {
      key: "slow",
      effect: "at_most_once",
      leaseMs: 600,
      run: async (_args, { callId }) => {
        const sql = "SELECT lease_expires_at FROM tool_calls WHERE call_id = :id";
        const lease = await client.subscribe(sql, { id: callId });
        const ends = new Set<string>();
        await until(
          "two heartbeats",
          () => ends.add(String(lease.rows[0]?.["lease_expires_at"])).size > 2,
          (changed) => lease.on("update", changed),
        );
        lease.close();
        return "done";
      },
    },
  );
  assert.equal(slow, "done");
  const cancelled = session.tool(
    "slow",
    {},
    {
      key: "cancelled",
      leaseMs: 150,
      run: async (_args, { signal, callId }) => {
        await client.call.cancel_tool_call({ call_id: callId });
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
      },
    },
  );
  await assert.rejects(
    within("the end", cancelled),
    (error) => error instanceof ToolFailed && error.code === "tool_cancelled",
  );
});

test("a tool that needs an approval waits for the decision, and runs with the approved arguments", async () => {
  const session = await client.session({ agent: "a" });
  const step = session.tool(
    "wire",
    { euros: 100 },
    { key: "k", effect: "at_most_once", needsApproval: true, run: (args) => args },
  );
  const pending = await client.subscribe(
    "SELECT call_id FROM approvals WHERE status = 'pending' AND session_id = :id",
    { id: session.id },
  );
  await until(
    "the request",
    () => pending.size === 1,
    (changed) => pending.on("update", changed),
  );
  const call_id = session.callId("k");
  await client.call.decide_approval({ call_id, decision: "approve", approved_arguments: { euros: 50 } });
  assert.deepEqual(await within("the step", step), { euros: 50 });
  const rejected = session
    .tool("wire", {}, { key: "no", needsApproval: true, run: () => 1 })
    .catch((error: unknown) => error);
  await until(
    "the request",
    () => pending.size === 1,
    (changed) => pending.on("update", changed),
  );
  await client.call.decide_approval({
    call_id: session.callId("no"),
    decision: "reject",
    comment: "too much",
  });
  assert.ok(isAbideError(await within("the step", rejected), "tool_rejected"));
  pending.close();
});

test("an approval of its own is recorded under its key", async () => {
  const session = await client.session({ agent: "a" });
  const ask = () => session.approval("Refund 40 euros?", { euros: 40 }, { key: "ask" });
  const first = ask();
  const pending = await client.subscribe("SELECT id FROM approvals WHERE session_id = :id", {
    id: session.id,
  });
  await until(
    "the request",
    () => pending.size === 1,
    (changed) => pending.on("update", changed),
  );
  await client.call.decide_approval({ call_id: session.callId("ask"), decision: "approve", comment: "fine" });
  const expected = { approved: true, args: { euros: 40 }, decidedBy: "local", comment: "fine" };
  const decision = await within("the decision", first);
  assert.deepEqual({ ...decision, decidedBy: "local" }, expected);
  assert.deepEqual(await ask(), decision);
  pending.close();
});

test("messages with a key are appended once, and timers fire once", async () => {
  const session = await client.session({ agent: "a", id: "timed", title: "t", metadata: { a: 1 } });
  const again = await client.session({ agent: "a", id: "timed" });
  const number = await session.message("user", "hello", { key: "hello", data: { b: [1] } });
  assert.equal(await again.message("user", "hello", { key: "hello", data: { b: [1] } }), number);
  assert.deepEqual(
    (await session.messages()).map(({ content, data }) => [content, data]),
    [["hello", '{"b":[1]}']],
  );
  const due = Date.now() + 150;
  await session.sleepUntil(new Date(due), { key: "z" });
  assert.ok(Date.now() >= due - 1);
  await again.sleepUntil(new Date(due + 1e9), { key: "z" });
  const aborted = session.sleepUntil(new Date(due + 1e9), { key: "long", signal: AbortSignal.timeout(50) });
  await assert.rejects(aborted, { name: "TimeoutError" });
  await session.complete({ ok: true });
});

test("a worker runs calls of its tools, with concurrency, and stops gracefully", async () => {
  for (const name of ["add", "boom"]) await client.call.register_tool({ name, effect: "read_only" });
  const session = await client.session({ agent: "a" });
  const worker = client.worker({ name: "w1", ...quiet });
  let [running, most] = [0, 0];
  let allRun = () => {};
  const together = new Promise<void>((resolve) => (allRun = resolve));
  const serving = worker.serve(
    {
      add: async ({ n }: { n: number }) => {
        running += 1;
        most = Math.max(most, running);
        if (running === 3) allRun();
        await together;
        await client.sql("SELECT 1");
        running -= 1;
        return n + 1;
      },
      boom: () => {
        throw new Error("boom");
      },
    },
    { concurrency: 3 },
  );
  const count = 20;
  const done = await client.subscribe(
    "SELECT call_id, status, result, error, claimed_by FROM tool_calls WHERE session_id = :id AND status IN ('succeeded', 'failed') ORDER BY call_id",
    { id: session.id },
  );
  const request = (key: string, tool_name: string, n: number) =>
    client.call.request_tool_call({
      call_id: session.callId(key),
      session_id: session.id,
      tool_name,
      arguments: { n },
    });
  await Promise.all(Array.from({ length: count }, (_, n) => request(`c${n + 10}`, "add", n)));
  await request("d", "boom", 0);
  await until(
    "all results",
    () => done.size === count + 1,
    (changed) => done.on("update", changed),
  );
  assert.deepEqual(
    done.rows.slice(0, 2).map((row) => [row["result"], row["claimed_by"]]),
    [
      ["1", "w1"],
      ["2", "w1"],
    ],
  );
  assert.deepEqual([done.rows[count]?.["status"], done.rows[count]?.["error"]], ["failed", "boom"]);
  assert.equal(most, 3);
  const last = request("e", "add", 41);
  await last;
  await until(
    "the last result",
    () => done.size === count + 2,
    (changed) => done.on("update", changed),
  );
  worker.stop();
  await within("the end of the worker", serving);
  done.close();
});

test("a worker finishes what runs when it is stopped, and ends with the client's error", async () => {
  await client.call.register_tool({ name: "hold", effect: "read_only" });
  const session = await client.session({ agent: "a" });
  const worker = client.worker(quiet);
  const started = new Promise<void>((resolve) => {
    const hold = async () => {
      resolve();
      worker.stop();
      await client.sql("SELECT 1");
      return "finished";
    };
    void worker.serve({ hold }).then(() => {});
  });
  const args = { session_id: session.id, tool_name: "hold", arguments: {} };
  await client.call.request_tool_call({ call_id: session.callId("k"), ...args });
  await within("the start", started);
  assert.equal(await session.tool("hold", {}, { key: "k", run: () => "here" }), "finished");
  const other = await Abide.connect(server.url);
  const ended = other
    .worker(quiet)
    .serve({ hold: () => 1 })
    .catch((error: unknown) => error);
  await other.sql("SELECT 1");
  await other.close();
  assert.ok(isAbideError(await within("the end", ended), "closed"));
});

test("a tool goes on while the server restarts, and its outcome is reported after the deadline too", async () => {
  const own = await Server.start();
  const [patient, hasty] = [await Abide.connect(own.url), await Abide.connect(own.url, { deadlineMs: 300 })];
  await patient.call.register_tool({ name: "pay", effect: "at_most_once" });
  const session = await patient.session({ agent: "a" });
  const runs: string[] = [];
  const [started, go] = [new Map<string, () => void>(), new Map<string, () => void>()];
  const worker = hasty.worker({ ...quiet, leaseMs: 6_000 });
  const serving = worker.serve({
    pay: async (name: string) => {
      runs.push(name);
      started.get(name)?.();
      await new Promise<void>((resolve) => go.set(name, resolve));
      return name;
    },
  });
  for (const name of ["first", "second"]) {
    const begun = new Promise<void>((resolve) => started.set(name, resolve));
    const call = { call_id: session.callId(name), session_id: session.id, tool_name: "pay" };
    await patient.call.request_tool_call({ ...call, arguments: name });
    await within("the start", begun);
  }
  await own.terminate();
  go.get("first")?.();
  // The deadline of the report begins before that of the query.
  await assert.rejects(hasty.sql("SELECT 1"), (error) => isAbideError(error, "timed_out"));
  await own.start();
  const ended = await patient.subscribe(
    "SELECT status, attempt FROM tool_calls WHERE status <> 'claimed' ORDER BY call_id",
  );
  const changed = (notice: () => void) => ended.on("update", notice);
  await until("the first outcome", () => ended.size === 1, changed);
  go.get("second")?.();
  await until("the second outcome", () => ended.size === 2, changed);
  assert.deepEqual(ended.rows, [
    { status: "succeeded", attempt: 1 },
    { status: "succeeded", attempt: 1 },
  ]);
  worker.stop();
  await within("the end of the worker", serving);
  assert.deepEqual(runs, ["first", "second"]);
  for (const one of [patient, hasty]) await one.close();
  await own.stop();
});

test("a claim whose answer is lost is not repeated, and a tool that is not registered holds up no other", async () => {
  const own = await Server.start();
  const direct = await Abide.connect(own.url);
  const proxy = await Proxy.to(() => own.port);
  const other = await Abide.connect(proxy.url);
  await direct.call.register_tool({ name: "pay", effect: "at_most_once" });
  const session = await direct.session({ agent: "a" });
  const runs: number[] = [];
  const worker = other.worker(quiet);
  const serving = worker.serve({ absent: () => 0, pay: (n: number) => runs.push(n) });
  await until(
    "the subscriptions",
    () => other.subscriptionCount === 2,
    (notice) => {
      const timer = setInterval(notice, 10);
      return () => clearInterval(timer);
    },
  );
  const request = other.request.bind(other);
  other.request = (reducer, ...rest) => {
    if (reducer === "claim_next_tool_call") {
      other.request = request;
      proxy.loseAnswer();
    }
    return request(reducer, ...rest);
  };
  const calls = await direct.subscribe("SELECT status, attempt FROM tool_calls");
  const call = { call_id: session.callId("k"), session_id: session.id, tool_name: "pay", arguments: 1 };
  await direct.call.request_tool_call(call);
  await until(
    "the outcome",
    () => calls.rows[0]?.["status"] === "succeeded",
    (notice) => calls.on("update", notice),
  );
  worker.stop();
  await within("the end of the worker", serving);
  assert.deepEqual([runs, calls.rows], [[1], [{ status: "succeeded", attempt: 1 }]]);
  // The lease is renewed before the tool runs: it might have expired since.
  const renewals = await direct.sql("SELECT count(*) AS n FROM events WHERE reducer = 'heartbeat_tool_call'");
  assert.deepEqual(renewals.rows, [{ n: 1 }]);
  for (const one of [direct, other]) await one.close();
  proxy.close();
  await own.stop();
});

test("a supervisor resolves, rejects and releases handoffs", async () => {
  const supervisor = client.supervisor(quiet);
  const tries = new Map<string, number>();
  const serving = supervisor.serve("refunds", async ({ reason, data, sessionId }) => {
    tries.set(reason, (tries.get(reason) ?? 0) + 1);
    if (reason === "no") throw new Rejected("not possible");
    if (reason === "bug") throw new Error("bug");
    return `${reason} ${JSON.stringify(data)} ${sessionId}`;
  });
  const hand = async (reason: string, options = {}) => {
    const session = await client.session({ agent: "a" });
    return [
      await within("the answer", session.handoff(reason, "refunds", { key: "h", ...options })),
      session,
    ] as const;
  };
  const [yes, session] = await hand("yes", { data: { order: 7 } });
  assert.deepEqual(yes, { status: "resolved", text: `yes {"order":7} ${session.id}` });
  assert.deepEqual(await session.handoff("yes", "refunds", { key: "h", data: { order: 7 } }), yes);
  assert.deepEqual((await hand("no"))[0], { status: "rejected", text: "not possible" });
  const [bug] = await hand("bug", { expiresAfterMs: 300 });
  assert.equal(bug.status, "expired");
  assert.equal(tries.get("bug"), 1);
  supervisor.stop();
  await within("the end of the supervisor", serving);
});

test("a worker whose token is revoked ends with that error", async () => {
  const tokens = [
    { name: "root", identity: "root", role: "admin", capabilities: ["*"] },
    { name: "worker", identity: "w", role: "worker" },
  ];
  const { server: guarded, tokens: made } = await Server.withTokens(tokens);
  const connect = (name: string) => Abide.connect(guarded.url, { token: made.get(name) ?? "" });
  const [root, other] = [await connect("root"), await connect("worker")];
  const worker = other
    .worker(quiet)
    .serve({ pay: () => 1 })
    .catch((error: unknown) => error);
  await other.sql("SELECT 1");
  await root.call.revoke_token({ id: made.get("worker")?.split("_")[1] ?? "" });
  const error = await within("the end", worker);
  assert.ok(error instanceof AbideError && error.code === "unauthenticated", String(error));
  await root.close();
  await guarded.stop();
});

test("the crash test of the examples passes: programs are killed in the middle of a tool", async () => {
  const program = join(import.meta.dirname, "../../examples/crash-test/crash-test.mjs");
  const { stdout } = await promisify(execFile)(process.execPath, [program]);
  assert.ok(stdout.endsWith("nothing ran twice by accident\n"), stdout);
});
