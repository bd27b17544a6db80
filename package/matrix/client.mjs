// The calls of an application, for `cargo xtask matrix`: the address of a server, and the id of a session.
import { Abide } from "@abide/client";

const client = await Abide.connect(process.argv[2]);
const session = await client.session({ id: process.argv[3], agent: "support" });
const sql = "SELECT id, content FROM agent_state WHERE session_id = :s ORDER BY id";
const messages = await client.subscribe(sql, { s: session.id });
await session.message("user", "hello", { key: "first" });
for await (const _update of messages) if (messages.rows.length === 1) break;
const run = async ({ n }) => 2 * n;
const result = await session.tool("double", { n: 21 }, { key: "double", effect: "at_most_once", run });
console.log(messages.rows[0].content, result);
await client.close();
