/** The program that the crash test kills: an agent whose tool is a durable step. */
import { Abide } from "@abide/client";
import { AbideSession } from "@abide/openai-agents";
import { run } from "@openai/agents";

import { refundAgent } from "./agent.js";

const client = await Abide.open(process.argv[2] ?? "");
const steps = await client.session({ id: "killed", agent: "support" });
const agent = refundAgent(() =>
  steps.tool(
    "refund",
    {},
    {
      key: "refund-8812",
      effect: "idempotent",
      leaseMs: 300,
      run: async () => {
        console.log("running refund");
        if (process.env["HANG"] !== undefined) await new Promise(() => setInterval(() => {}, 1 << 30));
        return "refunded";
      },
    },
  ),
);
const { finalOutput } = await run(agent, "Refund order 8812.", {
  session: new AbideSession(client, { sessionId: "killed" }),
});
console.log(finalOutput);
await client.close();
