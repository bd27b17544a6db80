/** The parts that a platform provides: WebSockets, and the engine that `Abide.open` starts. */

/** One open WebSocket. */
export interface Socket {
  /** Sends a text message. Messages are sent in order. */
  send(text: string): void;
  /** Closes it with a close frame. */
  close(): void;
  /** Closes it at once. */
  destroy(): void;
}

/** The events of a socket after it is open. */
export interface SocketEvents {
  /** A text message. */
  text(text: string): void;
  /** The socket is closed. Nothing follows. */
  closed(why: string): void;
}

/** Where a server is, and the credentials for it. */
export interface Target {
  /** The address as the user gave it, for messages. */
  readonly name: string;
  /** The URL of the WebSocket, with the scheme ws or wss. */
  readonly websocket: string;
  /** The path of a Unix socket, instead of the host of the URL. */
  readonly socketPath?: string | undefined;
  readonly token?: string | undefined;
  /** The client narrows its requests to this scope. */
  readonly scope?: Readonly<Record<string, string>> | undefined;
}

/**
 * Opens a WebSocket.
 *
 * @throws AbideError `unreachable`, or the refusal of the server.
 */
export type OpenSocket = (target: Target, events: SocketEvents) => Promise<Socket>;

/** Finds the target of a connection. For `Abide.open` it starts the engine if it does not run. */
export type Locate = () => Promise<Target>;
