/** The address of a server. */
import { AbideError } from "./errors.js";
import type { Target } from "./socket.js";

/** Credentials for a server. */
export interface Credentials {
  token?: string | undefined;
  scope?: Readonly<Record<string, string>> | undefined;
}

/**
 * Parses an address such as `http://127.0.0.1:7341`.
 *
 * @throws AbideError `bad_address`.
 */
export function targetOf(address: string, { token, scope }: Credentials = {}): Target {
  const wrong = (why: string) =>
    new AbideError("bad_address", `${JSON.stringify(address)} is not the address of a server: ${why}`, {
      hint: "for example http://127.0.0.1:7341",
    });
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    throw wrong("it is not a URL");
  }
  const scheme = { "http:": "ws:", "ws:": "ws:", "https:": "wss:", "wss:": "wss:" }[url.protocol];
  if (scheme === undefined) throw wrong("it does not begin with http:// or https://");
  if (url.search !== "" || url.hash !== "" || url.username !== "" || url.password !== "") {
    throw wrong("it contains more than a host and a path; pass a token with { token }");
  }
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
    throw new AbideError("bad_arguments", "the token has characters that are not allowed in a header");
  }
  const path = url.pathname.replace(/\/+$/, "");
  return { name: address, websocket: `${scheme}//${url.host}${path}/v1/ws`, token, scope };
}

/** The URL for plain HTTP requests. */
export function httpUrl(target: Target, path: string): string {
  return target.websocket.replace(/^ws/, "http").replace(/\/v1\/ws$/, path);
}
