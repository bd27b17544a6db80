/** The opening handshake of a WebSocket (RFC 6455, section 4), over any stream. */
import { createHash, randomBytes } from "node:crypto";
import type { Duplex } from "node:stream";

import { AbideError, refusalError, type Refusal } from "../errors.js";
import type { Target } from "../socket.js";
import { PROTOCOL, updateHint } from "../wire.js";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/** The most bytes of an answer that is no WebSocket. */
const ANSWER_BYTES = 64 << 10;

/**
 * Performs the handshake. Returns the bytes after it.
 *
 * @throws AbideError the refusal of the server, or `unreachable`.
 */
export async function handshake(stream: Duplex, target: Target): Promise<Buffer> {
  const key = randomBytes(16).toString("base64");
  stream.write(request(target, key));
  const answer = new Answer();
  for await (const bytes of chunks(stream)) {
    const rest = answer.push(bytes);
    if (rest === undefined) continue;
    if (answer.status !== 101) throw rejected(target, answer, rest);
    const accept = createHash("sha1")
      .update(key + GUID)
      .digest("base64");
    if (answer.headers.get("sec-websocket-accept") !== accept) {
      throw otherProgram(target, "its handshake is not that of a WebSocket");
    }
    const protocol = answer.headers.get("sec-websocket-protocol");
    if (protocol !== PROTOCOL) {
      throw new AbideError("incompatible_version", `${target.name} does not speak ${PROTOCOL}`, {
        hint: updateHint(protocol, "the server"),
      });
    }
    return rest;
  }
  throw answer.status === 0
    ? unreachable(target, "the server closed the connection")
    : rejected(target, answer, answer.body);
}

/** The error of a server that does not answer. */
export function unreachable(target: Target, why: string, cause?: unknown): AbideError {
  return new AbideError("unreachable", `${target.name} cannot be reached: ${why}`, {
    hint: "start the server with `abide serve`, or check the address",
    cause,
  });
}

/** The error of a program that is not a server of Abide. */
export function otherProgram(target: Target, why: string, cause?: unknown): AbideError {
  return new AbideError("unreachable", `${target.name} is not an Abide server: ${why}`, {
    hint: "check the URL: another program listens there",
    cause,
  });
}

/** Reads a stream without ending it when the reader stops. */
async function* chunks(stream: Duplex): AsyncGenerator<Buffer> {
  const iterator = stream.iterator({ destroyOnReturn: false }) as AsyncIterableIterator<Buffer>;
  for await (const chunk of iterator) yield chunk;
}

function request(target: Target, key: string): string {
  const url = new URL(target.websocket);
  const lines = [
    `GET ${url.pathname} HTTP/1.1`,
    `Host: ${url.host}`,
    "Upgrade: websocket",
    "Connection: Upgrade",
    `Sec-WebSocket-Key: ${key}`,
    "Sec-WebSocket-Version: 13",
    `Sec-WebSocket-Protocol: ${PROTOCOL}`,
  ];
  if (target.token !== undefined) lines.push(`Authorization: Bearer ${target.token}`);
  if (target.scope) lines.push(`Abide-Scope: ${asciiJson(target.scope)}`);
  return `${lines.join("\r\n")}\r\n\r\n`;
}

/** JSON of printable ASCII, which every proxy accepts in a header. */
function asciiJson(value: unknown): string {
  return JSON.stringify(value).replace(
    /[^ -~]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** The head of an HTTP answer, and the body of one that is no WebSocket. */
class Answer {
  status = 0;
  readonly headers = new Map<string, string>();
  body: Buffer = Buffer.alloc(0);
  #hasHead = false;

  /** Adds bytes. Returns the rest after the head once the answer is complete. */
  push(bytes: Buffer): Buffer | undefined {
    this.body = Buffer.concat([this.body, bytes]);
    if (this.body.length > ANSWER_BYTES && this.status !== 101) return this.body;
    if (!this.#hasHead) {
      const end = this.body.indexOf("\r\n\r\n");
      if (end < 0) return undefined;
      this.#readHead(this.body.toString("latin1", 0, end));
      this.body = this.body.subarray(end + 4);
    }
    const length = Number(this.headers.get("content-length") ?? Infinity);
    return this.status === 101 || this.body.length >= length ? this.body : undefined;
  }

  #readHead(head: string): void {
    const [first = "", ...lines] = head.split("\r\n");
    this.#hasHead = true;
    this.status = Number(/^HTTP\/1\.[01] (\d{3})/.exec(first)?.[1] ?? 0);
    for (const line of lines) {
      const colon = line.indexOf(":");
      this.headers.set(line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim());
    }
  }
}

/** The error of an answer that is no WebSocket. */
function rejected(target: Target, answer: Answer, body: Buffer): AbideError {
  try {
    const problem = JSON.parse(body.toString("utf8")) as Refusal;
    if (typeof problem.code === "string") return refusalError(problem);
  } catch {
    // It is not a problem document: the status decides.
  }
  return statusError(target, answer.status);
}

/** The error of an HTTP status without a problem document. */
export function statusError(target: Target, status: number): AbideError {
  if (status === 401) {
    return new AbideError("unauthenticated", "the server requires a valid token", {
      hint: "pass a token with { token }",
    });
  }
  if (status === 403) return new AbideError("denied", "the server responds with HTTP 403 and names no reason");
  const why =
    status === 0
      ? "it does not answer in HTTP"
      : `it responds with HTTP ${status} instead of opening a WebSocket`;
  // A proxy reports that the server behind it does not answer.
  return status >= 500 ? unreachable(target, why) : otherProgram(target, why);
}
