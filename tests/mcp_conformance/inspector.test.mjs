/** The command line of MCP Inspector uses tools and resources over HTTP and over `abide mcp`. It needs the Node of this folder. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { after, before, test } from "node:test";
import { promisify } from "node:util";

import { Server, binary } from "../clients/server.mjs";

const inspector = new URL("node_modules/.bin/mcp-inspector", import.meta.url).pathname;
let server;
let targets;

before(async () => {
  server = await Server.start();
  targets = [[`${server.url}/mcp`, "--transport", "http"], [binary, "mcp", "--url", server.url]];
});
after(() => server.stop());

/** The result that the inspector prints. */
async function inspect(target, ...words) {
  const { stdout } = await promisify(execFile)(inspector, ["--cli", ...target, ...words, "--format", "json"]);
  return JSON.parse(stdout).result;
}

test("tools", async () => {
  for (const target of targets) {
    const { tools } = await inspect(target, "--method", "tools/list");
    assert.deepEqual(tools.map((tool) => tool.name), ["agent_clerk", "agent_writer", "sql_query", "look", "refund"]);
    const look = await inspect(target, "--method", "tools/call", "--tool-name", "look", "--tool-arg", "order=A-7");
    assert.equal(look.content[0].text.trim(), "it is there");
  }
});

test("resources", async () => {
  for (const target of targets) {
    const { resources } = await inspect(target, "--method", "resources/list");
    assert.ok(resources.some((resource) => resource.uri === "abide://tables/tool%5Fcalls"));
    const read = await inspect(target, "--method", "resources/read", "--uri", "abide://tables/agents");
    assert.match(read.contents[0].text, /"clerk"/);
  }
});
