/** `Abide.open`: an engine that starts with its first user and ends with its last. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { chmod, lchown, mkdir, rename, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Abide, isAbideError } from "@abide/client";
import { locateEngine } from "#dist/platform/engine.js";
import { EnginePlace } from "#dist/platform/place.js";

import { binary, firstLine, Folder, kill, ownChild, Server } from "./server.js";
import { within } from "./within.js";

let folder: Folder;
before(async () => {
  folder = await Folder.make();
});
after(() => folder.remove());

/** Runs a module that prints lines. */
function run(source: string, ...args: string[]) {
  const options = {
    stdio: ["ignore", "pipe", "inherit"] as ["ignore", "pipe", "inherit"],
    cwd: import.meta.dirname,
  };
  return ownChild(spawn(process.execPath, ["--input-type=module", "-e", source, ...args], options));
}

const USER = `
  import { Abide } from "@abide/client";
  const client = await Abide.open(process.argv[1]);
  const { id } = await client.call.create_session({ agent: "a" });
  console.log(id);
  setInterval(() => {}, 1 << 30);
`;

/** Another open with the same protocol finds the pid of the engine. */
async function enginePid(file: string): Promise<number> {
  const child = spawn(binary, ["open", file, "--json"], { stdio: ["ignore", "pipe", "ignore"] });
  const { pid, started } = JSON.parse(await firstLine(child)) as { pid: number; started: boolean };
  assert.equal(started, false, "the engine runs already");
  return pid;
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    // A process that has ended keeps its id until its parent asks; the first process of a container may never do that.
    return !existsSync("/proc/self/stat") || !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}

test("two clients of a file share its engine, and see each other's changes", async () => {
  const file = folder.file("shared.db");
  const [one, two] = await Promise.all([Abide.open(file), Abide.open(file)]);
  const sub = await two.subscribe("SELECT id FROM sessions");
  const changed = new Promise((resolve) => sub.on("update", resolve));
  const { id } = await one.call.create_session({ agent: "a" });
  await within("the change", changed);
  assert.deepEqual(sub.rows, [{ id }]);
  await Promise.all([one.close(), two.close()]);
});

test("a killed program leaves its data, and no process behind", async () => {
  const file = folder.file("killed.db");
  const program = run(USER, file);
  const id = await firstLine(program);
  const pid = await enginePid(file);
  await kill(program);
  // It ends without its last user.
  const ended = (async () => {
    // tidy: the system has no event for the end of a process that is not a child
    while (isRunning(pid)) await new Promise((resolve) => setTimeout(resolve, 50));
  })();
  await within("the end of the engine", ended);
  const client = await Abide.open(file);
  assert.deepEqual((await client.sql("SELECT id FROM sessions")).rows, [{ id }]);
  await client.close();
});

test("when the engine is killed, its clients start it again and miss nothing", async () => {
  const file = folder.file("engine.db");
  const client = await Abide.open(file);
  const sub = await client.subscribe("SELECT id FROM sessions ORDER BY id");
  await client.call.create_session({ agent: "a", id: "s1" });
  process.kill(await enginePid(file), "SIGKILL");
  await client.call.create_session({ agent: "a", id: "s2" });
  while (sub.size < 2)
    await within("an update", new Promise<unknown>((resolve) => sub.on("update", resolve)));
  assert.deepEqual(sub.rows, [{ id: "s1" }, { id: "s2" }]);
  assert.equal(sub.mismatches, 0);
  await client.close();
});

/** The last user of an engine closes it just when another program has found it. */
test("an engine that ends before the connection is made is started again", async () => {
  const [fake, count] = [folder.file("ending"), folder.file("count")];
  const gone = `{"protocol":"abide.v1","version":"0","pid":1,"socket":"${folder.file("gone.sock")}","started":false}`;
  await writeFile(
    fake,
    `#!/bin/sh\necho x >> ${count}\nif [ $(wc -l < ${count}) -lt 3 ]; then echo '${gone}'; else exec ${binary} "$@"; fi\n`,
  );
  await chmod(fake, 0o755);
  const named = process.env["ABIDE_BINARY"] ?? "";
  process.env["ABIDE_BINARY"] = fake;
  try {
    const client = await Abide.open(folder.file("ending.db"));
    await client.call.create_session({ agent: "a" });
    await client.close();
  } finally {
    process.env["ABIDE_BINARY"] = named;
  }
});

test("a program that closes its client ends by itself", async () => {
  const program = run(
    USER.replace("setInterval(() => {}, 1 << 30)", "await client.close()"),
    folder.file("ends.db"),
  );
  const [code] = (await within("its end", once(program, "exit"))) as [number];
  assert.equal(code, 0);
});

test("a file that a server has open is reported with its address", async () => {
  const server = await Server.start();
  const error: unknown = await Abide.open(server.db).catch((reason: unknown) => reason);
  assert.ok(isAbideError(error, "file_locked"), String(error));
  assert.ok(error.hint !== undefined);
  await server.stop();
});

test("a database in memory is refused", async () => {
  for (const name of [":memory:", "file::memory:?cache=shared"]) {
    await assert.rejects(Abide.open(folder.file(name)), (error: unknown) => {
      assert.ok(isAbideError(error, "bad_request") && error.hint, String(error));
      return error.message.includes("no databases in memory");
    });
  }
});

test("a missing or incompatible engine is reported", async () => {
  const named = process.env["ABIDE_BINARY"];
  const fake = folder.file("fake");
  const answer = async (text: string) => {
    await writeFile(fake, `#!/bin/sh\necho '${text}'\n`);
    await chmod(fake, 0o755);
    process.env["ABIDE_BINARY"] = fake;
    return await locateEngine("x.db")().catch((error: unknown) => error);
  };
  try {
    const other = await answer('{"protocol":"abide.v9","version":"9.0.0","socket":"/x"}');
    assert.ok(isAbideError(other, "incompatible_version"));
    assert.ok(other.message.includes("abide.v9") && other.message.includes("abide.v1"), other.message);
    assert.equal(other.hint, "this SDK is older: update it");
    const older = await answer('{"protocol":"abide.v0","version":"0.0.1","socket":"/x"}');
    assert.ok(isAbideError(older, "incompatible_version") && older.hint === "the engine is older: update it");
    const problem = await answer('{"error":{"code":"disk_full","detail":"no space","hint":"free some"}}');
    assert.ok(isAbideError(problem, "disk_full") && problem.hint === "free some");
    assert.ok(isAbideError(await answer("hello"), "engine_start"));
    assert.ok(isAbideError(await answer(""), "engine_start"));
    process.env["ABIDE_BINARY"] = folder.file("none");
    await assert.rejects(Abide.open("x.db"), (error) => isAbideError(error, "engine_start"));
    const path = process.env["PATH"];
    delete process.env["ABIDE_BINARY"];
    process.env["PATH"] = folder.path;
    await assert.rejects(Abide.open("x.db"), (error) => isAbideError(error, "engine_not_found"));
    process.env["PATH"] = path;
  } finally {
    if (named !== undefined) process.env["ABIDE_BINARY"] = named;
  }
});

/** A program that prints this socket as the answer of `abide open`. */
async function fakeEngine(socket: string): Promise<string> {
  const fake = folder.file("fake-engine");
  const line = `{"protocol":"abide.v1","version":"0","pid":1,"socket":"${socket}","started":false}`;
  await writeFile(fake, `#!/bin/sh\necho '${line}'\n`);
  await chmod(fake, 0o755);
  return fake;
}

/** Runs with another engine. */
async function withEngine<T>(program: string, use: () => Promise<T>): Promise<T> {
  const named = process.env["ABIDE_BINARY"];
  process.env["ABIDE_BINARY"] = program;
  try {
    return await use();
  } finally {
    if (named === undefined) delete process.env["ABIDE_BINARY"];
    else process.env["ABIDE_BINARY"] = named;
  }
}

/** Listens at a path, as an attacker does, and counts what it receives. */
async function listen(path: string): Promise<{ bytes(): number; close(): void }> {
  let bytes = 0;
  const server = createServer((socket) => {
    socket.on("error", () => {});
    socket.on("data", (data) => {
      bytes += data.length;
      socket.destroy();
    });
  });
  server.listen(path);
  await once(server, "listening");
  return { bytes: () => bytes, close: () => server.close() };
}

/**
 * When an engine has ended, another user can create its folder in /tmp again and listen there. It received all
 * messages, and its answers were believed.
 */
test("a socket that another user controls receives nothing", async () => {
  const place = folder.file("abide-place");
  const socket = join(place, "socket");
  const isRoot = process.geteuid?.() === 0;
  const kinds: [string, (server: { close(): void }) => Promise<void>][] = [
    ["all can write its folder", () => chmod(place, 0o777)],
    ["a group can write its folder", () => chmod(place, 0o770)],
    [
      "its folder is a link",
      async () => {
        await rename(place, `${place}-real`);
        await symlink(`${place}-real`, place);
      },
    ],
    [
      "it is a file",
      async (server) => {
        server.close();
        await writeFile(socket, "");
      },
    ],
  ];
  // Only root can give a file to another user.
  if (isRoot) kinds.push(["its folder belongs to another user", () => lchown(place, 65534, 65534)]);
  if (isRoot) kinds.push(["it belongs to another user", () => lchown(socket, 65534, 65534)]);
  for (const [kind, prepare] of kinds) {
    await mkdir(place, { mode: 0o700 });
    const server = await listen(socket);
    await prepare(server);
    const opened = withEngine(await fakeEngine(socket), () => Abide.open("x.db"));
    await assert.rejects(
      opened,
      (error) => isAbideError(error, "untrusted_engine") && error.hint !== undefined,
      kind,
    );
    assert.equal(server.bytes(), 0, kind);
    server.close();
    for (const path of [place, `${place}-real`]) await rm(path, { recursive: true, force: true });
  }
  // Without root: a folder of root.
  if (!isRoot) {
    const foreign = withEngine(await fakeEngine("/etc/socket"), () => Abide.open("x.db"));
    await assert.rejects(foreign, (error) => isAbideError(error, "untrusted_engine"));
  }
  for (const answer of ["relative/socket", '", "x": "']) {
    const opened = withEngine(await fakeEngine(answer), () => Abide.open("x.db"));
    await assert.rejects(opened, (error) => isAbideError(error, "engine_start"), answer);
  }
});

/** In a folder that all can write and that is not sticky, another user can replace the engine's folder at any time. */
test("a folder that is replaced during the connection is noticed", async () => {
  const path = folder.file("abide-swap");
  const socket = join(path, "socket");
  await mkdir(path, { mode: 0o700 });
  const real = await listen(socket);
  const place = new EnginePlace(socket);
  place.check();
  await rename(path, `${path}-moved`);
  await mkdir(path, { mode: 0o700 });
  const other = await listen(socket);
  assert.throws(
    () => place.check(),
    (error) => isAbideError(error, "untrusted_engine"),
  );
  if (process.platform === "linux") assert.match(place.path, /^\/proc\/self\/fd\/\d+\/socket$/);
  await rm(path, { recursive: true });
  await rename(`${path}-moved`, path);
  place.check();
  place.close();
  real.close();
  other.close();
});

test("a client whose engine was replaced sends nothing to the other, and continues with its own", async () => {
  const file = folder.file("replaced.db");
  const client = await Abide.open(file);
  const pid = await enginePid(file);
  const path = folder.file("abide-other");
  await mkdir(path);
  const attacker = await listen(join(path, "socket"));
  await chmod(path, 0o777);
  await withEngine(await fakeEngine(join(path, "socket")), async () => {
    process.kill(pid, "SIGKILL");
    const call = client.call.create_session({ agent: "a" }, { deadlineMs: 1_500 });
    const error: unknown = await call.catch((reason: unknown) => reason);
    assert.ok(isAbideError(error, "timed_out") && error.message.includes("not trusted"), String(error));
  });
  assert.equal(attacker.bytes(), 0);
  await client.call.create_session({ agent: "a", id: "s2" });
  assert.deepEqual((await client.sql("SELECT id FROM sessions WHERE id = 's2'")).rows, [{ id: "s2" }]);
  await client.close();
  attacker.close();
});
