#!/usr/bin/env node
/**
 * The command `abide`: becomes the program of the package for this platform, which npm has installed as an optional
 * dependency. Node before 22.15 cannot replace itself: there this process passes signals on, and ends as the program ends.
 */
import { spawn } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { createRequire } from "node:module";
import { constants as systemConstants } from "node:os";
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
  const { name, version } = createRequire(import.meta.url)("../package.json");
  console.error(
    `error: the package with the program for ${platform} is not installed\n` +
      "hint: npm leaves it out with --omit=optional, on a platform that has none, and if it is installed from a file:\n" +
      `  npm install --global ./${name}-${version}.tgz "@abide/engine-${platform}@$PWD/${name}-${platform}-${version}.tgz"\n` +
      "  or build from source and set ABIDE_BINARY to the program",
  );
  process.exit(1);
}

const [, , ...args] = process.argv;
// A failed `execve` aborts Node, so what is wrong with the file is found before.
try {
  accessSync(program, constants.X_OK);
} catch (error) {
  fail(error);
}
if (process.execve !== undefined && process.platform !== "win32") process.execve(program, [program, ...args]);

const child = spawn(program, args, { stdio: "inherit" });
// A terminal or a supervisor may have sent it to the program as well, which counts both as one.
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"]) process.on(signal, () => child.kill(signal));
child.on("error", fail);
// As a shell reports a program that a signal has ended.
child.on("exit", (code, signal) => process.exit(code ?? 128 + (systemConstants.signals[signal] ?? 0)));

function fail(error) {
  console.error(
    `error: cannot start ${program}: ${error.message}\n` +
      "hint: the packages need glibc 2.28 or newer; on another system, build from source and set ABIDE_BINARY",
  );
  process.exit(1);
}
