/**
 * The namespace of a caller with a scope: what begins each id that it chooses. `s1` of a caller with the
 * scope `tenant=acme` is stored as `tenant=acme/s1`. Calls accept both; rows, answers and queries have the
 * stored id.
 */
import type { Abide } from "./abide.js";
import { isAbideError } from "./errors.js";
import { newId } from "./new-id.js";
import { protocolError } from "./wire.js";

/** The namespaces of clients that are known, and the connections on which they were found out. */
const known = new WeakMap<Abide, { reconnects: number; namespace: Promise<string> }>();

/** The stored id of something whose id a caller chose. */
export async function storedId(client: Abide, id: string): Promise<string> {
  const namespace = await namespaceOf(client);
  return id.startsWith(namespace) ? id : namespace + id;
}

/** The namespace of the caller; empty without a scope, and for a role that cannot create sessions. */
function namespaceOf(client: Abide): Promise<string> {
  const { reconnects } = client;
  const found = known.get(client);
  // The scope of an identity can be changed, which ends its connections.
  if (found?.reconnects === reconnects) return found.namespace;
  const namespace = ask(client);
  known.set(client, { reconnects, namespace });
  namespace.catch(() => known.delete(client));
  return namespace;
}

/** A batch that creates a session twice is refused, writes nothing, and its refusal names the stored id. */
async function ask(client: Abide): Promise<string> {
  const id = newId();
  const create = { reducer: "create_session", args: { agent: "namespace", id } } as const;
  try {
    await client.batch([create, create]);
  } catch (error) {
    if (isAbideError(error, "denied")) return "";
    if (!isAbideError(error, "conflict")) throw error;
    return namespaceIn(error.message, id) ?? "";
  }
  throw protocolError("a session was created twice");
}

/** What a sentence has in front of an id, if that is a namespace; `undefined` if it has no such id. */
function namespaceIn(sentence: string, id: string): string | undefined {
  const at = sentence.lastIndexOf(id);
  if (at < 0) return undefined;
  const before = /\S*$/.exec(sentence.slice(0, at))?.[0] ?? "";
  // All other characters of a namespace are escaped.
  return /^([\w%.=,-]+\/)?$/.test(before) ? before : undefined;
}
