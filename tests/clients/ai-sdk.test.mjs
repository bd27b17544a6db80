/** The chat of the AI SDK, which `useChat` wraps for React, talks to an agent with its default transport. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";

import { Server, runExample, slowText } from "./server.mjs";

let server;

before(async () => {
  server = await Server.start();
});
after(() => server.stop());

/** The state of a chat without a user interface. */
class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => void (this.messages = this.messages.concat(message));
  popMessage = () => void (this.messages = this.messages.slice(0, -1));
  replaceMessage = (at, message) => void (this.messages = this.messages.with(at, structuredClone(message)));
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor(agent, id, options = {}) {
    const transport = new DefaultChatTransport({ api: `${server.url}/v1/agents/${agent}/chat` });
    super({ id, transport, state: new State(), ...options });
  }

  get last() {
    return this.messages.at(-1);
  }

  /** The parts of the last message: texts, and tool calls with their state. */
  get parts() {
    return this.last.parts.flatMap((part) => {
      if (part.type === "text") return [part.text];
      return part.type === "dynamic-tool" ? [`${part.toolName} ${part.state}`] : [];
    });
  }
}

test("a chat with a tool, an approval and a second question", async () => {
  const chat = new Chat("clerk", "chat-1");
  await chat.sendMessage({ text: "Pay order A-7 back." });
  assert.equal(chat.error, undefined);
  assert.deepEqual(chat.parts, ["Let me look. ", "look output-available", "It can be paid back. ", "refund approval-requested"]);
  const call = chat.last.parts.findLast((part) => part.type === "dynamic-tool");
  assert.deepEqual(call.input, { order: "A-7" });
  const question = chat.last.parts.at(-1);
  assert.deepEqual([question.type, question.id], ["data-approval", call.toolCallId]);
  assert.equal(question.data.message, "refund needs an approval");

  await chat.addToolApprovalResponse({ id: call.approval.id, approved: true });
  assert.ok(lastAssistantMessageIsCompleteWithApprovalResponses({ messages: chat.messages }), "useChat would send it now");
  await chat.sendMessage();
  assert.deepEqual(chat.parts.slice(3), ["refund output-available", "Order A-7 is paid back."]);
  assert.equal(chat.messages.length, 2, "the message of the assistant goes on");

  await chat.sendMessage({ text: "Thanks." });
  assert.deepEqual(chat.parts, ["You are welcome."]);
  assert.deepEqual(await server.sql("SELECT count(*) FROM runs WHERE session_id = 'chat-1'"), [[2]]);

  const reloaded = new Chat("clerk", "chat-1");
  await reloaded.resumeStream();
  assert.deepEqual(reloaded.parts, ["You are welcome."]);
});

test("a page that is reloaded shows the pending approval and can decide", async () => {
  const chat = new Chat("clerk", "chat-2");
  await chat.sendMessage({ text: "Pay order A-7 back." });
  await server.kill();
  await server.start();
  const reloaded = new Chat("clerk", "chat-2");
  await reloaded.resumeStream();
  assert.deepEqual(reloaded.parts, chat.parts);
  assert.deepEqual(reloaded.last.id, chat.last.id);
  await reloaded.addToolApprovalResponse({ id: reloaded.last.parts.findLast((part) => part.approval).approval.id, approved: false, reason: "too late" });
  await reloaded.sendMessage();
  const refund = reloaded.last.parts.find((part) => part.toolName === "refund");
  assert.deepEqual([refund.state, refund.approval.reason], ["output-denied", "too late"]);
  const result = reloaded.last.parts.find((part) => part.type === "data-tool-result");
  assert.deepEqual([result.id, result.data.status], [refund.toolCallId, "rejected"]);
  assert.equal(reloaded.parts.at(-1), "Order A-7 is paid back.");
});

test("after SIGKILL the same message continues", async () => {
  const chat = new Chat("writer", "chat-3");
  const sent = chat.sendMessage({ text: "Write." });
  while (!chat.last?.parts.some((part) => part.text?.includes("word9 "))) await new Promise(setImmediate);
  await server.kill();
  await sent;
  assert.equal(chat.status, "error");
  assert.notEqual(chat.parts.join(""), slowText);
  await server.start();
  await chat.resumeStream();
  assert.deepEqual(chat.parts, [slowText]);
  assert.equal(chat.messages.length, 2);
});

/** The page showed a spinner for ever: nothing said that the outcome of the call is unknown. */
test("a call whose outcome is unknown is named, and the chat continues after its settlement", async () => {
  const chat = new Chat("payer", "chat-unknown");
  const sent = chat.sendMessage({ text: "Pay." });
  const [call] = await server.until("SELECT call_id FROM tool_calls WHERE tool_name = 'pay' AND status = 'claimed' AND session_id = 'chat-unknown'");
  await server.kill();
  await sent;
  await server.start();
  const reloaded = new Chat("payer", "chat-unknown");
  await reloaded.resumeStream();
  const { reason, message, calls } = reloaded.last.parts.at(-1).data;
  assert.deepEqual([reason, calls], ["settlement", [{ toolCallId: call, toolName: "pay", input: {}, why: "its process disappeared" }]]);
  assert.match(message, /the outcome of pay/);
  const outcome = { call_id: call, outcome: "succeeded" };
  const settled = await fetch(`${server.url}/v1/call/settle_tool_call`, { method: "POST", body: JSON.stringify(outcome) });
  assert.equal(settled.status, 200);
  await reloaded.resumeStream();
  assert.deepEqual(reloaded.parts, ["pay output-available", "It was paid."]);
  assert.ok(!reloaded.last.parts.some((part) => part.type === "data-waiting"));
});

test("a chat without messages has nothing to resume, and errors are shown", async () => {
  const chat = new Chat("clerk", "chat-4");
  await chat.resumeStream();
  assert.deepEqual([chat.status, chat.messages], ["ready", []]);
  const unknown = new Chat("noname", "chat-5");
  await unknown.sendMessage({ text: "Hello." });
  assert.match(unknown.error.message, /there is no agent noname/);
});

test("the client of the page runs", async () => {
  const printed = await runExample("ai-sdk.md", server);
  assert.match(printed, /^text Let me look\. $/m);
  assert.match(printed, /^dynamic-tool approval-requested$/m);
});
