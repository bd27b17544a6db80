/**
 * The messages of a chat as entries of its session. A later entry with the same id replaces the message, and
 * an entry `ui_remove` removes messages: entries are never changed.
 */
import { type Abide, readJson, writeJson } from "@abide/client";
import type { UIMessage } from "ai";

const MESSAGE = "ui_message";
const REMOVE = "ui_remove";

const ENTRIES = `SELECT kind, data FROM agent_state
WHERE session_id = :id AND kind IN ('${MESSAGE}', '${REMOVE}') ORDER BY id`;

export async function loadMessages<Message extends UIMessage>(
  client: Abide,
  chatId: string,
): Promise<Message[]> {
  const { rows } = await client.sql<{ kind: string; data: string }>(ENTRIES, { id: chatId });
  const messages = new Map<string, Message>();
  for (const { kind, data } of rows) {
    const value = readJson(data);
    if (kind === REMOVE) {
      for (const id of value as string[]) messages.delete(id);
    } else {
      const message = value as unknown as Message;
      messages.set(message.id, message);
    }
  }
  return Array.from(messages.values());
}

export async function saveMessages(
  client: Abide,
  chatId: string,
  messages: readonly UIMessage[],
): Promise<void> {
  const stored = await loadMessages(client, chatId);
  // Up to here the order is the same; a message that has changed is replaced in its place.
  const same = stored.findIndex(({ id }, at) => messages[at]?.id !== id);
  const kept = same < 0 ? stored.length : same;
  const removed = stored.slice(kept).map(({ id }) => id);
  const written = messages.filter((message, at) => at >= kept || !isSame(stored[at], message));
  const entry = (role: string, kind: string, content: string | null, data: unknown) => ({
    reducer: "append_message" as const,
    args: { session_id: chatId, role, kind, content, data },
  });
  const calls = written.map((message) => entry(message.role, MESSAGE, textOf(message), message));
  if (removed.length > 0) calls.unshift(entry("system", REMOVE, null, removed));
  if (calls.length > 0) await client.batch(calls);
}

function textOf({ parts }: UIMessage): string {
  return parts.map((part) => (part.type === "text" ? part.text : "")).join("");
}

/** Whether a message is stored as it is. */
function isSame(stored: UIMessage | undefined, message: UIMessage): boolean {
  return isEqual(stored, readJson(writeJson(message)));
}

function isEqual(left: unknown, right: unknown): boolean {
  if (Object.is(left, right)) return true;
  if (typeof left !== "object" || typeof right !== "object" || left === null || right === null) return false;
  if (Array.isArray(left) !== Array.isArray(right)) return false;
  const [a, b] = [left as Record<string, unknown>, right as Record<string, unknown>];
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => key in b && isEqual(a[key], b[key]));
}
