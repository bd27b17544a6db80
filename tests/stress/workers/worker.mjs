/** A worker of the TypeScript SDK: `worker.mjs URL FILE`. It ends when its input ends. See `tests/stress/src/deploys.rs`. */
import { appendFileSync } from "node:fs";

import { Abide } from "../../../client-sdk/typescript/dist/index.js";

const [url, file] = process.argv.slice(2);
const client = await Abide.connect(url);
const worker = client.worker({ name: "typescript" });
process.stdin.resume().on("end", () => worker.stop());

async function run({ call, ms }) {
  appendFileSync(file, `began ${call}\n`);
  // tidy: a tool that takes some time
  await new Promise((resolve) => setTimeout(resolve, ms));
  appendFileSync(file, `done ${call}\n`);
  return { done: call };
}

await worker.serve({ typescript: run }, { concurrency: 4 });
await client.close();
