/** The client of the A2A SDK for JavaScript uses agents over JSON-RPC and HTTP+JSON. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Role, TaskState } from "@a2a-js/sdk";
import { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";

import { Server, runExample, slowText } from "./server.mjs";

let server;

before(async () => {
  server = await Server.start();
});
after(() => server.stop());

const bindings = { "JSON-RPC": new JsonRpcTransportFactory(), "HTTP+JSON": new RestTransportFactory() };

function clientOf(agent, transport) {
  const factory = new ClientFactory({ ...ClientFactoryOptions.default, transports: [transport] });
  return factory.createFromUrl(`${server.url}/a2a/${agent}/`);
}

function message(text, { taskId = "", contextId = "" } = {}) {
  const parts = [{ content: { $case: "text", value: text } }];
  return { message: { messageId: crypto.randomUUID(), role: Role.ROLE_USER, parts, taskId, contextId } };
}

/** Adds the events of a stream to the texts of the artifacts, as a client does. */
async function collect(stream, texts, each = () => {}) {
  let task;
  for await (const { payload } of stream) {
    const { $case: kind, value } = payload;
    if (kind === "task") {
      task = value;
      texts.clear();
      for (const artifact of value.artifacts) texts.set(artifact.artifactId, artifact.parts[0].content.value);
    } else if (kind === "artifactUpdate") {
      const { artifactId, parts } = value.artifact;
      const before = value.append ? texts.get(artifactId) : "";
      texts.set(artifactId, before + parts[0].content.value);
    } else {
      task.status = value.status;
    }
    await each();
  }
  return task;
}

for (const [name, transport] of Object.entries(bindings)) {
  test(`a task with an approval, and another in the same context, ${name}`, async () => {
    const client = await clientOf("clerk", transport);
    const asked = await client.sendMessage(message("Pay order A-7 back."));
    assert.equal(asked.status.state, TaskState.TASK_STATE_INPUT_REQUIRED);
    const texts = new Map();
    const paid = await collect(client.sendMessageStream(message("approve", { taskId: asked.id })), texts);
    assert.equal(paid.status.state, TaskState.TASK_STATE_COMPLETED);
    assert.equal(Array.from(texts.values()).at(-1), "Order A-7 is paid back.");
    const read = await client.getTask({ id: asked.id, historyLength: 1 });
    assert.deepEqual(read.artifacts.map((artifact) => artifact.parts[0].content.value), Array.from(texts.values()));
    assert.equal(read.history[0].parts[0].content.value, "approve");
    const thanks = await client.sendMessage(message("Thanks.", { contextId: asked.contextId }));
    assert.equal(thanks.artifacts[0].parts[0].content.value, "You are welcome.");
    const listed = await client.listTasks({ contextId: asked.contextId, pageSize: 10, status: TaskState.TASK_STATE_UNSPECIFIED });
    assert.deepEqual(new Set(listed.tasks.map((task) => task.id)), new Set([asked.id, thanks.id]));
  });

  test(`after SIGKILL a client subscribes to the same task, ${name}`, async () => {
    const client = await clientOf("writer", transport);
    const texts = new Map();
    let task;
    const begun = message("Write.");
    const stream = client.sendMessageStream(begun);
    await assert.rejects(
      collect(stream, texts, async () => {
        if (texts.get("answer-1")?.includes("word9 ")) await server.kill();
      }),
    );
    const before = texts.get("answer-1");
    assert.ok(slowText.startsWith(before) && before.length < slowText.length);
    await server.start();
    task = await client.sendMessage({ ...begun, configuration: { returnImmediately: true } });
    const ended = await collect(client.resubscribeTask({ id: task.id }), texts);
    assert.equal(ended.status.state, TaskState.TASK_STATE_COMPLETED);
    assert.equal(texts.get("answer-1"), slowText);
    const context = task.contextId;
    assert.deepEqual(await server.sql(`SELECT count(*) FROM runs WHERE session_id = '${context}'`), [[1]]);
  });

  test(`a task is cancelled, and an unknown one is not found, ${name}`, async () => {
    const client = await clientOf("writer", transport);
    const begun = await client.sendMessage({ ...message("Write."), configuration: { returnImmediately: true } });
    const cancelled = await client.cancelTask({ id: begun.id });
    assert.equal(cancelled.status.state, TaskState.TASK_STATE_CANCELED);
    await assert.rejects(client.getTask({ id: "unknown" }), { reason: "TASK_NOT_FOUND" });
  });
}

test("the client of the page runs", async () => {
  assert.equal(await runExample("a2a.md", server), "Order A-7 is paid back.\n");
});
