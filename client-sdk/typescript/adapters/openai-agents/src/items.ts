/** Items of the history as entries of a session's state. */
import type { Json } from "@abide/client";
import type { AgentInputItem } from "@openai/agents";

/**
 * The author of an item: its role, or `tool` for results and `assistant` for everything else that a model
 * produced.
 */
export function roleOf(item: AgentInputItem): string {
  if ("role" in item && typeof item.role === "string") return item.role;
  return item.type?.endsWith("_result") || item.type?.endsWith("_output") ? "tool" : "assistant";
}

/** The text of a message; `null` for other items. */
export function contentOf(item: AgentInputItem): string | null {
  if (!("content" in item)) return null;
  if (typeof item.content === "string") return item.content;
  if (!Array.isArray(item.content)) return null;
  const texts = item.content.map((part) =>
    "text" in part && typeof part.text === "string" ? part.text : "",
  );
  return texts.join("");
}

/** Turns the stored form of bytes into bytes again. */
export function revived(value: Json): unknown {
  if (Array.isArray(value)) return value.map(revived);
  if (typeof value !== "object" || value === null) return value;
  const { $blob: blob, ...others } = value as { $blob?: Json };
  if (typeof blob === "string" && Object.keys(others).length === 0)
    return new Uint8Array(Buffer.from(blob, "base64"));
  return Object.fromEntries(Object.entries(value).map(([key, field]) => [key, revived(field)]));
}

/** Whether two values are equal as JSON: properties that are `undefined` do not count. */
export function isSame(left: unknown, right: unknown): boolean {
  if (Object.is(left, right)) return true;
  if (typeof left !== "object" || typeof right !== "object" || left === null || right === null) return false;
  if (Array.isArray(left) !== Array.isArray(right)) return false;
  const [a, b] = [left as Record<string, unknown>, right as Record<string, unknown>];
  return [...new Set([...Object.keys(a), ...Object.keys(b)])].every((key) => isSame(own(a, key), own(b, key)));
}

function own(object: Record<string, unknown>, key: string): unknown {
  return Object.hasOwn(object, key) ? object[key] : undefined;
}
