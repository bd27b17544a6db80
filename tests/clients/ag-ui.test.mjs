/** The `HttpAgent` of AG-UI runs an agent: the current one, and that of version 0.0.59, which user interfaces still have. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import * as current from "@ag-ui/client";
import * as former from "@ag-ui/client-0";

import { Server, runExample, slowText } from "./server.mjs";

let server;

before(async () => {
  server = await Server.start();
});
after(() => server.stop());

function agentOf(HttpAgent, name, threadId) {
  return new HttpAgent({ url: `${server.url}/v1/agents/${name}/ag-ui`, threadId });
}

const texts = (agent) => agent.messages.map((message) => `${message.role} ${message.content ?? ""}`);

/** Reads the stream of a request until it has a text, and kills the server. Returns the events so far. */
async function interrupted(threadId, messages, text) {
  const body = JSON.stringify({ threadId, runId: "r1", messages, tools: [], context: [], state: {}, forwardedProps: {} });
  const answer = await fetch(`${server.url}/v1/agents/writer/ag-ui`, { method: "POST", body });
  let received = "";
  try {
    for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
      received += piece;
      if (received.includes(text)) await server.kill();
    }
  } catch {
    // The connection is lost.
  }
  const whole = received.split("\n\n").slice(0, -1).filter((event) => event.startsWith("data: "));
  return whole.map((event) => JSON.parse(event.slice(6)));
}

for (const [version, { HttpAgent }] of Object.entries({ current, former })) {
  test(`a thread with a tool, an interrupt and a second question, ${version}`, async () => {
    const agent = agentOf(HttpAgent, "clerk", `thread-1-${version}`);
    agent.addMessage({ id: "m1", role: "user", content: "Pay order A-7 back." });
    let finished;
    const subscriber = { onRunFinishedEvent: ({ event }) => void (finished = event) };
    await agent.runAgent({}, subscriber);
    assert.equal(finished.outcome.type, "interrupt");
    const [interrupt] = finished.outcome.interrupts;
    assert.equal(interrupt.message, "refund needs an approval");
    const call = agent.messages.flatMap((message) => message.toolCalls ?? []).find((call) => call.id === interrupt.toolCallId);
    assert.deepEqual(JSON.parse(call.function.arguments), { order: "A-7" });

    const resume = [{ interruptId: interrupt.id, status: "resolved", payload: { approved: true } }];
    await agent.runAgent({ resume }, subscriber);
    assert.equal(finished.outcome.type, "success");
    assert.deepEqual(texts(agent).slice(-2), ["tool done", "assistant Order A-7 is paid back."]);
    const before = texts(agent);
    await agent.runAgent({}, subscriber);
    assert.deepEqual(texts(agent), before, "a repeated request adds nothing");

    agent.addMessage({ id: "m2", role: "user", content: "Thanks." });
    await agent.runAgent({}, subscriber);
    assert.equal(texts(agent).at(-1), "assistant You are welcome.");
    assert.deepEqual(await server.sql(`SELECT count(*) FROM runs WHERE session_id = 'thread-1-${version}'`), [[2]]);
  });

  test(`after SIGKILL a repeated request is the same run, ${version}`, async () => {
    const messages = [{ id: "m1", role: "user", content: "Write." }];
    const events = await interrupted(`thread-2-${version}`, messages, "word9 ");
    await server.start();
    const { messageId } = events.find((event) => event.type === "TEXT_MESSAGE_START");
    const content = events.map((event) => event.delta ?? "").join("");
    assert.ok(slowText.startsWith(content) && content.length < slowText.length);
    // With and without the part of the answer that it has seen.
    for (const seen of [[], [{ id: messageId, role: "assistant", content }]]) {
      const agent = agentOf(HttpAgent, "writer", `thread-2-${version}`);
      agent.setMessages([...messages, ...seen]);
      await agent.runAgent();
      assert.deepEqual(texts(agent), ["user Write.", `assistant ${slowText}`]);
    }
    assert.deepEqual(await server.sql(`SELECT count(*) FROM runs WHERE session_id = 'thread-2-${version}'`), [[1]]);
  });

  test(`a cancelled interrupt is a rejection, and errors end the run, ${version}`, async () => {
    const agent = agentOf(HttpAgent, "clerk", `thread-3-${version}`);
    agent.addMessage({ id: "m1", role: "user", content: "Pay order A-7 back." });
    let finished;
    const subscriber = { onRunFinishedEvent: ({ event }) => void (finished = event) };
    await agent.runAgent({}, subscriber);
    const resume = [{ interruptId: finished.outcome.interrupts[0].id, status: "cancelled" }];
    await agent.runAgent({ resume }, subscriber);
    assert.match(texts(agent).at(-2), /^tool Rejected/);
    const unknown = agentOf(HttpAgent, "noname", `thread-4-${version}`);
    unknown.addMessage({ id: "m1", role: "user", content: "Hello." });
    await assert.rejects(unknown.runAgent());
  });
}

test("the client of the page runs", async () => {
  assert.equal(await runExample("ag-ui.md", server), "Order A-7 is paid back.\n");
});

test("a run is stopped, and the next message starts another one", async () => {
  const agent = new current.HttpAgent({ url: `${server.url}/v1/agents/writer/ag-ui`, threadId: "thread-stop" });
  agent.addMessage({ id: "m1", role: "user", content: "Write." });
  const stop = async () => {
    await fetch(`${server.url}/v1/sessions/thread-stop/abort`, { method: "POST" });
    agent.abortRun();
  };
  let stopped;
  await agent.runAgent({}, { onTextMessageContentEvent: () => void (stopped ??= stop()) }).catch(() => {});
  await stopped;
  agent.addMessage({ id: "m2", role: "user", content: "And now?" });
  await agent.runAgent({});
  assert.equal(agent.messages.at(-1).content, "Again.");
});

/** The interrupt had no call, and an answer to it was a 404. */
test("a call whose outcome is unknown is an interrupt, which an answer settles", async () => {
  const agent = new current.HttpAgent({ url: `${server.url}/v1/agents/payer/ag-ui`, threadId: "thread-unknown" });
  agent.addMessage({ id: "m1", role: "user", content: "Pay." });
  const body = JSON.stringify({ threadId: "thread-unknown", runId: "r0", messages: agent.messages });
  const first = await fetch(agent.url, { method: "POST", body });
  const [call] = await server.until("SELECT call_id FROM tool_calls WHERE tool_name = 'pay' AND status = 'claimed' AND session_id = 'thread-unknown'");
  await first.body.cancel();
  await server.kill();
  await server.start();
  let interrupts;
  const onRunFinishedEvent = ({ event }) => void (interrupts = event.outcome.interrupts);
  await agent.runAgent({}, { onRunFinishedEvent });
  assert.deepEqual(interrupts.map(({ id, reason, toolCallId }) => [id, reason, toolCallId]), [[call, "settlement", call]]);
  const approve = { interruptId: call, status: "resolved", payload: { approved: true } };
  await assert.rejects(agent.runAgent({ resume: [approve] }), /needs a settlement/);
  await agent.runAgent({ resume: [{ ...approve, payload: { outcome: "succeeded" } }] });
  assert.equal(agent.messages.at(-1).content, "It was paid.");
});
