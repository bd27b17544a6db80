/** A WebSocket client over TCP, TLS and Unix sockets, on the standard library of Node. */
import { once } from "node:events";
import { connect as connectTcp, isIP, type Socket as TcpSocket } from "node:net";
import { connect as connectTls } from "node:tls";

import { isAbideError, messageOf } from "../errors.js";
import type { Socket, SocketEvents, Target } from "../socket.js";
import { FrameReader, frameOf, type Message, Opcode } from "./frames.js";
import { handshake, unreachable } from "./handshake.js";
import { EnginePlace } from "./place.js";

/** Time limit of a connection attempt, with name resolution and handshake. */
const CONNECT_MS = 10_000;

/** How long to wait for the close frame of the server. */
const CLOSING_MS = 1_000;

/**
 * Opens a WebSocket.
 *
 * @throws AbideError `unreachable`, `untrusted_engine`, or the refusal of the server.
 */
export async function openNodeSocket(target: Target, events: SocketEvents): Promise<Socket> {
  const place = target.socketPath === undefined ? undefined : new EnginePlace(target.socketPath);
  const stream = place ? connectTcp({ path: place.path }) : streamTo(target);
  // After the handshake, errors are reported with the event `close`.
  let failure: Error | undefined;
  stream.on("error", (error) => (failure = error));
  const late = setTimeout(() => {
    stream.destroy(new Error(`no answer within ${CONNECT_MS / 1000} s`));
  }, CONNECT_MS);
  try {
    if (place) {
      await once(stream, "connect");
      place.check();
    }
    const rest = await handshake(stream, target);
    return new NodeSocket(stream, events, rest, () => failure);
  } catch (error) {
    stream.destroy();
    throw isAbideError(error) ? error : unreachable(target, messageOf(error), error);
  } finally {
    clearTimeout(late);
    place?.close();
  }
}

function streamTo(target: Target): TcpSocket {
  const url = new URL(target.websocket);
  const host = url.hostname.replace(/^\[|\]$/g, "");
  if (url.protocol === "wss:") {
    // A certificate is compared with an address too, but a server name is never one (RFC 6066, section 3).
    const servername = isIP(host) === 0 ? host : "";
    return connectTls({ host, port: Number(url.port || 443), servername });
  }
  // Messages are whole frames: waiting to fill a packet only delays them.
  return connectTcp({ host, port: Number(url.port || 80), noDelay: true });
}

class NodeSocket implements Socket {
  readonly #reader = new FrameReader();
  readonly #decoder = new TextDecoder("utf-8", { fatal: true });
  #isClosing = false;
  #closeReason: string | undefined;

  constructor(
    readonly stream: TcpSocket,
    readonly events: SocketEvents,
    rest: Buffer,
    failure: () => Error | undefined,
  ) {
    stream.on("close", () => {
      const why = this.#closeReason ?? failure()?.message ?? "the server closed the connection";
      this.events.closed(why);
    });
    // The caller must have the socket before its first message.
    setImmediate(() => {
      if (rest.length > 0) this.#receive(rest);
      stream.on("data", (chunk: Buffer) => this.#receive(chunk));
      stream.on("end", () => stream.destroy());
    });
  }

  send(text: string): void {
    if (this.#isClosing || this.stream.destroyed) return;
    // Messages of one turn of the event loop are written together.
    if (this.stream.writableCorked === 0) {
      this.stream.cork();
      process.nextTick(() => this.stream.uncork());
    }
    this.stream.write(frameOf(Opcode.Text, Buffer.from(text)));
  }

  close(): void {
    if (this.#isClosing) return;
    this.#isClosing = true;
    const late = setTimeout(() => this.stream.destroy(), CLOSING_MS);
    this.stream.once("close", () => clearTimeout(late));
    this.stream.write(frameOf(Opcode.Close, Buffer.from([0x03, 0xe8])));
  }

  destroy(): void {
    this.#isClosing = true;
    this.stream.destroy();
  }

  #receive(chunk: Buffer): void {
    try {
      this.#reader.push(chunk, (message) => this.#take(message));
    } catch (error) {
      this.#closeReason = messageOf(error);
      this.stream.destroy();
    }
  }

  #take({ opcode, payload }: Message): void {
    switch (opcode) {
      case Opcode.Text:
        return this.events.text(this.#decoder.decode(payload));
      case Opcode.Ping:
        this.stream.write(frameOf(Opcode.Pong, payload));
        return;
      case Opcode.Close: {
        const reason = payload.subarray(2).toString("utf8");
        if (reason !== "") this.#closeReason = reason;
        if (!this.#isClosing) this.stream.write(frameOf(Opcode.Close, payload.subarray(0, 2)));
        this.stream.end();
        return;
      }
      case Opcode.Pong:
        return;
      default:
        throw new Error("a binary message");
    }
  }
}
