/** Runs the scenarios of `client-sdk/conformance`, as its README describes them. */
import assert from "node:assert/strict";

import { Abide, AbideError, Real, type Subscription, type Update } from "@abide/client";
import { parseJson } from "#dist/json.js";

import { Proxy } from "./proxy.js";
import { ScriptPeer } from "./script-peer.js";
import { Server, type TokenSpec } from "./server.js";
import { until, within } from "./within.js";

type Fields = Record<string, any>;

export interface Scenario {
  name: string;
  about: string;
  peer?: "server" | "script";
  serve?: string[];
  tokens?: TokenSpec[];
  steps: Fields[];
}

export function readScenario(text: string): Scenario {
  return parseJson(text) as Scenario;
}

/** The server of a scenario's clients. */
interface Peer {
  url: string;
  step(step: Fields, variables: Map<string, unknown>): Promise<boolean>;
  close(): Promise<void>;
}

/** An answer, or `{ error }`. */
type Outcome = Fields;

export async function runScenario(scenario: Scenario): Promise<void> {
  const variables = new Map<string, unknown>();
  const peer = await (scenario.peer === "script" ? scriptPeer() : serverPeer(scenario, variables));
  const runner = new Runner(peer, variables);
  try {
    for (const [at, step] of scenario.steps.entries()) {
      try {
        await runner.run(step);
      } catch (error) {
        const cause = error instanceof Error ? error : new Error(String(error));
        cause.message = `step ${at} ${JSON.stringify(plain(step))}: ${cause.message}`;
        throw cause;
      }
    }
  } finally {
    await runner.close();
    await peer.close();
  }
}

async function serverPeer(scenario: Scenario, variables: Map<string, unknown>): Promise<Peer> {
  const { server, tokens } = await Server.withTokens(scenario.tokens ?? [], scenario.serve);
  for (const [name, token] of tokens) {
    variables.set(`token.${name}`, token);
    variables.set(`token_id.${name}`, token.split("_")[1]);
  }
  const proxy = await Proxy.to(() => server.port);
  return {
    url: proxy.url,
    step: async (step) => {
      if (step["kill"]) await server.kill();
      else if (step["start"]) await server.start();
      else if (step["cut"]) proxy.cut();
      else if (step["lose"]) proxy.loseAnswer();
      else return false;
      return true;
    },
    close: async () => {
      proxy.close();
      await server.stop();
    },
  };
}

async function scriptPeer(): Promise<Peer> {
  const peer = await ScriptPeer.listen();
  return {
    url: peer.url,
    step: async (step, variables) => {
      if (step["accept"]) await peer.accept(step["accept"]);
      else if (step["say"]) peer.say(step["say"]);
      else if (step["drop"]) peer.drop();
      else if (step["refuse"]) await peer.refuse(step["refuse"]);
      else if (step["hear"]) await hear(peer, step, variables);
      else return false;
      return true;
    },
    close: async () => peer.close(),
  };
}

async function hear(peer: ScriptPeer, step: Fields, variables: Map<string, unknown>): Promise<void> {
  const { op } = step["hear"];
  const message = await peer.hear(
    (one) => one["op"] === op || !["ping", "unsubscribe"].includes(String(one["op"])),
  );
  for (const [key, value] of Object.entries(step["hear"])) {
    assert.deepEqual(message[key] ?? null, value, `${key} of ${JSON.stringify(plain(message))}`);
  }
  if (step["as"]) variables.set(step["as"], message["id"]);
  save(step["save"], message, variables);
}

/** One subscription, with the updates that no step has taken. */
class Watched {
  readonly updates: AsyncIterator<Update>;

  constructor(
    readonly subscription: Subscription,
    readonly startsAfter: boolean,
  ) {
    this.updates = subscription[Symbol.asyncIterator]();
  }
}

class Runner {
  readonly #clients = new Map<string, Promise<Abide>>();
  readonly #watched = new Map<string, Watched>();
  readonly #begun = new Map<string, Promise<Outcome>>();

  constructor(
    readonly peer: Peer,
    readonly variables: Map<string, unknown>,
  ) {}

  async run(given: Fields): Promise<void> {
    const step = substituted(given, this.variables) as Fields;
    if (await this.peer.step(step, this.variables)) return;
    if (step["close"]) return (await this.#client(step["close"])).close();
    if (step["rows"]) return await this.#rows(step["rows"], step["equal"]);
    if (step["update"]) return await this.#update(step);
    if (step["ended"]) return await this.#ended(step);
    if (step["unsubscribe"]) return this.#get(step["unsubscribe"]).subscription.close();
    if (step["mismatches"]) {
      return assert.equal(this.#get(step["mismatches"]).subscription.mismatches, Number(step["equal"]));
    }
    if (step["answer"]) {
      const begun = this.#begun.get(step["answer"]);
      assert.ok(begun, "a request that has begun");
      return check(await within("the answer", begun), step, this.variables);
    }
    const outcome = this.#request(step).catch((error: unknown): Outcome => {
      if (error instanceof AbideError) return { error };
      throw error;
    });
    if (!step["begin"]) return check(await within("the answer", outcome), step, this.variables);
    // An error is reported by the step `answer`.
    outcome.catch(() => {});
    this.#begun.set(step["begin"], outcome);
  }

  async close(): Promise<void> {
    for (const client of this.#clients.values()) {
      const open = await client.catch(() => undefined);
      await open?.close();
    }
  }

  async #request(step: Fields): Promise<Outcome> {
    if (step["connect"]) {
      await this.#client(step["connect"], step["token"]);
      return {};
    }
    const client = await this.#client(step["client"] ?? "main");
    const options = step["request_id"] === undefined ? {} : { requestId: step["request_id"] as string };
    if (step["call"]) return await client.request(step["call"], step["args"], options);
    if (step["batch"]) return await client.batch(step["batch"], options);
    if (step["session"]) {
      const id = step["id"] === undefined ? {} : { id: step["id"] as string };
      return { id: (await client.session({ agent: step["session"], ...id })).id };
    }
    if (step["find_session"]) return { id: (await client.findSession(step["find_session"]))?.id ?? null };
    if (step["subscribe"]) return await this.#subscribe(client, step);
    assert.ok(step["sql"], "a step that this runner understands");
    const asOf = step["as_of"] === undefined ? {} : { asOf: Number(step["as_of"]) };
    const { seq, columns, cells } = await client.sql(step["sql"], cellParams(step["params"]), asOf);
    return { seq, columns, rows: cells };
  }

  async #subscribe(client: Abide, step: Fields): Promise<Outcome> {
    const subscription = await client.subscribe(step["sql"], cellParams(step["params"]), {
      checksum: step["checksum"] === true,
      ...(step["as_of"] !== undefined && { asOf: Number(step["as_of"]) }),
      ...(step["after_seq"] !== undefined && { after: Number(step["after_seq"]) }),
    });
    const rows = subscription.cells;
    const watched = new Watched(subscription, step["after_seq"] !== undefined);
    this.#watched.set(step["subscribe"], watched);
    // The first update is the first result.
    if (!watched.startsAfter) await watched.updates.next();
    const columns = subscription.columns.map(({ name }) => name);
    return { seq: subscription.seq, columns, rows };
  }

  async #rows(name: string, expected: unknown[][]): Promise<void> {
    const { subscription } = this.#get(name);
    const wanted = tagged(expected);
    const isEqual = () => JSON.stringify(shown(subscription.cells)) === JSON.stringify(wanted);
    const stop = (changed: () => void) => subscription.on("update", changed);
    await until("the rows", isEqual, stop).catch(() => {
      assert.deepEqual(shown(subscription.cells), wanted);
    });
  }

  async #update(step: Fields): Promise<void> {
    const { updates } = this.#get(step["update"]);
    const { done, value } = await within("an update", updates.next());
    assert.ok(!done, "the subscription has not ended");
    const update = value as Update;
    for (const list of ["deletes", "inserts", "updates"] as const) {
      const sorted = (rows: unknown[]) => rows.map((row) => JSON.stringify(row)).sort();
      const actual = shown(update.cells[list]);
      assert.deepEqual(sorted(actual), sorted(tagged(step[list] ?? [])), list);
    }
    assert.equal(update.historyChanged, step["history_changed"] ?? false, "history_changed");
    assert.equal(update.reset, step["reset"] ?? false, "reset");
  }

  async #ended(step: Fields): Promise<void> {
    const { subscription } = this.#get(step["ended"]);
    await until(
      "the end",
      () => subscription.isEnded,
      (changed) => subscription.on("end", changed),
    );
    const outcome: Outcome = subscription.error ? { error: subscription.error } : {};
    check(outcome, step, this.variables);
  }

  #get(name: string): Watched {
    const watched = this.#watched.get(name);
    assert.ok(watched, `there is a subscription ${name}`);
    return watched;
  }

  #client(name: string, token?: string): Promise<Abide> {
    let client = this.#clients.get(name);
    if (!client) {
      const options = {
        integers: "bigint" as const,
        onMismatch: () => {},
        ...(token !== undefined && { token }),
      };
      client = Abide.connect(this.peer.url, options);
      this.#clients.set(name, client);
    }
    return client;
  }
}

/** Compares an outcome with what a step expects. */
function check(outcome: Outcome, step: Fields, variables: Map<string, unknown>): void {
  const expected = (step["expect"] ?? {}) as Fields;
  if (outcome["error"] && !expected["error"]) throw outcome["error"];
  if (expected["error"]) {
    const { error } = outcome as { error?: AbideError };
    assert.ok(error, "an error");
    assert.equal(error.code, expected["error"].code);
    if (expected["error"].hint !== undefined) {
      assert.equal(error.hint !== undefined, expected["error"].hint, `the hint ${error.hint}`);
    }
    assert.ok(error.message.includes(expected["error"].detail ?? ""), error.message);
  }
  for (const name of ["seq", "duplicate", "columns", "id"]) {
    if (expected[name] !== undefined) assert.deepEqual(plain(outcome[name]), plain(expected[name]), name);
  }
  if (expected["rows"] !== undefined) assert.deepEqual(shown(outcome["rows"]), tagged(expected["rows"]));
  for (const name of ["result", "results"]) {
    if (expected[name] !== undefined) match(plain(outcome[name]), plain(expected[name]), name);
  }
  save(step["save"], outcome, variables);
}

/** Whether a result has at least what is expected. */
function match(actual: unknown, expected: unknown, path: string): void {
  if (typeof expected !== "object" || expected === null) return assert.deepEqual(actual, expected, path);
  if ((expected as Fields)["$any"]) return assert.ok(actual !== null && actual !== undefined, path);
  assert.ok(typeof actual === "object" && actual !== null, `${path} is an object`);
  if (Array.isArray(expected)) assert.equal((actual as unknown[]).length, expected.length, `${path}: length`);
  for (const [key, value] of Object.entries(expected))
    match((actual as Fields)[key], value, `${path}/${key}`);
}

function save(
  saves: Record<string, string> | undefined,
  from: Fields,
  variables: Map<string, unknown>,
): void {
  for (const [name, pointer] of Object.entries(saves ?? {})) {
    const value = pointer
      .split("/")
      .slice(1)
      .reduce((at: any, key) => at?.[key], from);
    variables.set(name, value);
  }
}

/** Replaces variables. */
function substituted(value: unknown, variables: Map<string, unknown>): unknown {
  if (typeof value === "string" && value.startsWith("$")) {
    return variables.has(value.slice(1)) ? variables.get(value.slice(1)) : value;
  }
  if (value instanceof Real || typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map((item) => substituted(item, variables));
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, substituted(item, variables)]));
}

/** Parameters of the file as those of the SDK. */
function cellParams(params: Fields = {}): Fields {
  const cell = (value: any) => {
    if (value?.$real) return Number(value.$real);
    return typeof value?.$blob === "string" ? new Uint8Array(Buffer.from(value.$blob, "base64")) : value;
  };
  return Object.fromEntries(Object.entries(params).map(([name, value]) => [name, cell(value)]));
}

/** JSON whose integers compare, whatever their type in JavaScript. */
function plain(value: any): any {
  if (value instanceof Real) return value.value;
  if (typeof value === "bigint") return Number.isSafeInteger(Number(value)) ? Number(value) : `${value}n`;
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
}

/** Cells of the file with their types as text: `i1`, `r1`. */
function tagged(rows: unknown[][]): string[][] {
  return rows.map((row) =>
    row.map((cell: any) => {
      if (cell === null) return "null";
      if (typeof cell === "string") return `t${cell}`;
      if (typeof cell === "bigint") return `i${cell}`;
      if (cell instanceof Real) return `r${Object.is(cell.value, -0) ? "-0" : cell.value}`;
      if (typeof cell === "number") return Number.isInteger(cell) ? `i${cell}` : `r${cell}`;
      return cell.$real ? `r${cell.$real}` : `b${cell.$blob}`;
    }),
  );
}

/** The same of cells of the SDK, whose integers are all `bigint`. */
function shown(rows: unknown[][]): string[][] {
  return rows.map((row) =>
    row.map((cell) => {
      if (cell === null) return "null";
      if (cell instanceof Uint8Array) return `b${Buffer.from(cell).toString("base64")}`;
      if (typeof cell === "string") return `t${cell}`;
      return typeof cell === "bigint" ? `i${cell}` : `r${Object.is(cell, -0) ? "-0" : String(cell)}`;
    }),
  );
}
