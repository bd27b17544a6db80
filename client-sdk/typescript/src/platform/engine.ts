/**
 * The engine of `Abide.open`: a child process that serves one database file on a Unix socket. All processes
 * that open the same file share it. It ends when its last connection has closed, so it is not stopped here.
 */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, isAbsolute, join, resolve } from "node:path";

import { targetOf } from "../address.js";
import { AbideError, messageOf, refusalError, type Refusal } from "../errors.js";
import { parseJson } from "../json.js";
import type { Locate, Target } from "../socket.js";
import { PROTOCOL, updateHint } from "../wire.js";

/** The line that `abide open` prints. */
interface Started {
  protocol?: string;
  version?: string;
  socket?: string;
  url?: string;
  token?: string;
  error?: Refusal;
}

/** Finds the engine of a file, and starts it if it does not run. `program` is the program of the engine. */
export function locateEngine(file: string, program?: string): Locate {
  const path = resolve(file);
  return async () => target(path, parse(await startedLine(program ?? findBinary(), path)));
}

function target(path: string, started: Started): Target {
  if (started.error) throw refusalError(started.error);
  if (started.protocol !== PROTOCOL) {
    const [theirs, version] = [started.protocol ?? "no protocol", started.version ?? "unknown"];
    throw new AbideError(
      "incompatible_version",
      `the engine of ${path} speaks ${theirs} (version ${version}), this SDK speaks ${PROTOCOL}`,
      { hint: updateHint(started.protocol, "the engine") },
    );
  }
  const { url, token, socket } = started;
  if (typeof url === "string" && typeof token === "string") return targetOf(url, { token });
  if (typeof socket !== "string" || !isAbsolute(socket)) throw engineError("abide open printed no address");
  return { ...targetOf("ws://localhost", { token }), name: path, socketPath: socket };
}

function parse(line: string): Started {
  let started: unknown;
  try {
    started = parseJson(line);
  } catch (cause) {
    throw engineError("abide open printed no JSON", cause);
  }
  if (typeof started !== "object" || started === null) throw engineError("abide open printed no object");
  return started as Started;
}

/**
 * Runs `abide open` and returns the line that it prints. There is no limit while it runs: it may have to replay a journal,
 * or to copy and migrate a large file.
 */
function startedLine(binary: string, file: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(binary, ["open", file, "--json"], { stdio: ["ignore", "pipe", "ignore"] });
    let output = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => (output += text));
    child.stdout.on("close", () => {
      if (output.trim() === "") reject(engineError("abide open ended without an answer"));
      else resolve(output);
    });
    child.on("error", (error) => {
      reject(
        new AbideError("engine_start", `cannot start ${binary}: ${messageOf(error)}`, {
          hint: "ABIDE_BINARY names the program `abide`",
          cause: error,
        }),
      );
    });
    // The engine outlives this process if others use it.
    child.unref();
  });
}

function engineError(why: string, cause?: unknown): AbideError {
  return new AbideError("engine_start", `the engine did not start: ${why}`, {
    hint: "run `abide open FILE --json` in a terminal",
    cause,
  });
}

/**
 * The program `abide`: `ABIDE_BINARY`, else the platform package, else the first on the `PATH`.
 *
 * @throws AbideError `engine_not_found`.
 */
export function findBinary(): string {
  const { ABIDE_BINARY: named, PATH: path = "" } = process.env;
  if (named !== undefined && named !== "") return named;
  const program = process.platform === "win32" ? "abide.exe" : "abide";
  const platform = `@abide/engine-${process.platform}-${process.arch}`;
  try {
    const manifest = createRequire(import.meta.url).resolve(`${platform}/package.json`);
    return join(manifest, "..", "bin", program);
  } catch {
    // The package is not installed.
  }
  const found = path.split(delimiter).map((folder) => join(folder, program));
  const first = found.find((candidate) => existsSync(candidate));
  if (first !== undefined) return first;
  throw new AbideError("engine_not_found", `there is no engine: ${platform} is not installed`, {
    hint: "install without --omit=optional, or set ABIDE_BINARY to the path of abide",
  });
}
