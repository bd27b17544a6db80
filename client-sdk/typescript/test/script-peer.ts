/** A server that a scenario plays message by message. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { type AddressInfo, createServer, type Server as TcpServer, type Socket } from "node:net";

import { parseJson, writeJson } from "#dist/json.js";

import { within } from "./within.js";

/** A message of the client. */
export type ClientMessage = Record<string, unknown>;

export class ScriptPeer {
  readonly #server: TcpServer;
  /** Connections whose handshake is not answered. */
  readonly #arrived = new Queue<Socket>();
  #current: Connection | undefined;

  private constructor(server: TcpServer) {
    this.#server = server;
  }

  static async listen(): Promise<ScriptPeer> {
    const server = createServer();
    const peer = new ScriptPeer(server);
    server.on("connection", (socket) => {
      socket.on("error", () => {});
      peer.#arrived.push(socket);
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return peer;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async accept(hello: object): Promise<void> {
    this.#current = await this.#open();
    this.say({ op: "hello", server: "abide", version: "0", ...hello });
  }

  /** Waits for the next connection, and closes it before the handshake is answered or before `hello`. */
  async refuse(point: string): Promise<void> {
    if (point === "hello") {
      (await this.#open()).socket.destroy();
    } else {
      assert.equal(point, "handshake");
      (await within("a connection", this.#arrived.next())).destroy();
    }
  }

  async #open(): Promise<Connection> {
    const socket = await within("a connection", this.#arrived.next());
    return await within("a handshake", new Promise<Connection>((resolve) => new Connection(socket, resolve)));
  }

  async hear(wanted: (message: ClientMessage) => boolean): Promise<ClientMessage> {
    for (;;) {
      const message = await within("a message of the client", this.#connection.messages.next());
      if (wanted(message)) return message;
    }
  }

  say(message: object): void {
    this.sayText(writeJson(message));
  }

  /** Sends a text, which need not be a message. */
  sayText(text: string): void {
    this.#connection.send(text);
  }

  drop(): void {
    this.#connection.socket.destroy();
  }

  close(): void {
    this.#server.close();
    this.#current?.socket.destroy();
  }

  get #connection(): Connection {
    if (!this.#current) throw new Error("the script has not accepted a connection");
    return this.#current;
  }
}

/** Items that arrive before or after they are wanted. */
class Queue<T> {
  #items: T[] = [];
  #waiting: ((item: T) => void)[] = [];

  push(item: T): void {
    const waiting = this.#waiting.shift();
    if (waiting) waiting(item);
    else this.#items.push(item);
  }

  next(): Promise<T> {
    const item = this.#items.shift();
    return item === undefined ? new Promise((resolve) => this.#waiting.push(resolve)) : Promise.resolve(item);
  }
}

/** The server's side of a WebSocket, with small frames of the client only. */
class Connection {
  readonly messages = new Queue<ClientMessage>();
  #bytes = Buffer.alloc(0);

  constructor(
    readonly socket: Socket,
    onOpen: (connection: Connection) => void,
  ) {
    socket.on("data", (chunk: Buffer) => {
      this.#bytes = Buffer.concat([this.#bytes, chunk]);
      if (this.#bytes.includes("\r\n\r\n") && this.#bytes.toString().startsWith("GET ")) {
        this.#handshake();
        onOpen(this);
      }
      this.#readFrames();
    });
  }

  send(text: string): void {
    const payload = Buffer.from(text);
    const header = Buffer.alloc(payload.length < 126 ? 2 : 4);
    header[0] = 0x81;
    header[1] = Math.min(payload.length, 126);
    if (header.length === 4) header.writeUInt16BE(payload.length, 2);
    this.socket.write(Buffer.concat([header, payload]));
  }

  #handshake(): void {
    const head = this.#bytes.toString();
    const end = head.indexOf("\r\n\r\n") + 4;
    const key = /sec-websocket-key: (.*)\r\n/i.exec(head)?.[1] ?? "";
    const accept = createHash("sha1").update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
    this.#bytes = this.#bytes.subarray(end);
    const lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"];
    lines.push(`Sec-WebSocket-Accept: ${accept}`, "Sec-WebSocket-Protocol: abide.v1", "", "");
    this.socket.write(lines.join("\r\n"));
  }

  #readFrames(): void {
    while (this.#bytes.length >= 6 && !this.#bytes.toString("latin1").startsWith("GET ")) {
      const short = (this.#bytes[1] as number) & 0x7f;
      const header = short === 126 ? 4 : 2;
      const length = short === 126 ? this.#bytes.readUInt16BE(2) : short;
      const start = header + 4;
      if (this.#bytes.length < start + length) return;
      const mask = this.#bytes.subarray(header, start);
      const payload = Buffer.from(this.#bytes.subarray(start, start + length));
      payload.forEach((byte, at) => (payload[at] = byte ^ (mask[at & 3] as number)));
      const opcode = (this.#bytes[0] as number) & 0x0f;
      this.#bytes = this.#bytes.subarray(start + length);
      if (opcode === 1) this.messages.push(parseJson(payload.toString()) as ClientMessage);
    }
  }
}
