/**
 * One program of the crash test: `node role.mjs FILE agent|worker|supervisor`. With the environment variable
 * HANG it never finishes its work, so that the test can kill it in the middle.
 */
import { appendFileSync } from "node:fs";

import { Abide, isAbideError } from "@abide/client";

const [file, role] = process.argv.slice(2);
const hangs = process.env.HANG !== undefined;
const leaseMs = 400;

/** An effect that must not be repeated by accident: one line in a file. */
async function effect(name) {
  appendFileSync(`${file}-effects`, `${name}\n`);
  console.log(`running ${name}`);
  if (hangs) await new Promise(() => setInterval(() => {}, 1 << 30));
  return { done: name };
}

const roles = {
  /** Pays a refund, which must not happen twice. */
  async agent(client) {
    const session = await client.session({ id: "order-8812", agent: "support" });
    await session.message("user", "The parcel is lost.", { key: "question" });
    try {
      const result = await session.tool(
        "refund",
        { order: 8812 },
        {
          key: "refund",
          effect: "at_most_once",
          leaseMs,
          run: () => effect("refund"),
        },
      );
      console.log(`refund: ${JSON.stringify(result)}`);
    } catch (error) {
      if (!isAbideError(error, "unknown_outcome")) throw error;
      console.log(`refund: ${error.message}`);
    }
  },

  /** Looks parcels up for other programs, which can happen twice. */
  async worker(client) {
    const worker = client.worker({ leaseMs });
    process.on("SIGTERM", () => worker.stop());
    await worker.serve({ lookup: () => effect("lookup") });
  },

  /** Answers handoffs. */
  async supervisor(client) {
    const supervisor = client.supervisor({ leaseMs });
    process.on("SIGTERM", () => supervisor.stop());
    await supervisor.serve("refunds", async () => {
      await effect("answer");
      return "A refund is on its way.";
    });
  },
};

const client = await Abide.open(file);
await roles[role](client);
await client.close();
