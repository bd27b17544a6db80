/**
 * The place of an engine: a Unix socket in a folder that only the user of this process can write.
 *
 * Its path is not a proof. When an engine has ended, another user can create the folder again and listen there,
 * and Node does not report which user listens. So the owners of the folder and the socket are checked before a
 * connection and again before anything is sent.
 */
import { type BigIntStats, closeSync, constants, existsSync, fstatSync, lstatSync, openSync } from "node:fs";
import { basename, dirname } from "node:path";

import { AbideError, messageOf } from "../errors.js";

/** Group and others may write. */
const WRITABLE = 0o022n;

/** A place that was checked. `close` it after the connection is made. */
export class EnginePlace {
  readonly #path: string;
  /** The folder that was checked, even if another one has its name now. */
  readonly #folder: number;
  readonly #identity: string;

  /**
   * Checks the owners of a socket and of its folder.
   *
   * @throws AbideError `untrusted_engine`; `unreachable` if there is no socket.
   */
  constructor(path: string) {
    this.#path = path;
    this.#identity = identityOf(path);
    const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = constants;
    this.#folder = found(path, () => openSync(dirname(path), O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    try {
      this.check();
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /**
   * The path to connect to. On Linux it leads through the open folder, so that a folder which takes the name
   * for the moment of the connection is not reached.
   */
  get path(): string {
    const open = `/proc/self/fd/${this.#folder}/${basename(this.#path)}`;
    return existsSync(open) ? open : this.#path;
  }

  /**
   * Checks that the folder and the socket are still the same.
   *
   * @throws AbideError `untrusted_engine`; `unreachable` if there is no socket any more.
   */
  check(): void {
    const { dev, ino } = fstatSync(this.#folder, { bigint: true });
    const isSame = this.#identity.startsWith(`${dev}:${ino} `);
    if (!isSame || identityOf(this.#path) !== this.#identity) {
      throw untrusted(this.#path, "it was replaced during the connection");
    }
  }

  close(): void {
    closeSync(this.#folder);
  }
}

/** The inodes of the folder and of the socket, if they belong to this user. */
function identityOf(path: string): string {
  const folder = found(path, () => stats(dirname(path)));
  if (!folder.isDirectory()) throw untrusted(path, "its folder is not a folder");
  if (!isOwn(folder)) throw untrusted(path, `its folder belongs to another user (uid ${folder.uid})`);
  if ((folder.mode & WRITABLE) !== 0n) throw untrusted(path, "other users can write its folder");
  const socket = found(path, () => stats(path));
  if (!socket.isSocket()) throw untrusted(path, "it is not a socket");
  if (!isOwn(socket)) throw untrusted(path, `it belongs to another user (uid ${socket.uid})`);
  return `${folder.dev}:${folder.ino} ${socket.dev}:${socket.ino}`;
}

function stats(path: string): BigIntStats {
  return lstatSync(path, { bigint: true });
}

function isOwn({ uid }: BigIntStats): boolean {
  const own = process.geteuid?.();
  return own !== undefined && uid === BigInt(own);
}

/** An engine that has ended has removed its socket. */
function found<T>(path: string, look: () => T): T {
  try {
    return look();
  } catch (cause) {
    throw new AbideError("unreachable", `the engine at ${path} cannot be reached: ${messageOf(cause)}`, {
      hint: "the engine may have ended; open the file again",
      cause,
    });
  }
}

function untrusted(path: string, why: string): AbideError {
  return new AbideError("untrusted_engine", `the socket ${path} of the engine is not trusted: ${why}`, {
    hint: "another user may pretend to be the engine; set TMPDIR to a folder that only you can write",
  });
}
