/** The platform of browsers. */
import { AbideError } from "../errors.js";
import type { Locate } from "../socket.js";

export { openWebSocket as openSocket } from "./web-socket.js";

/** A browser cannot start programs. */
export function locateEngine(_file: string): Locate {
  return () => {
    throw new AbideError("engine_not_found", "a browser cannot open a database file", {
      hint: "connect to a server with Abide.connect",
    });
  };
}

/**
 * Calls back when the network is back, or when the tab is visible again. Returns a function that stops that.
 */
export function onWake(wake: () => void): () => void {
  const visible = () => {
    if (document.visibilityState === "visible") wake();
  };
  globalThis.addEventListener?.("online", wake);
  globalThis.document?.addEventListener("visibilitychange", visible);
  return () => {
    globalThis.removeEventListener?.("online", wake);
    globalThis.document?.removeEventListener("visibilitychange", visible);
  };
}
