/** All scenarios of `client-sdk/conformance`, against a real server. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { readScenario, runScenario } from "./scenario.js";

const folder = join(import.meta.dirname, "../../../conformance");

for (const file of readdirSync(folder).filter((name) => name.endsWith(".json"))) {
  const scenario = readScenario(readFileSync(join(folder, file), "utf8"));
  test(`${scenario.name}: ${scenario.about}`, () => runScenario(scenario));
}
