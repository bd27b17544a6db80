/**
 * The quickstart of `docs/typescript.md`, as written, in an empty folder, with nothing but the packed
 * packages: `npm run test-packed`. `ABIDE_BINARY` names the program to pack. It is not a part of `npm test`,
 * because packing a binary takes about ten seconds.
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

const root = join(import.meta.dirname, "..");
const page = readFileSync(join(root, "../../docs/typescript.md"), "utf8");

/** The first blocks of the page with this language. */
function blocks(language) {
  return Array.from(page.matchAll(/^```(\S+).*\n([^]*?)^```$/gm))
    .filter(([, found]) => found === language)
    .map(([, , text]) => text);
}

test("the quickstart works as written, with only the packed packages", () => {
  const folder = mkdtempSync(join(tmpdir(), "abide-packed-"));
  try {
    const packages = join(folder, "packages");
    const pack = [join(root, "scripts/pack.mjs"), "--distribution", "abide-db"];
    pack.push("--binary", process.env.ABIDE_BINARY, "--out", packages);
    const files = execFileSync(process.execPath, pack, { encoding: "utf8" }).trim().split("\n");
    const project = join(folder, "project");
    mkdirSync(project);
    // A new user has neither the variable nor the program on the path.
    const { ABIDE_BINARY: _binary, ...env } = process.env;
    const run = (program, args) => execFileSync(program, args, { cwd: project, env, encoding: "utf8" });
    // The page names the packages and the files. The third one has only the command.
    const [engine, client] = files;
    const platform = `${process.platform}-${process.arch}`;
    const named = [`@abide/client@${client}`, `@abide/engine-${platform}@${engine}`];
    for (const argument of named) {
      const onPage = argument.replace(packages, "$PACKAGES").replaceAll(platform, "linux-x64");
      assert.ok(page.includes(`"${onPage}"`), onPage);
    }
    run("npm", ["install", "--offline", "--no-audit", "--no-fund", "--silent", ...named]);
    writeFileSync(join(project, "quickstart.mjs"), blocks("js")[0]);
    const [first, second] = blocks("text");
    assert.equal(run(process.execPath, ["quickstart.mjs"]), first);
    assert.equal(run(process.execPath, ["quickstart.mjs"]), second);
    const types = run(join(project, "node_modules/.bin/abide-types"), ["--new"]);
    assert.match(types, /export interface Schema/);
    writeFileSync(
      join(project, "check.mts"),
      `
      import { Abide, type BuiltinTables } from "@abide/client";
      const client = await Abide.open("agents.db");
      const { rows } = await client.sql<BuiltinTables["sessions"]>("SELECT * FROM sessions");
      export const status: "created" | "active" | "suspended" | "handed_off" | "completed" | "failed" | undefined = rows[0]?.status;
    `,
    );
    const tsc = join(root, "node_modules/.bin/tsc");
    run(tsc, ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "check.mts"]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
