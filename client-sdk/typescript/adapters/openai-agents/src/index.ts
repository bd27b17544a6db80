/**
 * Abide as the `Session` of the OpenAI Agents SDK.
 *
 * Each item of the history is one entry of the session's state, so that SQL and live queries see it. Entries
 * are never changed: removing items is an entry too, and the history is what all entries in order lead to. So
 * the storage grows with the number of items.
 */
import { type Abide, readJson, type Session as Steps } from "@abide/client";
import {
  type AgentInputItem,
  applySessionHistoryMutations,
  type SessionHistoryMutation,
  type SessionHistoryRewriteArgs,
  type SessionHistoryRewriteAwareSession,
  type SessionHistoryTransactionArgs,
  type SessionHistoryTransactionAwareSession,
} from "@openai/agents";

import { contentOf, isSame, revived, roleOf } from "./items.js";

/** Options of a session. */
export interface AbideSessionOptions {
  /** The id of the session. It is created if it does not exist. Default: a new session. */
  sessionId?: string;
  /** The agent that owns a new session. Default: `agent`. */
  agent?: string;
}

const ITEM = "openai_item";
const CHANGE = "openai_change";

/**
 * A change of the history. `after` is the last entry that its writer had read: if another writer was faster,
 * the change does not count, and its writer tries again.
 */
type Change =
  | { op: "clear" }
  | { op: "mutate"; mutations: SessionHistoryMutation[] }
  | { op: "pop"; after: number }
  | {
      op: "suffix";
      after: number;
      count: number;
      items: AgentInputItem[];
      operation: string;
      expected: AgentInputItem[];
    };

/** The effect of the runner's history operations on a session of Abide. */
export class AbideSession
  implements SessionHistoryRewriteAwareSession, SessionHistoryTransactionAwareSession
{
  readonly #client: Abide;
  readonly #options: AbideSessionOptions;
  #steps: Promise<Steps> | undefined;
  /** The history as of the entry `#last`. */
  #items: AgentInputItem[] = [];
  #last = 0;
  /** The connection on which it was read. */
  #reconnects = 0;
  /** The suffix replacements that were applied, by operation. */
  readonly #operations = new Map<string, Change & { op: "suffix" }>();
  /** Operations run one after the other. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(client: Abide, options: AbideSessionOptions = {}) {
    this.#client = client;
    this.#options = options;
  }

  async getSessionId(): Promise<string> {
    return (await this.#session()).id;
  }

  getItems(limit?: number): Promise<AgentInputItem[]> {
    return this.#inTurn(async () => {
      await this.#read();
      const first = limit === undefined ? 0 : Math.max(this.#items.length - Math.max(limit, 0), 0);
      return structuredClone(this.#items.slice(first));
    });
  }

  addItems(items: AgentInputItem[]): Promise<void> {
    return this.#inTurn(() => this.#append(items));
  }

  popItem(): Promise<AgentInputItem | undefined> {
    return this.#inTurn(async () => {
      for (;;) {
        await this.#read();
        const item = this.#items.at(-1);
        if (!item || (await this.#change({ op: "pop", after: this.#last }))) return item;
      }
    });
  }

  clearSession(): Promise<void> {
    return this.#inTurn(async () => void (await this.#change({ op: "clear" })));
  }

  applyHistoryMutations({ mutations }: SessionHistoryRewriteArgs): Promise<void> {
    return this.#inTurn(async () => {
      if (mutations.length > 0) await this.#change({ op: "mutate", mutations });
    });
  }

  /** Appends items, or replaces the last ones, once for each operation id. */
  applyHistoryTransaction({ operationId, transaction }: SessionHistoryTransactionArgs): Promise<void> {
    return this.#inTurn(async () => {
      if (transaction.type === "append_items") return await this.#append(transaction.items, operationId);
      const { expectedSuffix: expected, replacement: items } = transaction;
      for (;;) {
        await this.#read();
        const applied = this.#operations.get(operationId);
        if (applied) {
          if (isSame(applied.items, items) && isSame(applied.expected, expected)) return;
          throw new Error(`the operation ${operationId} was already applied with a different transaction`);
        }
        const suffix = this.#items.slice(Math.max(this.#items.length - expected.length, 0));
        if (!isSame(suffix, expected)) throw new Error("the end of the history is not the expected one");
        const count = expected.length;
        const change: Change = {
          op: "suffix",
          after: this.#last,
          count,
          items,
          operation: operationId,
          expected,
        };
        if (await this.#change(change)) return;
      }
    });
  }

  #session(): Promise<Steps> {
    const { sessionId, agent = "agent" } = this.#options;
    const options = sessionId === undefined ? { agent } : { agent, id: sessionId };
    this.#steps ??= this.#client.session(options).catch((error: unknown) => {
      this.#steps = undefined;
      throw error;
    });
    return this.#steps;
  }

  async #append(items: AgentInputItem[], operationId?: string): Promise<void> {
    if (items.length === 0) return;
    const { id: session_id } = await this.#session();
    const calls = items.map((item) => ({
      reducer: "append_message" as const,
      args: { session_id, role: roleOf(item), kind: ITEM, content: contentOf(item), data: item },
    }));
    // With the same request id the batch takes effect once, and with other items it is refused.
    await this.#client.batch(
      calls,
      operationId === undefined ? {} : { requestId: `${session_id}/${operationId}` },
    );
  }

  /** Writes a change; returns whether it counts. */
  async #change(change: Change): Promise<boolean> {
    const { id: session_id } = await this.#session();
    const args = { session_id, role: "system", kind: CHANGE, content: null, data: change };
    const { id } = await this.#client.call.append_message(args);
    return (await this.#read()).has(id);
  }

  /** Reads the entries since the last time; returns the changes among them that count. */
  async #read(): Promise<Set<number>> {
    const counted = new Set<number>();
    if (this.#reconnects !== this.#client.reconnects) this.#forget();
    for (const { id, kind, data } of await (await this.#session()).messages({ after: this.#last })) {
      if (kind !== ITEM && kind !== CHANGE) continue;
      const value = revived(readJson(data ?? "null"));
      if (kind === ITEM) this.#items.push(value as AgentInputItem);
      else if (this.#apply(value as Change)) counted.add(id);
      this.#last = id;
    }
    return counted;
  }

  /** After a lost connection the server can have another history: an older backup was restored. */
  #forget(): void {
    this.#reconnects = this.#client.reconnects;
    this.#items = [];
    this.#operations.clear();
    this.#last = 0;
  }

  #apply(change: Change): boolean {
    if ("after" in change && change.after !== this.#last) return false;
    switch (change.op) {
      case "clear":
        this.#items = [];
        this.#operations.clear();
        break;
      case "mutate":
        this.#items = applySessionHistoryMutations(this.#items, change.mutations);
        break;
      case "pop":
        this.#items.pop();
        break;
      case "suffix":
        this.#items.splice(this.#items.length - change.count, change.count, ...change.items);
        this.#operations.set(change.operation, change);
    }
    return true;
  }

  #inTurn<Result>(operation: () => Promise<Result>): Promise<Result> {
    const result = this.#turn.then(operation);
    this.#turn = result.catch(() => {});
    return result;
  }
}
