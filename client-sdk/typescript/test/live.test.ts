/** Random commits, cut connections and a killed server: each live query is equal to a new run of it. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Abide, isAbideError, type SqlValue, type Subscription } from "@abide/client";

import { Proxy } from "./proxy.js";
import { Server } from "./server.js";
import { until } from "./within.js";

/** Queries of each rule of `docs/live-sql.md`. */
const ORDERED = [
  "SELECT * FROM sessions ORDER BY title DESC, id",
  "SELECT id, title FROM sessions WHERE status <> 'completed' ORDER BY title COLLATE NOCASE, id DESC",
  "SELECT id, content FROM agent_state ORDER BY length(content) DESC, id LIMIT 7",
  "SELECT s.id, count(m.id) AS n FROM sessions s LEFT JOIN agent_state m ON m.session_id = s.id GROUP BY s.id ORDER BY n DESC, s.id",
  "SELECT id, session_id FROM agent_state ORDER BY id DESC LIMIT 3 OFFSET 2",
  "SELECT id, row_number() OVER (PARTITION BY session_id ORDER BY id) AS place FROM agent_state ORDER BY id",
];
const UNORDERED = [
  "SELECT status FROM sessions",
  "SELECT agent, count(*) AS n, max(created_at) AS last FROM sessions GROUP BY agent",
  "SELECT m.id, s.status, json_extract(m.data, '$.x') AS x FROM agent_state m JOIN sessions s ON s.id = m.session_id WHERE m.role = 'user'",
  "SELECT sum(length(content)), avg(length(content)) FROM agent_state",
  "SELECT id FROM sessions UNION SELECT session_id FROM agent_state",
];

function random(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

const textOf = (row: SqlValue[]) => row.map((cell) => `${typeof cell}:${String(cell)}`).join("|");

test("after random commits over lost connections, every live query is equal to a new run of it", async () => {
  const server = await Server.start();
  const proxy = await Proxy.to(() => server.port);
  const client = await Abide.connect(proxy.url, { integers: "bigint" });
  const live = new Map<string, Subscription>();
  for (const sql of [...ORDERED, ...UNORDERED]) live.set(sql, await client.subscribe(sql));
  const next = random(42);
  const values = [1, 9007199254740993n, 0.5, "é😀", null, true];
  const allowed = (error: unknown) =>
    assert.ok(isAbideError(error, "conflict") || isAbideError(error, "bad_transition"));
  const commit = async (step: number) => {
    const id = `s${next(12)}`;
    const title = ["a", "B", "b", "ß", null][next(5)] ?? null;
    const message = () => ({
      reducer: "append_message" as const,
      args: {
        session_id: id,
        role: next(2) ? "user" : "tool",
        content: "x".repeat(next(20)),
        data: { x: values[next(6)] },
      },
    });
    if (next(4) === 0) await client.call.create_session({ agent: `a${next(3)}`, id, title }).catch(allowed);
    else if (next(12) === 0) await client.call.complete_session({ session_id: id }).catch(missing);
    else await client.batch(Array.from({ length: 1 + next(4) }, message)).catch(missing);
    if (step % 40 === 20) proxy.cut();
    if (step % 90 === 50) {
      await server.kill();
      await server.start();
    }
  };
  const missing = (error: unknown) => {
    if (!isAbideError(error, "not_found")) allowed(error);
  };
  for (let step = 0; step < 200; step += 1) await commit(step);
  for (const [sql, sub] of live) {
    const { cells } = await client.sql(sql);
    const ordered = ORDERED.includes(sql);
    const shown = (rows: SqlValue[][]) => (ordered ? rows.map(textOf) : rows.map(textOf).sort());
    const isEqual = () => JSON.stringify(shown(sub.cells)) === JSON.stringify(shown(cells));
    await until("the rows", isEqual, (changed) => sub.on("update", changed)).catch(() => {
      assert.deepEqual(shown(sub.cells), shown(cells), sql);
    });
    assert.equal(sub.mismatches, 0, sql);
  }
  assert.ok(client.reconnects >= 5, `${client.reconnects} reconnects`);
  await client.close();
  proxy.close();
  await server.stop();
});
