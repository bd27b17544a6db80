/** The store with real streams of the AI SDK, whose model answers from a script. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Abide, isAbideError } from "@abide/client";
import { ChatStore } from "@abide/ai-sdk";
import {
  convertToModelMessages,
  createUIMessageStreamResponse,
  generateId,
  simulateReadableStream,
  streamText,
  toUIMessageStream,
  UI_MESSAGE_STREAM_HEADERS,
  type UIMessage,
} from "ai";
import { MockLanguageModelV4 } from "ai/test";

let folder: string;
let client: Abide;
let store: ChatStore;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "abide-ai-"));
  client = await Abide.open(join(folder, "chats.db"));
  store = new ChatStore(client);
});
after(async () => {
  await client.close();
  rmSync(folder, { recursive: true });
});

const text = (id: string, role: "user" | "assistant", content: string): UIMessage => ({
  id,
  role,
  parts: [{ type: "text", text: content }],
});

async function entries(chatId: string): Promise<number> {
  const { rows } = await client.sql<{ n: number }>(
    "SELECT count(*) AS n FROM agent_state WHERE session_id = :id",
    { id: chatId },
  );
  return rows[0]?.n ?? 0;
}

test("saved messages are loaded in order, whatever changed since", async () => {
  assert.deepEqual(await store.loadChat("chat"), []);
  const [a, b, c] = [text("a", "user", "1"), text("b", "assistant", "2"), text("c", "user", "3")];
  const tool: UIMessage = {
    id: "d",
    role: "assistant",
    metadata: { cost: 0.5, tokens: 12, at: "now" },
    parts: [
      { type: "step-start" },
      {
        type: "tool-weather",
        toolCallId: "t1",
        state: "output-available",
        input: { city: "Bonn" },
        output: { celsius: 21.5 },
      },
      { type: "text", text: "21.5 °C", state: "done" },
    ],
  };
  const edited = text("b", "assistant", "2, edited");
  const histories = [
    [a],
    [a, b],
    [a, b, c, tool],
    [a, edited, c, tool],
    [a, edited],
    [a, edited, text("e", "user", "4")],
    [c, a],
    [],
  ];
  for (const messages of histories) {
    await store.saveChat({ chatId: "chat", messages });
    assert.deepEqual(await store.loadChat("chat"), messages);
  }
});

test("the storage grows with the number of messages", async () => {
  const messages: UIMessage[] = [];
  for (let turn = 0; turn < 100; turn += 1) {
    messages.push(text(`u${turn}`, "user", "?"), text(`a${turn}`, "assistant", "!"));
    await store.saveChat({ chatId: "long", messages });
    await store.saveChat({ chatId: "long", messages });
  }
  assert.equal(await entries("long"), 200);
  assert.deepEqual(await store.loadChat("long"), messages);
});

/** The route handler of the README. */
async function post(
  id: string,
  message: UIMessage,
  chunkDelayInMs: number,
): Promise<{ response: Response; recorded: Promise<void> }> {
  const messages = [...(await store.loadChat(id)), message];
  await store.saveChat({ chatId: id, messages });
  const words = ["The ", "refund ", "is ", "done."];
  const usage = {
    inputTokens: { total: 1, noCache: 1, cacheRead: undefined, cacheWrite: undefined },
    outputTokens: { total: 4, text: 4, reasoning: undefined },
  };
  const model = new MockLanguageModelV4({
    doStream: async () => ({
      stream: simulateReadableStream({
        chunkDelayInMs,
        chunks: [
          { type: "text-start", id: "t" },
          ...words.map((delta) => ({ type: "text-delta" as const, id: "t", delta })),
          { type: "text-end", id: "t" },
          { type: "finish", finishReason: { unified: "stop", raw: undefined }, usage },
        ],
      }),
    }),
  });
  const result = streamText({ model, messages: await convertToModelMessages(messages) });
  let saved = Promise.resolve();
  let recorded = Promise.resolve();
  const response = createUIMessageStreamResponse({
    stream: toUIMessageStream({
      stream: result.stream,
      originalMessages: messages,
      generateMessageId: generateId,
      onEnd: ({ messages: all }) => (saved = store.saveChat({ chatId: id, messages: all })),
    }),
    consumeSseStream: ({ stream }) => {
      recorded = store.recordStream(id, stream);
    },
  });
  return {
    response,
    recorded: Promise.resolve().then(async () => {
      await recorded;
      await saved;
    }),
  };
}

test("a stream of the AI SDK is saved, and a browser that reloads the page gets all of it", async () => {
  const { response, recorded } = await post("route", text("u1", "user", "Refund, please."), 20);
  const first = response.text();
  const starts = await client.subscribe("SELECT call_id FROM tool_calls WHERE status = 'claimed'");
  for await (const _ of starts) if (starts.size > 0) break;
  const resumed = await store.resumeStream("route");
  assert.ok(resumed, "a stream is running");
  const second = new Response(resumed.pipeThrough(new TextEncoderStream()), {
    headers: UI_MESSAGE_STREAM_HEADERS,
  }).text();
  assert.equal(await second, await first);
  assert.match(await first, /"delta":"refund "/);
  await recorded;
  assert.equal(await store.resumeStream("route"), null);
  const [, answer] = await store.loadChat("route");
  assert.equal(answer?.role, "assistant");
  assert.equal(
    answer?.parts.map((part) => (part.type === "text" ? part.text : "")).join(""),
    "The refund is done.",
  );
  const { messages } = { messages: await store.loadChat("route") };
  assert.equal((await convertToModelMessages(messages)).length, 2);
});

test("a reader of a stream whose producer was killed gets an error", async () => {
  const chat = await client.session({ id: "killed", agent: "chat" });
  const child = await client.session({ agent: "ui_stream", parentId: chat.id });
  const call_id = `${child.id}/stream`;
  await client.call.register_tool({ name: "ui_stream", effect: "at_most_once" });
  await client.call.request_tool_call({
    call_id,
    session_id: child.id,
    tool_name: "ui_stream",
    arguments: {},
  });
  await client.call.claim_tool_call({ call_id, lease_ms: 300 });
  await child.message("assistant", "data: half\n\n", { kind: "ui_stream" });
  const stream = await store.resumeStream("killed");
  const reader = stream?.getReader();
  assert.equal((await reader?.read())?.value, "data: half\n\n");
  await assert.rejects(reader?.read() ?? Promise.resolve(), (error) =>
    isAbideError(error, "unknown_outcome"),
  );
});
