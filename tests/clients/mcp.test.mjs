/** The MCP client for TypeScript uses agents and tools over HTTP and over `abide mcp`, in both generations of the protocol. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

import { Server, binary, runExample, slowText } from "./server.mjs";

let server;

before(async () => {
  server = await Server.start();
});
after(() => server.stop());

const generations = { "2026-07-28": { mode: { pin: "2026-07-28" } }, "2025-11-25": { mode: "legacy" } };
const transports = {
  http: () => new StreamableHTTPClientTransport(new URL(`${server.url}/mcp`)),
  stdio: () => new StdioClientTransport({ command: binary, args: ["mcp", "--url", server.url] }),
};

/** A connected client, which gives this answer to each form. */
async function connect(transport, versionNegotiation, form) {
  const capabilities = form ? { elicitation: {} } : {};
  const client = new Client({ name: "test", version: "1" }, { capabilities, versionNegotiation });
  if (form) client.setRequestHandler("elicitation/create", () => form);
  await client.connect(transport());
  return client;
}

const approve = { action: "accept", content: { approve: true } };

for (const [version, generation] of Object.entries(generations)) {
  for (const [name, transport] of Object.entries(transports)) {
    test(`an agent and a tool with approvals, ${version}, ${name}`, async () => {
      const client = await connect(transport, generation, approve);
      const { tools } = await client.listTools();
      const names = ["agent_clerk", "agent_writer", "sql_query", "look", "refund"];
      assert.deepEqual(tools.map((tool) => tool.name), names);
      const paid = await client.callTool({ name: "agent_clerk", arguments: { message: "Pay order A-7 back." } });
      assert.equal(paid.content[0].text, "Order A-7 is paid back.");
      const thanks = { message: "Thanks.", session_id: paid.structuredContent.session_id };
      assert.equal((await client.callTool({ name: "agent_clerk", arguments: thanks })).content[0].text, "You are welcome.");
      const refund = await client.callTool({ name: "refund", arguments: { order: "A-7" } });
      assert.equal(refund.content[0].text.trim(), "done");
      const { call_id } = refund.structuredContent;
      assert.deepEqual(await server.sql(`SELECT status FROM approvals WHERE call_id = '${call_id}'`), [["approved"]]);
      const { resources } = await client.listResources();
      assert.ok(resources.some((resource) => resource.uri === "abide://tables/runs"));
      await client.close();
    });
  }

  test(`a declined form is a rejection, ${version}`, async () => {
    const client = await connect(transports.http, generation, { action: "decline" });
    const refund = await client.callTool({ name: "refund", arguments: { order: "A-7" } });
    assert.equal(refund.isError, true);
    assert.match(refund.content[0].text, /rejected/);
    await client.close();
  });

  test(`without forms the call waits for a decision made elsewhere, ${version}`, async () => {
    const client = await connect(transports.http, generation);
    const call = { name: "refund", arguments: { order: "A-7" }, _meta: { "abide/request_id": `elsewhere ${version}` } };
    const { call_id, status } = (await client.callTool(call)).structuredContent;
    assert.equal(status, "awaiting_approval");
    const body = JSON.stringify({ call_id, decision: "approve" });
    await fetch(`${server.url}/v1/call/decide_approval`, { method: "POST", body });
    const { structuredContent } = await client.callTool(call);
    assert.deepEqual([structuredContent.call_id, structuredContent.status], [call_id, "succeeded"]);
    await client.close();
  });

  test(`after SIGKILL a call over stdio continues, ${version}`, async () => {
    const client = await connect(transports.stdio, generation);
    let killed;
    const onprogress = ({ message }) => {
      if (message === "writes") killed ??= server.kill().then(() => server.start());
    };
    const done = await client.callTool({ name: "agent_writer", arguments: { message: "Write." } }, { onprogress });
    await killed;
    assert.ok(killed, "the server was killed");
    assert.equal(done.content[0].text, slowText);
    const { session_id } = done.structuredContent;
    assert.deepEqual(await server.sql(`SELECT count(*) FROM runs WHERE session_id = '${session_id}'`), [[1]]);
    await client.close();
  });
}

test("after SIGKILL a client finds its task", async () => {
  const task = async (method, params) => {
    params._meta = {
      "io.modelcontextprotocol/protocolVersion": "2026-07-28",
      "io.modelcontextprotocol/clientCapabilities": { extensions: { "io.modelcontextprotocol/tasks": {} } },
    };
    const headers = { "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": params.name ?? params.taskId };
    const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
    return (await (await fetch(`${server.url}/mcp`, { method: "POST", headers, body })).json()).result;
  };
  const begun = await task("tools/call", { name: "agent_writer", arguments: { message: "Write." } });
  assert.deepEqual([begun.resultType, begun.status], ["task", "working"]);
  await server.kill();
  await server.start();
  const { taskId } = begun;
  let found;
  do found = await task("tasks/get", { taskId });
  while (found.status === "working");
  assert.deepEqual([found.status, found.result.content[0].text], ["completed", slowText]);
  const { session_id } = found.result.structuredContent;
  assert.deepEqual(await server.sql(`SELECT count(*) FROM runs WHERE session_id = '${session_id}'`), [[1]]);
});

test("the client of the page runs", async () => {
  assert.equal(await runExample("mcp.md", server), "Order A-7 is paid back.\n");
});
