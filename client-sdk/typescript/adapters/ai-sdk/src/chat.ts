/**
 * One chat: its messages as entries of a session. A later entry with the same id replaces the message, and an entry `ui_remove`
 * removes messages: entries are never changed.
 *
 * Entries that were read are kept, so that the next operation reads only newer ones.
 */
import { type Abide, readJson, writeJson } from "@abide/client";
import type { UIMessage } from "ai";

const MESSAGE = "ui_message";
const REMOVE = "ui_remove";

const ENTRIES = `SELECT id, kind, data FROM agent_state
WHERE session_id = :chat AND id > :last AND kind IN ('${MESSAGE}', '${REMOVE}') ORDER BY id`;

/** A stored message: the entry that has it, and its JSON. */
interface Stored {
  entry: number;
  json: string;
}

export class Chat {
  readonly #client: Abide;
  readonly #id: string;
  readonly #agent: string;
  /** By the ids of the messages, in order. */
  readonly #stored = new Map<string, Stored>();
  /** The entries that this process has written, as `JSON.stringify` writes them: comparing texts is faster than comparing objects. */
  readonly #written = new Map<string, Stored>();
  /** The last entry that was read. */
  #last = 0;
  /** The connection on which it was read. */
  #reconnects = 0;
  /** The stored id of the session; that of a caller with a scope begins with the namespace of the scope. */
  #session: string | undefined;
  /** Operations run one after the other. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(client: Abide, id: string, agent: string) {
    this.#client = client;
    this.#id = id;
    this.#agent = agent;
  }

  load<Message extends UIMessage>(): Promise<Message[]> {
    return this.#inTurn(async () => {
      await this.#read();
      return Array.from(this.#stored.values(), ({ json }) => readJson(json) as unknown as Message);
    });
  }

  save(messages: readonly UIMessage[]): Promise<void> {
    return this.#inTurn(async () => {
      await this.#read();
      const session = await this.#create();
      const ids = Array.from(this.#stored.keys());
      // Up to here the order is the same; a message that has changed is replaced in its place.
      const difference = ids.findIndex((id, at) => messages[at]?.id !== id);
      const kept = difference < 0 ? ids.length : difference;
      await this.#write(
        session,
        ids.slice(kept),
        messages.filter((message, at) => at >= kept || !this.#isStored(message)),
      );
    });
  }

  /** Creates the session of the chat, if it does not exist. Returns its stored id. */
  create(): Promise<string> {
    return this.#inTurn(async () => {
      this.#forgetIfLost();
      return await this.#create();
    });
  }

  /** The stored id of the session; `undefined` if it does not exist. */
  find(): Promise<string | undefined> {
    return this.#inTurn(async () => {
      this.#forgetIfLost();
      return await this.#find();
    });
  }

  async #create(): Promise<string> {
    this.#session ??= (await this.#client.session({ id: this.#id, agent: this.#agent })).id;
    return this.#session;
  }

  async #find(): Promise<string | undefined> {
    this.#session ??= (await this.#client.findSession(this.#id))?.id;
    return this.#session;
  }

  async #write(session_id: string, removed: string[], messages: UIMessage[]): Promise<void> {
    const entry = (role: string, kind: string, content: string | null, data: unknown) => ({
      reducer: "append_message" as const,
      args: { session_id, role, kind, content, data },
    });
    const calls = removed.length > 0 ? [entry("system", REMOVE, null, removed)] : [];
    const first = calls.length;
    for (const message of messages) calls.push(entry(message.role, MESSAGE, textOf(message), message));
    if (calls.length === 0) return;
    const { results } = await this.#client.batch(calls);
    messages.forEach((message, at) => {
      const { id } = results[first + at] as { id: number };
      this.#written.set(message.id, { entry: id, json: JSON.stringify(message) });
    });
  }

  async #read(): Promise<void> {
    this.#forgetIfLost();
    const chat = await this.#find();
    if (chat === undefined) return;
    type Entry = { id: number; kind: string; data: string };
    const { rows } = await this.#client.sql<Entry>(ENTRIES, { chat, last: this.#last });
    for (const { id: entry, kind, data } of rows) {
      this.#last = entry;
      const value = readJson(data);
      if (kind === MESSAGE) {
        this.#stored.set((value as { id: string }).id, { entry, json: data });
        continue;
      }
      for (const id of value as string[]) {
        this.#stored.delete(id);
        this.#written.delete(id);
      }
    }
  }

  /** After a lost connection the server can have another history: an older backup was restored. */
  #forgetIfLost(): void {
    if (this.#reconnects === this.#client.reconnects) return;
    this.#reconnects = this.#client.reconnects;
    this.#stored.clear();
    this.#written.clear();
    this.#last = 0;
    this.#session = undefined;
  }

  /** Whether a message is stored as it is. */
  #isStored(message: UIMessage): boolean {
    const [stored, written] = [this.#stored.get(message.id), this.#written.get(message.id)];
    if (!stored) return false;
    if (written?.entry === stored.entry && written.json === JSON.stringify(message)) return true;
    return isEqual(readJson(stored.json), readJson(writeJson(message)));
  }

  #inTurn<Result>(operation: () => Promise<Result>): Promise<Result> {
    const result = this.#turn.then(operation);
    this.#turn = result.catch(() => {});
    return result;
  }
}

function textOf({ parts }: UIMessage): string {
  return parts.map((part) => (part.type === "text" ? part.text : "")).join("");
}

function isEqual(left: unknown, right: unknown): boolean {
  if (Object.is(left, right)) return true;
  if (typeof left !== "object" || typeof right !== "object" || left === null || right === null) return false;
  if (Array.isArray(left) !== Array.isArray(right)) return false;
  const [a, b] = [left as Record<string, unknown>, right as Record<string, unknown>];
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && isEqual(a[key], b[key]));
}
