/**
 * The platform of browsers: the same client over the global WebSocket. Node 20 has one behind a flag, and the
 * condition `browser` selects the files that a bundler would take.
 */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import { Proxy } from "./proxy.js";
import { Server } from "./server.js";

const PROGRAM = `
  import assert from "node:assert/strict";
  const events = new EventTarget();
  globalThis.addEventListener = events.addEventListener.bind(events);
  globalThis.removeEventListener = events.removeEventListener.bind(events);
  const { Abide, isAbideError } = await import("@abide/client");
  const [url, token] = process.argv.slice(1);
  for (const options of [{}, { token: "abide_aaaaaaaaaaaa_b" }]) {
    await assert.rejects(Abide.connect(url, options), (error) => isAbideError(error, "unauthenticated"));
  }
  await assert.rejects(Abide.connect("http://127.0.0.1:9", { token }), (error) => isAbideError(error, "unreachable"));
  await assert.rejects(Abide.open("x.db"), (error) => isAbideError(error, "engine_not_found"));
  const client = await Abide.connect(url, { token });
  const sub = await client.subscribe("SELECT id FROM sessions ORDER BY id");
  for (const id of ["s1", "s2", "s3"]) {
    if (id === "s2") process.stdout.write("cut\\n");
    await client.call.create_session({ agent: "a", id });
  }
  for await (const _ of sub) if (sub.size === 3) break;
  assert.deepEqual(sub.rows, [{ id: "s1" }, { id: "s2" }, { id: "s3" }]);
  await client.close();
  // The network is back after an hour: the connection is checked at once, without waiting for the heartbeat.
  const slept = await Abide.connect(url, { token, heartbeat: { pingMs: 3_600_000, pongMs: 50 } });
  const lost = new Promise((resolve) => slept.on("lost", resolve));
  const connected = new Promise((resolve) => slept.on("connected", resolve));
  process.stdout.write("silence\\n");
  process.stdin.once("data", () => events.dispatchEvent(new Event("online")));
  await lost;
  await connected;
  await slept.call.create_session({ agent: "a" });
  await slept.close();
  // The dead WebSocket of the platform would keep the process alive for a minute.
  process.stdout.write("done\\n", () => process.exit());
`;

test("the client works over the WebSocket of the platform, with a token and over lost connections", async () => {
  const root = { name: "root", identity: "root", role: "admin", capabilities: ["*"] };
  const { server, tokens } = await Server.withTokens([root]);
  const proxy = await Proxy.to(() => server.port);
  const flags = ["--no-warnings", "--experimental-websocket", "--conditions=browser", "--input-type=module"];
  const args = [...flags, "-e", PROGRAM, proxy.url, tokens.get("root") ?? ""];
  const program = promisify(execFile)(process.execPath, args, { cwd: import.meta.dirname });
  program.child.stdout?.on("data", (text: string) => {
    if (text.includes("cut")) proxy.cut();
    if (!text.includes("silence")) return;
    proxy.silence();
    program.child.stdin?.write("online\n");
  });
  const { stdout } = await program;
  assert.equal(stdout, "cut\nsilence\ndone\n");
  proxy.close();
  await server.stop();
});

test("the files for browsers import nothing of Node", async () => {
  const seen = new Set<string>();
  const visit = async (file: string): Promise<void> => {
    if (seen.has(file)) return;
    seen.add(file);
    const text = await readFile(file, "utf8");
    for (const [, from = ""] of text.matchAll(/from "([^"]+)"/g)) {
      assert.ok(!from.startsWith("node:"), `${file} imports ${from}`);
      if (from === "#platform") await visit(join(file, "../platform/browser.js"));
      else if (from.startsWith(".")) await visit(join(file, "..", from));
    }
  };
  await visit(join(import.meta.dirname, "../../dist/index.js"));
  assert.ok(seen.size > 20, `${seen.size} files`);
});
