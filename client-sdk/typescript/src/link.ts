/**
 * The connection to a server: one WebSocket, which is made again whenever it is lost, until the client is
 * closed.
 *
 * A server that is silent gets a ping, and a server that does not answer it counts as lost. So a laptop or a
 * browser tab that slept notices that its connection is dead.
 */
import { Backoff } from "./backoff.js";
import { AbideError, closedError, isAbideError, messageOf } from "./errors.js";
import { Emitter } from "./emitter.js";
import { writeJson } from "./json.js";
import { Requests } from "./requests.js";
import type { Locate, OpenSocket, Socket } from "./socket.js";
import { Subscriptions } from "./subscriptions.js";
import { type Frame, parseFrame, protocolError } from "./wire.js";

/** Times of the heartbeat, in milliseconds. */
export interface Heartbeat {
  /** Silence of the server after which the client sends a ping. */
  pingMs: number;
  /** How long to wait for the answer to a ping. */
  pongMs: number;
}

/** A server that reads a large result still answers within this time. */
export const HEARTBEAT: Heartbeat = { pingMs: 10_000, pongMs: 20_000 };

/** How long to wait for an answer to a ping after the machine or the tab has slept. */
const PONG_AFTER_SLEEP_MS = 3_000;

/** Events of a connection. `lost` has the reason. */
export interface LinkEvents {
  connected: [];
  lost: [why: string];
  closed: [error: AbideError | undefined];
}

export class Link extends Emitter<LinkEvents> {
  readonly requests: Requests;
  readonly subscriptions: Subscriptions;
  /** How often a lost connection was made again. */
  reconnects = 0;
  /** The namespace of the caller, from the first message of the last connection. */
  namespace: string | undefined;

  readonly #locate: Locate;
  readonly #openSocket: OpenSocket;
  readonly #heartbeat: Heartbeat;
  readonly #backoff = new Backoff();
  #socket: Socket | undefined;
  /** Distinguishes the events of the current socket from those of earlier ones. */
  #generation = 0;
  #lastError: string | undefined;
  #closed: AbideError | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** Ends the current pause between two attempts. */
  #endPause: (() => void) | undefined;
  #receivedAt = 0;
  #isPinged = false;

  constructor(locate: Locate, openSocket: OpenSocket, heartbeat: Heartbeat) {
    super();
    this.#locate = locate;
    this.#openSocket = openSocket;
    this.#heartbeat = heartbeat;
    const sendText = (text: string) => this.#socket?.send(text);
    this.requests = new Requests(sendText, () => this.#lastError);
    this.subscriptions = new Subscriptions((message) => sendText(writeJson(message)));
  }

  get isConnected(): boolean {
    return this.#socket !== undefined;
  }

  /** Why it has ended, if it has. */
  get closed(): AbideError | undefined {
    return this.#closed;
  }

  /** Makes the first connection. An engine can end between its start and the connection; then it is started again. */
  async connect(attempts: number): Promise<void> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#dial();
      } catch (error) {
        if (attempt >= attempts || this.#closed || !isAbideError(error, "unreachable")) throw error;
        await this.#pause(this.#backoff.next());
      }
    }
  }

  /**
   * Checks the connection now, or makes the next attempt now: the network is back, or the tab is visible
   * again.
   */
  wake(): void {
    if (this.#endPause) this.#endPause();
    else if (this.#socket) this.#ping(PONG_AFTER_SLEEP_MS);
  }

  /** Ends everything: with this error, or because the program closes the client. */
  close(error?: AbideError): void {
    if (this.#closed) return;
    this.#closed = error ?? closedError();
    this.#generation += 1;
    clearTimeout(this.#timer);
    this.#endPause?.();
    this.#socket?.close();
    this.#socket = undefined;
    this.requests.end(this.#closed);
    this.subscriptions.end(error);
    this.emit("closed", error);
    this.removeListeners();
  }

  async #dial(): Promise<void> {
    const generation = ++this.#generation;
    const isCurrent = () => generation === this.#generation;
    const target = await this.#locate();
    const socket = await this.#openSocket(target, {
      text: (text) => {
        if (isCurrent()) this.#receive(text);
      },
      closed: (why) => {
        if (isCurrent()) this.#lost(why);
      },
    });
    if (this.#closed) {
      socket.close();
      throw this.#closed;
    }
    // It was lost in the meantime, and another attempt is under way.
    if (!isCurrent()) return socket.destroy();
    this.#socket = socket;
    this.#lastError = undefined;
    this.#receivedAt = performance.now();
    this.#isPinged = false;
    this.#watch(this.#heartbeat.pingMs);
    this.requests.connected();
    this.subscriptions.connected();
    this.emit("connected");
  }

  #lost(why: string): void {
    this.#generation += 1;
    clearTimeout(this.#timer);
    this.#socket?.destroy();
    this.#socket = undefined;
    this.#lastError = why;
    this.requests.disconnected();
    this.subscriptions.disconnected();
    this.emit("lost", why);
    void this.#reconnect();
  }

  /** Reconnects, however long that takes. Never rejects. */
  async #reconnect(): Promise<void> {
    while (!this.#closed) {
      await this.#pause(this.#backoff.next());
      if (this.#closed) return;
      try {
        await this.#dial();
        this.reconnects += 1;
        return;
      } catch (error) {
        if (isFinal(error)) this.close(error);
        this.#lastError = messageOf(error);
      }
    }
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#endPause?.(), ms);
      this.#endPause = () => {
        this.#endPause = undefined;
        clearTimeout(timer);
        resolve();
      };
    });
  }

  #receive(text: string): void {
    this.#receivedAt = performance.now();
    this.#isPinged = false;
    try {
      this.#dispatch(parseFrame(text));
    } catch (error) {
      this.close(isAbideError(error) ? error : protocolError(messageOf(error), error));
    }
  }

  #dispatch(frame: Frame): void {
    this.#backoff.reset();
    switch (frame.op) {
      case "hello":
        this.namespace = frame.namespace ?? "";
        return this.subscriptions.hello(frame);
      case "snapshot":
        return this.subscriptions.snapshot(frame);
      case "delta":
        return this.subscriptions.delta(frame);
      case "rerun":
        return this.subscriptions.rerun(frame);
      case "progress":
        return this.subscriptions.progress(frame);
      case "error":
        // Without an id it concerns the connection, which the server closes; its answer to the next one
        // counts.
        if (frame.id !== undefined && !this.requests.answer(frame)) {
          this.subscriptions.refused(frame.id, frame);
        }
        return;
      default:
        // An answer, or a message of a newer server, which is ignored.
        this.requests.answer(frame);
    }
  }

  /** Checks the connection after this time. */
  #watch(ms: number): void {
    clearTimeout(this.#timer);
    const due = performance.now() + ms;
    this.#timer = setTimeout(() => this.#check(due), ms);
  }

  #check(due: number): void {
    const silentMs = performance.now() - this.#receivedAt;
    if (this.#isPinged) {
      this.#lost(`the server was silent for ${Math.round(silentMs / 1000)} s`);
    } else if (silentMs < this.#heartbeat.pingMs) {
      this.#watch(this.#heartbeat.pingMs - silentMs);
    } else {
      // A timer that is late was suspended: the connection is probably dead.
      const slept = performance.now() - due > this.#heartbeat.pongMs;
      this.#ping(slept ? PONG_AFTER_SLEEP_MS : this.#heartbeat.pongMs);
    }
  }

  #ping(waitMs: number): void {
    this.#isPinged = true;
    this.#socket?.send('{"op":"ping"}');
    this.#watch(Math.min(waitMs, this.#heartbeat.pongMs));
  }
}

/** A retry would not help: the server rejected the credentials, or it is of another version. */
function isFinal(error: unknown): error is AbideError {
  const codes = ["unauthenticated", "denied", "incompatible_version", "engine_not_found", "file_locked"];
  return isAbideError(error) && codes.includes(error.code);
}
