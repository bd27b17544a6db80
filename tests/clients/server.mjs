/** A real `abide serve` with the agents of this folder, which tests kill and start again. */
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

const agents = new URL("agents", import.meta.url).pathname;
export const binary = process.env.ABIDE_BINARY ?? new URL("../../target/debug/abide", import.meta.url).pathname;

export class Server {
  port = 0;
  #child;
  #folder;

  static async start() {
    const server = new Server();
    server.#folder = await mkdtemp(join(tmpdir(), "abide-clients-"));
    await server.start();
    return server;
  }

  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Starts it; again on the same port and file. */
  async start() {
    const file = join(this.#folder, "a.db");
    const listen = `127.0.0.1:${this.port}`;
    const args = ["serve", "--db", file, "--listen", listen, "--agents", agents, "--json"];
    const child = spawn(binary, args, { stdio: ["ignore", "pipe", "inherit"] });
    this.#child = child;
    process.on("exit", () => child.kill("SIGKILL"));
    for await (const line of createInterface(child.stdout)) {
      this.port = Number(JSON.parse(line).listening.split(":").at(-1));
      return;
    }
    throw new Error("the server ended without output");
  }

  /** SIGKILL; waits until the process has ended. */
  async kill() {
    const ended = once(this.#child, "exit");
    this.#child.kill("SIGKILL");
    await ended;
  }

  async stop() {
    await this.kill();
    await rm(this.#folder, { recursive: true, force: true });
  }

  /** Waits for a row. The stream of the subscription tells when to look. */
  async until(sql) {
    const events = await fetch(`${this.url}/v1/subscribe?sql=${encodeURIComponent(sql)}`);
    for await (const _ of events.body) {
      const rows = await this.sql(sql);
      if (rows.length > 0) return rows[0];
    }
    throw new Error("the subscription has ended");
  }

  /** The rows of a query. */
  async sql(sql) {
    const answer = await fetch(`${this.url}/v1/sql`, { method: "POST", body: JSON.stringify({ sql }) });
    return (await answer.json()).rows;
  }
}

/** Runs the JavaScript example of a page of the documentation against a server; returns its output. */
export async function runExample(page, server) {
  const text = await readFile(new URL(`../../docs/${page}`, import.meta.url), "utf8");
  const [example, another] = Array.from(text.matchAll(/^```js\n([^]*?)^```/gm), (block) => block[1]);
  if (!example || another || example.split("\n").length > 12) throw new Error(`${page} has no example of ten lines`);
  const args = ["--input-type=module", "--eval", example.replaceAll("http://127.0.0.1:7341", server.url)];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: new URL(".", import.meta.url).pathname });
  return stdout;
}

/** The text of the answer of the agent `writer`. */
export const slowText = Array.from({ length: 60 }, (_, n) => `word${n}`).join(" ");
