/** The `openai` package for Node uses agents as models. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import OpenAI from "openai";

import { Server, slowText } from "./server.mjs";

let server;
let client;

before(async () => {
  server = await Server.start();
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
});
after(() => server.stop());

test("a session with a tool, an approval and a second question", async () => {
  const asked = await client.responses.create({ model: "clerk", input: "Pay order A-7 back." });
  assert.deepEqual(
    asked.output.map((item) => [item.type, item.status]),
    [
      ["message", "completed"],
      ["mcp_call", "completed"],
      ["message", "completed"],
      ["mcp_call", "incomplete"],
      ["mcp_approval_request", undefined],
    ],
  );
  assert.equal(asked.output[1].output, "it is there");
  const request = asked.output.at(-1);
  assert.deepEqual([request.name, JSON.parse(request.arguments)], ["refund", { order: "A-7" }]);

  const approve = { type: "mcp_approval_response", approval_request_id: request.id, approve: true };
  const stream = client.responses.stream({ model: "clerk", previous_response_id: asked.id, input: [approve] });
  const text = [];
  stream.on("response.output_text.delta", (event) => text.push(event.delta));
  const paid = await stream.finalResponse();
  assert.equal(text.join(""), "Order A-7 is paid back.");
  assert.deepEqual([paid.status, paid.output_text], ["completed", text.join("")]);
  assert.deepEqual([paid.output[0].name, paid.output[0].output], ["refund", "done"]);
  assert.equal(paid.usage.total_tokens, 26);
  const again = await client.responses.create({ model: "clerk", previous_response_id: asked.id, input: [approve] });
  assert.deepEqual([again.id, again.output], [paid.id, (await client.responses.retrieve(paid.id)).output]);

  const thanks = await client.responses.create({ model: "clerk", previous_response_id: paid.id, input: "Thanks." });
  assert.equal(thanks.output_text, "You are welcome.");
  assert.equal(thanks.previous_response_id, paid.id);
});

test("a rejected call", async () => {
  const asked = await client.responses.create({ model: "clerk", input: "Pay order A-7 back." });
  const input = [{ type: "mcp_approval_response", approval_request_id: asked.output.at(-1).id, approve: false, reason: "too late" }];
  const told = await client.responses.create({ model: "clerk", previous_response_id: asked.id, input });
  assert.deepEqual([told.output[0].status, told.output[0].error], ["failed", "Rejected: too late"]);
});

test("after SIGKILL a stream continues with the next event", async () => {
  const seen = [];
  const stream = await client.responses.create({ model: "writer", input: "Write.", stream: true });
  let id;
  try {
    for await (const event of stream) {
      seen.push(event);
      id ??= event.response?.id;
      if (event.type === "response.output_text.delta" && event.delta.includes("word9 ")) await server.kill();
    }
  } catch {
    // The connection is lost.
  }
  assert.notEqual(seen.at(-1).type, "response.completed");
  await server.start();
  const last = seen.at(-1).sequence_number;
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: last })) seen.push(event);
  assert.deepEqual(seen.map((event) => event.sequence_number), seen.map((_, at) => at));
  const text = seen.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
  assert.equal(text.join(""), slowText);
  const { response } = seen.at(-1);
  assert.equal(response.output[0].content[0].text, slowText);
  assert.equal((await client.responses.retrieve(id)).output_text, slowText);
});

test("after SIGKILL a repeated request is the same response", async () => {
  const body = { model: "writer", input: "Write.", background: true };
  const options = { headers: { "Idempotency-Key": "order-7" } };
  const first = await client.responses.create(body, options);
  await server.kill();
  await server.start();
  const again = await client.responses.create({ ...body, background: true }, options);
  assert.equal(again.id, first.id);
  assert.equal((await client.responses.cancel(first.id)).status, "cancelled");
  assert.equal((await client.responses.retrieve(first.id)).status, "cancelled");
});

test("errors have the types of the client", async () => {
  const unknown = client.responses.create({ model: "noname", input: "x" });
  await assert.rejects(unknown, (error) => error instanceof OpenAI.NotFoundError && /there is no agent noname/.test(error.message));
  const tools = [{ type: "function", name: "f", parameters: {}, strict: true }];
  const refused = client.responses.create({ model: "clerk", input: "x", tools });
  await assert.rejects(refused, (error) => error instanceof OpenAI.UnprocessableEntityError && error.code === "bad_arguments");
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes("clerk"));
});
