/** The WebSocket of browsers, Bun and Deno. */
import { httpUrl } from "../address.js";
import { AbideError, messageOf, refusalError, type Refusal } from "../errors.js";
import type { Socket, SocketEvents, Target } from "../socket.js";
import { tlsHint } from "../tls.js";
import { PROTOCOL } from "../wire.js";

/** Time limit of a connection attempt. */
const CONNECT_MS = 10_000;

/** Opens a WebSocket. */
export async function openWebSocket(target: Target, events: SocketEvents): Promise<Socket> {
  if (target.scope) {
    throw new AbideError("bad_arguments", "a scope needs a header, which this platform cannot send", {
      hint: "use a token with this scope",
    });
  }
  const protocols = [PROTOCOL];
  // A WebSocket of a browser has no Authorization header.
  if (target.token !== undefined) protocols.push(`bearer.${target.token}`);
  const socket = new WebSocket(target.websocket, protocols);
  const isOpen = await opened(socket);
  if (!isOpen) throw await refusal(target);
  return wrap(socket, events);
}

function opened(socket: WebSocket): Promise<boolean> {
  return new Promise((resolve) => {
    const late = setTimeout(() => socket.close(), CONNECT_MS);
    const settle = (isOpen: boolean) => () => {
      clearTimeout(late);
      resolve(isOpen);
    };
    socket.addEventListener("open", settle(true), { once: true });
    socket.addEventListener("close", settle(false), { once: true });
    socket.addEventListener("error", settle(false), { once: true });
  });
}

function wrap(socket: WebSocket, events: SocketEvents): Socket {
  let isClosed = false;
  const closed = (why: string) => {
    if (isClosed) return;
    isClosed = true;
    events.closed(why);
  };
  socket.addEventListener("message", ({ data }) => {
    if (typeof data === "string") events.text(data);
  });
  socket.addEventListener("close", ({ reason }) => {
    closed(reason === "" ? "the server closed the connection" : reason);
  });
  const close = () => socket.close(1000);
  return {
    send: (text) => {
      if (socket.readyState === WebSocket.OPEN) socket.send(text);
    },
    close,
    // A dead connection takes long to close; its events are not of interest any more.
    destroy: close,
  };
}

/** Why a WebSocket did not open, which the platform does not say: an ordinary request finds out. */
async function refusal(target: Target): Promise<AbideError> {
  const headers: Record<string, string> = {};
  if (target.token !== undefined) headers["authorization"] = `Bearer ${target.token}`;
  let why = "it does not open a WebSocket";
  let cause: unknown;
  try {
    const signal = AbortSignal.timeout(CONNECT_MS);
    const answer = await fetch(httpUrl(target, "/v1/schema"), { headers, signal });
    if (!answer.ok) {
      const problem = (await answer.json()) as Refusal;
      if (typeof problem.code === "string") return refusalError(problem);
      why = `it responds with HTTP ${answer.status}`;
    }
  } catch (error) {
    why = messageOf(error);
    cause = error;
  }
  return new AbideError("unreachable", `${target.name} cannot be reached: ${why}`, {
    hint: tlsHint(cause) ?? "start the server with `abide serve`, or check the address",
    cause,
  });
}
