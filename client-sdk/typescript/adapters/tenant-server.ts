/** A real `abide serve` with a token of a tenant. */
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const binary = process.env["ABIDE_BINARY"] || "abide";

export interface TenantServer {
  url: string;
  /** The token of a program of the tenant `acme`. */
  tenant: string;
  /** The token of an admin without a scope. */
  admin: string;
  stop(): void;
}

export async function startTenantServer(): Promise<TenantServer> {
  const folder = mkdtempSync(join(tmpdir(), "abide-tenant-"));
  const db = join(folder, "abide.db");
  const token = (identity: string, ...args: string[]) => {
    const create = ["token", "create", identity, "--db", db, "--json", ...args];
    return (JSON.parse(execFileSync(binary, create, { encoding: "utf8" })) as { token: string }).token;
  };
  const admin = token("root", "--role", "admin", "--capability", "*");
  const tenant = token("acme", "--role", "agent", "--scope", "tenant=acme");
  const args = ["serve", "--db", db, "--listen", "127.0.0.1:0", "--json"];
  const child = spawn(binary, args, { stdio: ["ignore", "pipe", "inherit"] });
  const kill = () => child.kill("SIGKILL");
  process.on("exit", kill);
  for await (const line of createInterface(child.stdout)) {
    const { listening } = JSON.parse(line) as { listening: string };
    const stop = () => {
      process.off("exit", kill);
      kill();
      rmSync(folder, { recursive: true, force: true });
    };
    return { url: `http://${listening}`, tenant, admin, stop };
  }
  throw new Error("the server ended without output");
}
