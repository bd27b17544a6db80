/**
 * Wrong arguments of a program are refused at once, and nothing is written. The server closes a connection
 * with a message that it cannot read, so a text with half of a surrogate pair was sent again and again until
 * the deadline, and the result of a tool that must not run twice was lost. A step without a key had the key
 * "undefined", which it shared with all others.
 */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { inspect } from "node:util";

import { Abide, AbideError, isAbideError, ToolFailed, UnknownOutcome } from "@abide/client";

import { tlsHint } from "#dist/tls.js";

import { Server } from "./server.js";
import { until, within } from "./within.js";

let server: Server;
let client: Abide;

before(async () => {
  server = await Server.start();
  client = await Abide.connect(server.url, { deadlineMs: 10_000 });
});

after(async () => {
  assert.equal(client.reconnects, 0, "no message made the server close the connection");
  await client.close();
  await server.stop();
});

/** Cut in the middle of a character. */
const half = "nice 👍".slice(0, 6);

const seqOf = async () => (await client.sql("SELECT 1")).seq;

function refusal(pattern: RegExp, code = "bad_arguments") {
  return (error: unknown) => {
    assert.ok(isAbideError(error, code), String(error));
    assert.match(error.message, pattern);
    return true;
  };
}

/** The call as JavaScript makes it, without types. */
const untyped = (value: unknown): any => value;

test("half of a surrogate pair is refused at once, in every message, with its path", async () => {
  const session = await client.session({ agent: "a" });
  const at = await seqOf();
  const cases: [RegExp, () => Promise<unknown>][] = [
    [
      /^\/args\/content: .* half of a surrogate pair/,
      () => client.call.append_message({ session_id: session.id, role: "user", content: half }),
    ],
    [/^\/content: /, () => session.message("user", half, { key: "m" })],
    [/^\/data\/nice \ufffd: /, () => session.message("user", "x", { key: "m", data: { [half]: 1 } })],
    [
      /^\/calls\/0\/args\/title: /,
      () => client.batch([{ reducer: "create_session", args: { agent: "a", title: half } }]),
    ],
    [/^\/request_id: /, () => client.call.create_session({ agent: "a" }, { requestId: half })],
    [/^\/params\/b: /, () => client.sql("SELECT :b", { b: half })],
    [/^\/params\/1: /, () => client.subscribe("SELECT ?", [half])],
    [/^\/sql: /, () => client.subscribe(`SELECT '${half}'`)],
    [/^\/params\/b: /, () => client.explain("SELECT :b", { b: half })],
    [
      /^\/arguments\/t: /,
      () => session.tool("t", { t: half }, { key: "k", effect: "read_only", run: () => 1 }),
    ],
    [
      /^the key of a tool step has half/,
      () => session.tool("t", {}, { key: half, effect: "read_only", run: () => 1 }),
    ],
    [/^\/reason: /, () => session.handoff(half, "c", { key: "h" })],
    [/^\/arguments\/prompt: /, () => session.approval(half, {}, { key: "a" })],
    [/^\/args\/id: /, () => client.session({ id: half, agent: "a" })],
  ];
  for (const [pattern, request] of cases) await assert.rejects(request(), refusal(pattern));
  assert.equal(await seqOf(), at, "nothing was written");
  assert.equal(client.subscriptionCount, 0);
});

test("a result that cannot be stored fails the call, and the tool does not run again", async () => {
  const session = await client.session({ agent: "a" });
  const circular: Record<string, unknown> = {};
  circular["list"] = [circular];
  const results: [string, unknown, string][] = [
    ["half", { text: half }, "/text: a string with half of a surrogate pair is not Unicode text"],
    ["function", { f: () => 1 }, "/f: a function is not JSON"],
    ["circular", circular, "/list/0: a circular object is not JSON"],
    ["promise", { p: Promise.resolve(1) }, "/p: a Promise is not JSON"],
    ["integer", 2n ** 63n, "the integer 9223372036854775808 does not fit 64 bits"],
    ["large", "x".repeat(9 << 20), "the arguments have "],
    ["larger", "x".repeat(17 << 20), "the message has "],
    ["toJSON", { toJSON: () => { throw new Error("a bug"); } }, "a bug"], // prettier-ignore
  ];
  for (const [key, result, reason] of results) {
    let runs = 0;
    const step = () =>
      session
        .tool(
          "work",
          {},
          {
            key,
            effect: "at_most_once",
            run: () => {
              runs += 1;
              return result;
            },
          },
        )
        .catch((error: unknown) => error);
    const [first, again] = [await step(), await step()];
    for (const error of [first, again]) {
      assert.ok(error instanceof ToolFailed && error.status === "failed", String(error));
      assert.ok(
        error.error?.startsWith(`the tool ran, but its result cannot be stored: ${reason}`),
        error.error ?? "",
      );
    }
    assert.equal(runs, 1, key);
  }
});

test("a step returns the same value the first time and when it is repeated", async () => {
  const session = await client.session({ agent: "a" });
  const values = [undefined, new Date(0), { a: undefined, b: [undefined] }, { n: 2n ** 60n, r: 1.5 }, "👍"];
  for (const [at, value] of values.entries()) {
    const step = () =>
      session.tool<unknown>("work", {}, { key: `same-${at}`, effect: "read_only", run: () => value });
    assert.deepEqual(await step(), await step());
  }
});

test("an error with half of a surrogate pair is recorded", async () => {
  const session = await client.session({ agent: "a" });
  const step = (thrown: unknown) =>
    session.tool(
      "work",
      {},
      {
        key: "throws",
        effect: "at_most_once",
        run: () => {
          throw thrown;
        },
      },
    );
  await assert.rejects(step(new Error(half)), { message: half });
  await assert.rejects(
    step(new Error("not run")),
    (error) => error instanceof ToolFailed && error.error === "nice \ufffd",
  );
});

test("a worker records a result that cannot be stored as a failure", async () => {
  const session = await client.session({ agent: "a" });
  await client.call.register_tool({ name: "bad-result", effect: "at_most_once" });
  const call_id = session.callId("w");
  const request = { call_id, session_id: session.id, tool_name: "bad-result", arguments: {} };
  await client.call.request_tool_call(request);
  const problems: string[] = [];
  const worker = client.worker({ onProblem: (problem) => problems.push(problem) });
  let runs = 0;
  const serving = worker.serve({
    "bad-result": () => {
      runs += 1;
      return { f: () => 1 };
    },
  });
  const sql = "SELECT error FROM tool_calls WHERE call_id = :id AND status = 'failed'";
  const failed = await client.subscribe<{ error: string }>(sql, { id: call_id });
  const changed = (notify: () => void) => failed.on("update", notify);
  await until("the failure", () => failed.size === 1, changed);
  assert.match(failed.rows[0]?.error ?? "", /^the tool ran, .*: \/f: a function is not JSON$/);
  failed.close();
  worker.stop();
  await within("the end of the worker", serving);
  assert.equal(runs, 1);
  assert.match(problems[0] ?? "", /the tool ran/);
});

test("a key that is not a string, or empty, is refused for each kind of step", async () => {
  const session = await client.session({ agent: "a" });
  const at = await seqOf();
  for (const key of [undefined, null, "", 7, {}] as never[]) {
    const steps = [
      () => session.tool("t", {}, { key, effect: "read_only", run: () => 1 }),
      () => session.approval("p", {}, { key }),
      () => session.handoff("r", "c", { key }),
      () => session.sleepUntil(new Date(0), { key }),
      () => session.message("user", "x", { key }),
    ];
    for (const step of steps)
      await assert.rejects(step(), refusal(/^the key of .* must be a text that is not empty/));
  }
  assert.equal(await seqOf(), at, "nothing was written");
});

test("a step without a function, and a tool that is not registered, are refused before the call", async () => {
  const session = await client.session({ agent: "a" });
  const at = await seqOf();
  const withoutRun = session.tool("t", {}, untyped({ key: "k", effect: "at_most_once" }));
  await assert.rejects(withoutRun, refusal(/^run must be a function, not undefined$/));
  const unknown: unknown = await session
    .tool("nope", {}, { key: "k", run: () => 1 })
    .catch((error: unknown) => error);
  assert.ok(isAbideError(unknown, "not_found"));
  assert.equal(unknown.message, "tool nope is not registered");
  assert.match(unknown.hint ?? "", /^pass `effect` to register it/);
  assert.equal(await seqOf(), at, "nothing was written");
  assert.equal(await session.tool("t", {}, { key: "k", effect: "at_most_once", run: () => 1 }), 1);
});

test("the conflict of a step names its key", async () => {
  const session = await client.session({ agent: "a" });
  await session.tool("t", { n: 1 }, { key: "k", effect: "read_only", run: () => 1 });
  const other = session.tool("t", { n: 2 }, { key: "k", run: () => 1 });
  await assert.rejects(
    other,
    refusal(/^the key "k" belongs to another tool step or approval .* other arguments$/, "call_id_conflict"),
  );
  await assert.rejects(
    session.approval("p", {}, { key: "k" }),
    refusal(/^the key "k" belongs to/, "call_id_conflict"),
  );
  await session.message("user", "a", { key: "k" });
  const message = session.message("user", "b", { key: "k" });
  await assert.rejects(message, refusal(/^the key "k" belongs to another message/, "request_id_conflict"));
  await session.sleepUntil(new Date(0), { key: "k" });
});

test("options and arguments of another type, and misspelt options, are refused", async () => {
  const session = await client.session({ agent: "a" });
  const [c, s] = [untyped(client), untyped(session)];
  const run = () => 1;
  const cases: [RegExp, () => unknown][] = [
    [/^session takes an object of options, not undefined$/, () => c.session()],
    [/^session takes an object of options, not a string$/, () => c.session("s1")],
    [/^session has no option tittle$/, () => c.session({ agent: "a", tittle: "x" })],
    [/^tool takes an object of options, not undefined$/, () => s.tool("t", {})],
    [/^tool has no option leaseMS$/, () => s.tool("t", {}, { key: "k", run, leaseMS: 5 })],
    [/^leaseMs of tool is not a number/, () => s.tool("t", {}, { key: "k", run, leaseMs: "5" })],
    [/^effect is not "once"$/, () => s.tool("t", {}, { key: "k", run, effect: "once" })],
    [/^sleepUntil takes a Date, not a number$/, () => s.sleepUntil(Date.now(), { key: "k" })],
    [/^sleepUntil takes a valid Date$/, () => s.sleepUntil(new Date(NaN), { key: "k" })],
    [/^approval takes an object/, () => s.approval("p", {})],
    [/^handoff has no option expiresAfter$/, () => s.handoff("r", "c", { key: "k", expiresAfter: 1 })],
    [/^sql has no option signl$/, () => c.sql("SELECT 1", {}, { signl: 1 })],
    [/^signal of sql is not an AbortSignal$/, () => c.sql("SELECT 1", {}, { signal: new AbortController() })],
    [/^asOf of sql is not a whole number$/, () => c.sql("SELECT 1", {}, { asOf: "3" })],
    [/^after of subscribe is not a whole/, () => c.subscribe("SELECT 1", {}, { after: 1.5 })],
    [/^a statement is a text, not undefined$/, () => c.subscribe()],
    [/^the parameters of a statement are .*, not null$/, () => c.sql("SELECT 1", null)],
    [/^batch takes an array of calls, not undefined$/, () => c.batch()],
    [
      /^requestId of call\.create_session is a number/,
      () => c.call.create_session({ agent: "a" }, { requestId: 5 }),
    ],
    [/^the name of a tool is a text, not undefined$/, () => s.tool(undefined, {}, { key: "k", run })],
    [/^the key "kkkkkkkkkkkkkkkkkkkk…" is too long$/, () => s.message("user", "x", { key: "k".repeat(600) })],
    [/^the key "kkkkkkkkkkkkkkkkkkkk…" is too long$/, () => s.approval("p", {}, { key: "k".repeat(600) })],
    [/^subscribe has no option since$/, () => c.subscribe("SELECT 1", {}, { since: 1 })],
    [
      /^call\.create_session has no option request_id$/,
      () => c.call.create_session({ agent: "a" }, { request_id: "r" }),
    ],
    [/^worker has no option lease$/, () => c.worker({ lease: 1 })],
    [/^serve needs at least one tool$/, () => c.worker().serve({})],
    [/^the tool pay must be a function, not undefined$/, () => c.worker().serve({ pay: undefined })],
    [/^concurrency must be/, () => c.worker().serve({ pay: run }, { concurrency: 0 })],
    [
      /^the second argument of serve\("refunds", …\) must be a function/,
      () => c.supervisor().serve("refunds"),
    ],
    [/is a URL$/, () => Abide.open("http://127.0.0.1:7341")],
    [/^open takes the path of a database file, not undefined$/, () => untyped(Abide).open()],
    [/^open has no option token$/, () => Abide.open("x.db", untyped({ token: "t" }))],
    [
      /^heartbeat has no option pingMS$/,
      () => Abide.connect(server.url, untyped({ heartbeat: { pingMS: 1 } })),
    ],
    [/^integers is not number$/, () => Abide.connect(server.url, untyped({ integers: "number" }))],
    [/^the token is null, not a string$/, () => Abide.connect(server.url, untyped({ token: null }))],
    [/^connect has no option tokn$/, () => Abide.connect(server.url, untyped({ tokn: "t" }))],
  ];
  for (const [pattern, request] of cases) {
    await assert.rejects(async () => await request(), refusal(pattern));
  }
});

test("an unknown outcome has the reason of its worker", async () => {
  const session = await client.session({ agent: "a" });
  const call_id = session.callId("reported");
  await client.call.register_tool({ name: "pay-unsure", effect: "at_most_once" });
  const request = { call_id, session_id: session.id, tool_name: "pay-unsure", arguments: {} };
  await client.call.request_tool_call(request);
  const claimed = await client.call.claim_tool_call({ call_id, worker: "w", lease_ms: 60_000 });
  await client.call.fail_tool_call({
    call_id,
    fencing_token: claimed.fencing_token ?? 0,
    error: "the bank answered 504",
    may_have_run: true,
  });
  const error = await session
    .tool("pay-unsure", {}, { key: "reported", effect: "at_most_once", run: () => "it ran twice" })
    .catch((error: unknown) => error);
  assert.ok(error instanceof UnknownOutcome && error.reason === "the bank answered 504", String(error));
  assert.match(error.message, /^it is unknown whether call .* of pay-unsure ran: the bank answered 504$/);
});

test("a tool that blocks longer than its lease ends with where its result is", async () => {
  const session = await client.session({ agent: "a" });
  const pay = (wait: () => unknown) =>
    session
      .tool<unknown>("pay-slow", {}, { key: "k", effect: "at_most_once", leaseMs: 100, run: wait })
      .catch((error: unknown) => error);
  const block = () => {
    const end = performance.now() + 300;
    while (performance.now() < end);
    return "paid";
  };
  const error = await within("the outcome", pay(block));
  assert.ok(error instanceof UnknownOutcome && error.reported === "succeeded", String(error));
  assert.match(error.message, /lost its lease before it reported that the tool succeeded$/);
  assert.match(error.hint ?? "", /unknown_tool_calls \(late_result\)/);
  const repeated = await pay(block);
  assert.ok(repeated instanceof UnknownOutcome && repeated.reported === "succeeded");
  const { rows } = await client.sql("SELECT late_result FROM unknown_tool_calls WHERE call_id = :id", {
    id: session.callId("k"),
  });
  assert.deepEqual(rows, [{ late_result: '"paid"' }]);
});

/** The heartbeat noticed that the lease was lost, and the result of the tool was dropped. */
test("a result after a lost lease is reported even if the heartbeat noticed the loss", async () => {
  const session = await client.session({ agent: "a" });
  const step = session.tool(
    "pay-slow",
    {},
    {
      key: "k",
      effect: "at_most_once",
      leaseMs: 100,
      run: async (_args, { signal }) => {
        const aborted = new Promise((resolve) => signal.addEventListener("abort", resolve));
        const end = performance.now() + 300;
        while (performance.now() < end);
        await aborted;
        return "paid";
      },
    },
  );
  const error: unknown = await within(
    "the outcome",
    step.catch((reason: unknown) => reason),
  );
  assert.ok(error instanceof UnknownOutcome && error.reported === "succeeded", String(error));
});

/** It was mistaken for the loss of the lease of the outer call, which then never ended. */
test("a tool that throws lease_lost itself has failed", async () => {
  const session = await client.session({ agent: "a" });
  const step = (run: () => unknown) => session.tool("nested", {}, { key: "k", effect: "at_most_once", run });
  const lost = new AbideError("lease_lost", "another lease");
  await assert.rejects(
    step(() => Promise.reject(lost)),
    lost,
  );
  await assert.rejects(
    step(() => 1),
    (error) => error instanceof ToolFailed && error.error === "another lease",
  );
});

test("an answer of a supervisor that is not a string releases the handoff, with the reason", async () => {
  for (const [answer, reason] of [
    [{ ok: 1 }, /must return a text, not an object/],
    [half, /half of a surrogate/],
  ] as const) {
    const session = await client.session({ agent: "a" });
    const problem = deferred<string>();
    const supervisor = client.supervisor({ onProblem: problem.resolve });
    const capability = `c-${String(reason)}`;
    const serving = supervisor.serve(
      capability,
      untyped(() => answer),
    );
    const signal = new AbortController();
    const waiting = session.handoff("r", capability, { key: "h", signal: signal.signal }).catch(() => {});
    assert.match(await within("the problem", problem.promise), reason);
    const { rows } = await client.sql("SELECT status FROM handoff_requests WHERE session_id = :id", {
      id: session.id,
    });
    assert.deepEqual(rows, [{ status: "pending" }], "released");
    signal.abort();
    supervisor.stop();
    await within("the end", Promise.all([serving, waiting]));
  }
});

function deferred<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve: (value: T) => void = () => {};
  const promise = new Promise<T>((done) => (resolve = done));
  return { promise, resolve };
}

/** Its microseconds are not a safe integer, and were sent as a REAL, which the refusal named. */
test("a timer that is too far in the future is refused as a time", async () => {
  const session = await client.session({ agent: "a" });
  const far = session.sleepUntil(new Date("2400-01-01T00:00:00Z"), { key: "far" });
  await assert.rejects(far, refusal(/^due_at must be a time between 1970 and/));
});

test("errors show only what they have, and updates and subscriptions show their rows", async () => {
  const shown = inspect(await client.sql("SELEC").catch((error: unknown) => error));
  assert.doesNotMatch(shown, /undefined/);
  const session = await client.session({ agent: "a" });
  const sub = await client.subscribe("SELECT content FROM agent_state WHERE session_id = :id", {
    id: session.id,
  });
  const updates: unknown[] = [];
  sub.on("update", (update) => updates.push(update));
  await session.message("user", "shown", { key: "m" });
  await until(
    "the update",
    () => updates.length === 1,
    (changed) => sub.on("update", changed),
  );
  for (const value of [updates, sub]) assert.match(inspect(value, { depth: 5 }), /content: 'shown'/);
  sub.close();
});

test("a client that the program closes emits closed without an error, and its subscriptions end", async () => {
  const one = await Abide.connect(server.url);
  const closed = new Promise((resolve) => one.on("closed", resolve));
  const sub = await one.subscribe("SELECT id FROM sessions LIMIT 1");
  const ended = new Promise((resolve) => sub.on("end", resolve));
  const loop = (async () => {
    const seen: number[] = [];
    for await (const { inserts } of sub) seen.push(inserts.length);
    return seen;
  })();
  const refused = assert.rejects(one.subscribe("SELECT id FROM sessions LIMIT 2"), refusal(/closed/, "closed"));
  const unanswered = assert.rejects(one.sql("SELECT 1"), refusal(/closed/, "closed"));
  await one.close();
  assert.equal(await closed, undefined);
  assert.equal(await within("the end", ended), undefined);
  assert.deepEqual(await within("the end of the loop", loop), [1]);
  assert.deepEqual([sub.isEnded, sub.error], [true, undefined]);
  await Promise.all([refused, unanswered]);
});

test("the hint of a failed TLS handshake fits the reason", async () => {
  const failure = (code: string, message = "it failed") => Object.assign(new Error(message), { code });
  for (const [error, hint] of [
    [failure("UNABLE_TO_VERIFY_LEAF_SIGNATURE"), /NODE_EXTRA_CA_CERTS/],
    [failure("DEPTH_ZERO_SELF_SIGNED_CERT"), /NODE_EXTRA_CA_CERTS/],
    [new TypeError("fetch failed", { cause: failure("SELF_SIGNED_CERT_IN_CHAIN") }), /NODE_EXTRA_CA_CERTS/],
    [failure("ERR_TLS_CERT_ALTNAME_INVALID"), /name of the certificate in the URL/],
    [failure("CERT_HAS_EXPIRED"), /renew the certificate/],
    [failure("EPROTO", "error:SSL routines:ssl3_get_record:wrong version number"), /write http:/],
    [failure("ERR_SSL_SSLV3_ALERT_HANDSHAKE_FAILURE"), /docs\/tls\.md/],
  ] as const) {
    assert.match(tlsHint(error) ?? "", hint, error.message);
  }
  assert.equal(tlsHint(failure("ECONNREFUSED")), undefined);
  const plain = server.url.replace("http:", "https:");
  await assert.rejects(Abide.connect(plain), (error) => {
    assert.ok(isAbideError(error, "unreachable"));
    assert.match(error.hint ?? "", /^write http:/);
    return true;
  });
});
