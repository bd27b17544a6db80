#!/usr/bin/env node
/**
 * The command `abide`: runs the program of the package for this platform, which npm has installed as an optional
 * dependency, and ends as it ends.
 */
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { constants } from "node:os";
import { join } from "node:path";

const platform = `${process.platform}-${process.arch}`;

/** The path of the program, or `undefined`. */
function findProgram() {
  const { ABIDE_BINARY: named } = process.env;
  if (named) return named;
  try {
    const manifest = createRequire(import.meta.url).resolve(`@abide/engine-${platform}/package.json`);
    return join(manifest, "..", "bin", process.platform === "win32" ? "abide.exe" : "abide");
  } catch {
    return undefined;
  }
}

const program = findProgram();
if (program === undefined) {
  console.error(
    `error: there is no program for ${platform}, or npm has left out optional dependencies\n` +
      "hint: install without --omit=optional, or build from source and set ABIDE_BINARY to the program",
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends these to the program as well; this process waits until the program has ended.
for (const signal of ["SIGINT", "SIGHUP", "SIGQUIT"]) process.on(signal, () => {});
// Sent to this process alone, by a supervisor.
process.on("SIGTERM", () => child.kill("SIGTERM"));
child.on("error", (error) => {
  console.error(
    `error: cannot start ${program}: ${error.message}\n` +
      "hint: the packages need glibc 2.28 or newer; on another system, build from source and set ABIDE_BINARY",
  );
  process.exit(1);
});
// As a shell reports a program that a signal has ended.
child.on("exit", (code, signal) => process.exit(code ?? 128 + (constants.signals[signal] ?? 0)));
