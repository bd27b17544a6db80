/**
 * The namespace of a caller with a scope: what begins each id that it chooses. `s1` of a caller with the
 * scope `tenant=acme` is stored as `tenant=acme/s1`. Calls accept both; rows, answers and queries have the
 * stored id.
 */
import type { Abide } from "./abide.js";

/**
 * The stored id that a query selects by `:id`. The id is looked for as it is given and then in the namespace
 * of the caller: in this order the server looks for it, too.
 */
export async function findStoredId(client: Abide, sql: string, given: string): Promise<string | undefined> {
  const select = async (id: string) => (await client.sql<{ id: string }>(sql, { id })).rows[0]?.id;
  const found = await select(given);
  if (found !== undefined) return found;
  // The query was answered, and the namespace is stated before any answer.
  const namespace = client.namespace ?? "";
  return given.startsWith(namespace) ? undefined : await select(namespace + given);
}
