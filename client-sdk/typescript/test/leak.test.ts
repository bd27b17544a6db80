/** 10,000 subscriptions that begin and end leave nothing behind. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Abide } from "@abide/client";

import { Server } from "./server.js";

const CYCLES = 10_000;
const AT_ONCE = 100;

test("10,000 subscribe and unsubscribe cycles leak neither memory nor timers nor listeners", async () => {
  assert.ok(globalThis.gc, "run with --expose-gc");
  const server = await Server.start();
  const client = await Abide.connect(server.url);
  const { id } = await client.call.create_session({ agent: "a" });
  const cycles = async (count: number) => {
    const controller = new AbortController();
    for (let done = 0; done < count; done += AT_ONCE) {
      const one = async (n: number) => {
        const params = { id: `${id}${n % 7 === 0 ? "" : n}` };
        const options = n % 3 === 0 ? { signal: controller.signal } : {};
        const sub = await client.subscribe("SELECT id, status FROM sessions WHERE id = :id", params, options);
        sub.on("update", () => {});
        if (n % 2 === 0) await sub[Symbol.asyncIterator]().next();
        sub.close();
      };
      await Promise.all(Array.from({ length: AT_ONCE }, (_, n) => one(done + n)));
    }
  };
  const heap = () => {
    globalThis.gc?.();
    return process.memoryUsage().heapUsed;
  };
  await cycles(1_000);
  const before = heap();
  await cycles(CYCLES);
  const grown = heap() - before;
  assert.equal(client.subscriptionCount, 0);
  assert.ok(grown < 2 << 20, `the heap grew by ${grown} bytes`);
  // The last subscriptions that started have timers of 0 ms, which fire in their order.
  await new Promise((resolve) => setTimeout(resolve, 0));
  const timers = process.getActiveResourcesInfo().filter((name) => name === "Timeout");
  assert.ok(timers.length < 10, `${timers.length} timers`);
  await client.close();
  await server.stop();
});
