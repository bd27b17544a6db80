/** The platform of Node, Bun and Deno. */
import type { OpenSocket } from "../socket.js";
import { openNodeSocket } from "./node-socket.js";
import { openWebSocket } from "./web-socket.js";

export { locateEngine } from "./engine.js";

const { Bun, Deno } = globalThis as { Bun?: unknown; Deno?: unknown };

/** Bun and Deno have a WebSocket of their own, which does not speak Unix sockets and takes no headers. */
const hasOwnWebSocket = Bun !== undefined || Deno !== undefined;

export const openSocket: OpenSocket = (target, events) => {
  const needsNode = target.socketPath !== undefined || target.scope !== undefined;
  return hasOwnWebSocket && !needsNode ? openWebSocket(target, events) : openNodeSocket(target, events);
};

/** Calls back when the machine wakes up. Node does not report that; the heartbeat notices. */
export function onWake(_wake: () => void): () => void {
  return () => {};
}
