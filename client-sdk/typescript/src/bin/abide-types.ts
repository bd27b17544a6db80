#!/usr/bin/env node
/** `abide-types`: prints the TypeScript types of a database. */
import { spawn } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

import { AbideError, isAbideError, messageOf, refusalError } from "../errors.js";
import { findBinary } from "../platform/engine.js";
import { reading } from "../wire.js";
import { type DatabaseSchema, errorCodesOf, typesOf } from "./typegen.js";

const HELP = `Prints the TypeScript types of a database: tables, views, reducers and error codes.

Usage:
  abide-types --url http://127.0.0.1:7341 > abide.d.ts
  abide-types --db agents.db --out abide.d.ts
  abide-types --db agents.db --program target/debug/own-module --out abide.d.ts

Options:
  --url URL        the address of a server
  --db FILE        a database file, which no server has open; it is created if it does not exist
  --program FILE   the program that serves the file, if it has modules of its own
  --token TOKEN    a token of the server; default: ABIDE_TOKEN
  --out FILE       where to write; default: the standard output
  --prefix NAME    a prefix of the names of the interfaces
  --imports FROM   where the types Json and SqlValue come from; default: @abide/client
  --help           this text
`;

const OPTIONS = {
  url: { type: "string" },
  db: { type: "string" },
  program: { type: "string" },
  token: { type: "string" },
  out: { type: "string" },
  prefix: { type: "string" },
  imports: { type: "string" },
  help: { type: "boolean" },
} as const;

async function main(): Promise<void> {
  const { values: given } = parseArgs({ options: OPTIONS });
  if (given.help) return void process.stdout.write(HELP);
  if ((given.url === undefined) === (given.db === undefined)) {
    throw new AbideError("bad_arguments", "one of --url and --db is required", {
      hint: "abide-types --help shows examples",
    });
  }
  const token = given.token ?? process.env["ABIDE_TOKEN"];
  const server = given.url === undefined ? await serve(given.db ?? "", given.program) : undefined;
  try {
    const url = (server?.url ?? given.url ?? "").replace(/\/+$/, "");
    const schema = (await fetchJson(`${url}/v1/schema`, token)) as DatabaseSchema;
    const codes = errorCodesOf(await fetchJson(`${url}/openapi.json`, token));
    const { prefix, imports } = given;
    const options = { ...(prefix && { prefix }), ...(imports && { imports }) };
    const text = reading("the schema of the server", () => typesOf(schema, codes, options));
    if (given.out === undefined) process.stdout.write(text);
    else await writeFile(given.out, text);
  } finally {
    server?.stop();
  }
}

/** Serves a file on a free port, for as long as this takes. */
async function serve(file: string, program = findBinary()): Promise<{ url: string; stop(): void }> {
  const args = ["serve", "--db", file, "--listen", "127.0.0.1:0", "--json"];
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"] });
  const failed = new Promise<never>((_, reject) => child.on("error", reject));
  const lines = createInterface(child.stdout);
  const line = async () => {
    for await (const first of lines) return first;
    throw new AbideError("engine_start", `${program} serve ended`);
  };
  const { listening } = JSON.parse(await Promise.race([line(), failed])) as { listening: string };
  return { url: `http://${listening}`, stop: () => child.kill() };
}

async function fetchJson(url: string, token: string | undefined): Promise<unknown> {
  const headers: Record<string, string> = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const answer = await fetch(url, { headers });
  const text = await answer.text();
  const body: unknown = reading(`the answer of ${url}`, () => JSON.parse(text));
  if (answer.ok) return body;
  const detail = `${url} answers ${answer.status}`;
  throw refusalError({ code: "unreachable", detail, ...(typeof body === "object" ? body : {}) });
}

/** A text of the server without characters that a terminal executes. */
function printable(text: string): string {
  return text.replace(/[\x00-\x1f\x7f-\x9f]/g, "�");
}

main().catch((error: unknown) => {
  process.stderr.write(`abide-types: ${printable(messageOf(error))}\n`);
  const hint = isAbideError(error) ? error.hint : undefined;
  if (hint !== undefined) process.stderr.write(`  hint: ${printable(hint)}\n`);
  process.exitCode = 1;
});
