/** A real `abide serve` with a temporary file, which tests kill and restart. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

import { findBinary } from "#dist/platform/engine.js";

export const binary = findBinary();

/** A token to create before a server starts. */
export interface TokenSpec {
  name: string;
  identity: string;
  role: string;
  capabilities?: string[];
  scope?: Record<string, string>;
}

/** A temporary folder, removed by `remove`. */
export class Folder {
  private constructor(readonly path: string) {}

  static async make(): Promise<Folder> {
    return new Folder(await mkdtemp(join(tmpdir(), "abide-ts-")));
  }

  file(name: string): string {
    return join(this.path, name);
  }

  async remove(): Promise<void> {
    await rm(this.path, { recursive: true, force: true });
  }
}

/** A child process that ends with this one, even after a failed test. */
export function ownChild<Child extends ChildProcess>(child: Child): Child {
  const end = () => child.kill("SIGKILL");
  process.on("exit", end);
  child.on("exit", () => process.off("exit", end));
  return child;
}

/** Waits for the first line of a program. */
export async function firstLine(child: ChildProcess): Promise<string> {
  if (!child.stdout) throw new Error("the output is not read");
  for await (const line of createInterface(child.stdout)) return line;
  throw new Error("the program ended without output");
}

/** Kills a process and waits until it has ended. */
export async function kill(child: ChildProcess, signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill(signal);
  await ended;
}

export class Server {
  #child: ChildProcess | undefined;
  port = 0;

  private constructor(
    readonly folder: Folder,
    readonly extra: readonly string[],
  ) {}

  static async start(extra: readonly string[] = []): Promise<Server> {
    const server = new Server(await Folder.make(), extra);
    await server.start();
    return server;
  }

  /** Creates tokens in the file, then starts it. */
  static async withTokens(
    tokens: readonly TokenSpec[],
    extra: readonly string[] = [],
  ): Promise<{ server: Server; tokens: Map<string, string> }> {
    const server = new Server(await Folder.make(), extra);
    const made = new Map<string, string>();
    for (const token of tokens) made.set(token.name, await createToken(server.db, token));
    await server.start();
    return { server, tokens: made };
  }

  get db(): string {
    return this.folder.file("abide.db");
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Starts it; again on the same port. */
  async start(): Promise<void> {
    const listen = `127.0.0.1:${this.port}`;
    const args = ["serve", "--db", this.db, "--listen", listen, "--json", ...this.extra];
    const child = ownChild(spawn(binary, args, { stdio: ["ignore", "pipe", "inherit"] }));
    this.#child = child;
    const { listening } = JSON.parse(await firstLine(child)) as { listening: string };
    this.port = Number(listening.split(":").at(-1));
  }

  /** SIGKILL. */
  async kill(): Promise<void> {
    if (this.#child) await kill(this.#child);
  }

  /** SIGTERM: it must end without an error. */
  async terminate(): Promise<void> {
    if (!this.#child) return;
    await kill(this.#child, "SIGTERM");
    if (this.#child.exitCode !== 0) throw new Error(`the server ended with ${this.#child.exitCode}`);
  }

  /** Kills it and removes its files. */
  async stop(): Promise<void> {
    await this.kill();
    await this.folder.remove();
  }
}

async function createToken(db: string, token: TokenSpec): Promise<string> {
  const args = ["token", "create", token.identity, "--role", token.role, "--db", db, "--json"];
  for (const capability of token.capabilities ?? []) args.push("--capability", capability);
  for (const [key, value] of Object.entries(token.scope ?? {})) args.push("--scope", `${key}=${value}`);
  const { stdout } = await promisify(execFile)(binary, args);
  return (JSON.parse(stdout) as { token: string }).token;
}
