/** The hook, in a real React renderer against a real server. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Abide } from "@abide/client";
import { type LiveQuery, type LiveQueryOptions, useLiveQuery } from "@abide/client/react";
import { createElement } from "react";
import { act, create, type ReactTestRenderer } from "react-test-renderer";

import { Server } from "./server.js";
import { until } from "./within.js";

Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: true });

interface Session {
  id: string;
  status: string;
}
interface Props {
  client: Abide;
  sql: string;
  agent: string;
  options?: LiveQueryOptions;
}

let server: Server;
let client: Abide;
let shown: LiveQuery<Session>[] = [];
let onRender = () => {};

before(async () => {
  server = await Server.start();
  client = await Abide.connect(server.url);
});
after(async () => {
  await client.close();
  await server.stop();
});

function Sessions({ client, sql, agent, options }: Props) {
  // The parameters are a new object in each render.
  const query = useLiveQuery<Session>(client, sql, { agent }, options);
  shown.push(query);
  onRender();
  return null;
}

async function rendered(isDone: (last: LiveQuery<Session>) => boolean): Promise<LiveQuery<Session>> {
  const last = () => shown.at(-1) as LiveQuery<Session>;
  await act(async () => {
    await until(
      "a render",
      () => shown.length > 0 && isDone(last()),
      (changed) => {
        onRender = changed;
        const timer = setInterval(() => void act(async () => {}), 5);
        return () => clearInterval(timer);
      },
    );
  });
  return last();
}

async function render(props: Props, root?: ReactTestRenderer): Promise<ReactTestRenderer> {
  let renderer = root;
  await act(async () => {
    const element = createElement(Sessions, props);
    if (renderer) renderer.update(element);
    else renderer = create(element);
  });
  return renderer as ReactTestRenderer;
}

const SQL = "SELECT id, status FROM sessions WHERE agent = :agent ORDER BY id";

test("a component shows the result, its changes, and the result of other parameters", async () => {
  shown = [];
  await client.call.create_session({ agent: "r", id: "r1" });
  await client.call.create_session({ agent: "r", id: "r2" });
  const root = await render({ client, sql: SQL, agent: "r" });
  assert.deepEqual([shown[0]?.isLoading, shown[0]?.rows], [true, []]);
  const first = await rendered(({ isLoading }) => !isLoading);
  assert.deepEqual(
    first.rows.map(({ id }) => id),
    ["r1", "r2"],
  );
  await client.call.append_message({ session_id: "r2", role: "user", content: "x" });
  const second = await rendered(({ rows }) => rows[1]?.status === "active");
  assert.equal(second.rows[0], first.rows[0], "an unchanged row keeps its identity");
  const renders = shown.length;
  await render({ client, sql: SQL, agent: "r" }, root);
  assert.equal(shown.length, renders + 1, "equal parameters start no new subscription");
  assert.equal(client.subscriptionCount, 1);
  await render({ client, sql: SQL, agent: "unused" }, root);
  await rendered(({ isLoading, rows }) => !isLoading && rows.length === 0);
  assert.equal(client.subscriptionCount, 1);
  await render({ client, sql: SQL, agent: "r", options: { enabled: false } }, root);
  assert.equal(client.subscriptionCount, 0);
  await act(async () => root.unmount());
});

test("a query that is refused shows its error", async () => {
  shown = [];
  const root = await render({
    client,
    sql: "SELECT random() FROM sessions WHERE agent = :agent",
    agent: "r",
  });
  const { error } = await rendered((query) => query.error !== undefined);
  assert.equal(error?.code, "unsupported_sql");
  await act(async () => root.unmount());
  assert.equal(client.subscriptionCount, 0);
});

test("a query whose client is closed shows the error with its last rows", async () => {
  shown = [];
  const own = await Abide.connect(server.url);
  const root = await render({ client: own, sql: SQL, agent: "r" });
  await rendered(({ isLoading }) => !isLoading);
  await act(() => own.close());
  const { error, isLoading } = await rendered((query) => query.error !== undefined);
  assert.deepEqual([error?.code, isLoading], ["closed", false]);
  await act(async () => root.unmount());
});

/** A search field can cut an emoji in half. The component threw while it rendered. */
test("parameters that cannot be sent show an error", async () => {
  shown = [];
  const root = await render({ client, sql: SQL, agent: "👍".slice(0, 1) });
  const { error } = await rendered((query) => query.error !== undefined);
  assert.equal(error?.code, "bad_arguments");
  await act(async () => root.unmount());
  assert.equal(client.subscriptionCount, 0);
});
