#!/usr/bin/env node
/** `abide-types`: prints the TypeScript types of a database. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { request } from "node:http";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

import { httpUrl, targetOf } from "../address.js";
import { AbideError, isAbideError, messageOf, type Refusal, refusalError } from "../errors.js";
import { findBinary, locateEngine } from "../platform/engine.js";
import { EnginePlace } from "../platform/place.js";
import type { Target } from "../socket.js";
import { tlsHint } from "../tls.js";
import { reading } from "../wire.js";
import { type DatabaseSchema, errorCodesOf, typesOf } from "./typegen.js";

const HELP = `Prints the TypeScript types of a database: tables, views, reducers and error codes.

Usage:
  abide-types --url http://127.0.0.1:7341 > abide.d.ts
  abide-types --db agents.db --out abide.d.ts
  abide-types --new --program target/debug/own-module --out abide.d.ts

Options:
  --url URL        the address of a server
  --db FILE        a database file; programs that use it with an SDK may have it open
  --new            a new database, which is removed afterwards
  --program FILE   the program that serves the database, if it has modules of its own
  --token TOKEN    a token of the server; default: ABIDE_TOKEN
  --out FILE       where to write; default: the standard output
  --prefix NAME    a prefix of the names of the interfaces
  --imports FROM   where the types Json and SqlValue come from; default: @abide/client
  --help           this text
`;

const OPTIONS = {
  url: { type: "string" },
  db: { type: "string" },
  new: { type: "boolean" },
  program: { type: "string" },
  token: { type: "string" },
  out: { type: "string" },
  prefix: { type: "string" },
  imports: { type: "string" },
  help: { type: "boolean" },
} as const;

async function main(): Promise<void> {
  const given = readArguments();
  if (given.help) return void process.stdout.write(HELP);
  const sources = [given.url, given.db, given.new].filter((source) => source !== undefined);
  if (sources.length !== 1) {
    throw new AbideError("bad_arguments", "one of --url, --db and --new is required", {
      hint: "abide-types --help shows examples",
    });
  }
  const token = given.token ?? process.env["ABIDE_TOKEN"];
  const server = given.new ? await serve(given.program) : undefined;
  let text: string;
  try {
    const target =
      given.db === undefined
        ? targetOf(server?.url ?? given.url ?? "", { token })
        : await engineOf(given.db, given.program);
    const schema = (await getJson(target, "/v1/schema")) as DatabaseSchema;
    const openapi = await getJson(target, "/openapi.json");
    const { prefix, imports } = given;
    const options = { ...(prefix && { prefix }), ...(imports && { imports }) };
    text = reading("the schema of the server", () => typesOf(schema, errorCodesOf(openapi), options));
  } finally {
    await server?.stop();
  }
  if (given.out === undefined) process.stdout.write(text);
  else await write(given.out, text);
}

function readArguments() {
  try {
    return parseArgs({ options: OPTIONS }).values;
  } catch (error) {
    throw new AbideError("bad_arguments", messageOf(error), { hint: "abide-types --help lists the options" });
  }
}

async function write(file: string, text: string): Promise<void> {
  try {
    await writeFile(file, text);
  } catch (error) {
    throw new AbideError("bad_arguments", `cannot write ${file}: ${messageOf(error)}`);
  }
}

interface Server {
  url: string;
  stop(): Promise<void>;
}

/** The engine of a file, which other programs may use too. */
async function engineOf(file: string, program: string | undefined): Promise<Target> {
  if (!existsSync(file)) {
    throw new AbideError("not_found", `there is no file ${file}`, {
      hint: "check the path, or use --new for the types of a new database",
    });
  }
  return await locateEngine(file, program)();
}

/** Serves a new file on a free port for as long as this takes. */
async function serve(program = findBinary()): Promise<Server> {
  const folder = await mkdtemp(join(tmpdir(), "abide-types-"));
  const remove = () => rm(folder, { recursive: true, force: true });
  try {
    return await start(program, join(folder, "new.db"), remove);
  } catch (error) {
    await remove();
    throw error;
  }
}

async function start(program: string, file: string, remove: () => Promise<void>): Promise<Server> {
  const args = ["serve", "--db", file, "--listen", "127.0.0.1:0", "--json"];
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
  const ended = new Promise<void>((resolve) => child.on("close", () => resolve()));
  const failed = new Promise<never>((_, reject) => {
    child.on("error", (cause) => {
      const detail = `cannot start ${program}: ${messageOf(cause)}`;
      reject(new AbideError("engine_start", detail, { hint: "--program FILE names the program", cause }));
    });
  });
  let problem = "";
  child.stderr.setEncoding("utf8").on("data", (text: string) => (problem += text));
  const line = async () => {
    for await (const first of createInterface(child.stdout)) return first;
    await ended;
    throw startError(program, problem.trim());
  };
  const first = await Promise.race([line(), failed]);
  const stop = async () => {
    child.kill();
    await ended;
    await remove();
  };
  try {
    const { listening } = JSON.parse(first) as { listening: string };
    return { url: `http://${new URL(`http://${listening}`).host}`, stop };
  } catch {
    await stop();
    throw startError(program, first);
  }
}

/** The output of a program that did not serve the file: a problem, or any text. */
function startError(program: string, printed: string): AbideError {
  try {
    const problem = JSON.parse(printed) as Refusal;
    if (typeof problem.code === "string") return refusalError(problem);
  } catch {
    // It is not a problem document.
  }
  const why = printed === "" ? "it ended without an answer" : printed;
  return new AbideError("engine_start", `${program} serve did not start: ${why}`, {
    hint: "--program FILE names a program with the commands of abide",
  });
}

async function getJson(target: Target, path: string): Promise<unknown> {
  const { token } = target;
  const headers: Record<string, string> = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const url = httpUrl(target, path);
  let answer: { ok: boolean; status: number };
  let body: unknown;
  try {
    if (target.socketPath === undefined) {
      const response = await fetch(url, { headers });
      [answer, body] = [response, await response.json()];
    } else {
      [answer, body] = await getOverSocket(target.socketPath, url, headers);
    }
  } catch (error) {
    const cause = error instanceof Error && error.cause !== undefined ? error.cause : error;
    throw new AbideError("unreachable", `${url} cannot be read: ${messageOf(cause)}`, {
      hint: tlsHint(cause) ?? "is it the URL of a server? `abide serve` starts one",
      cause,
    });
  }
  if (answer.ok) return body;
  const detail = `${url} responds with HTTP ${answer.status}`;
  throw refusalError({ code: "unreachable", detail, ...(typeof body === "object" ? body : {}) });
}

/** A request over a Unix socket, which `fetch` does not support. */
async function getOverSocket(
  socketPath: string,
  url: string,
  headers: Record<string, string>,
): Promise<[{ ok: boolean; status: number }, unknown]> {
  const place = new EnginePlace(socketPath);
  try {
    return await new Promise((resolve, reject) => {
      const sent = request(url, { headers, socketPath: place.path, agent: false }, (response) => {
        let text = "";
        response.setEncoding("utf8").on("data", (part: string) => (text += part));
        response.on("error", reject).on("end", () => {
          const status = response.statusCode ?? 0;
          try {
            resolve([{ ok: status >= 200 && status < 300, status }, JSON.parse(text)]);
          } catch (error) {
            reject(error instanceof Error ? error : new Error(String(error)));
          }
        });
      });
      sent.on("error", reject).end();
    });
  } finally {
    place.close();
  }
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
