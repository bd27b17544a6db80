/**
 * Abide as the message store of the Vercel AI SDK: the messages of chats, and streams that a browser resumes
 * after a reload.
 */
import type { Abide } from "@abide/client";
import type { UIMessage } from "ai";

import { Chat } from "./chat.js";
import { recordStream, resumeStream } from "./streams.js";

/** Options of a store. */
export interface ChatStoreOptions {
  /** The agent that owns new chats. Default: `chat`. */
  agent?: string;
}

/** How many chats are kept in memory, so that the next operation on them reads only what is new. */
const CHATS = 256;

/** The messages of chats. A chat is a session with the same id. */
export class ChatStore<Message extends UIMessage = UIMessage> {
  readonly #client: Abide;
  readonly #agent: string;
  /** The chats that were used last, in the order of their use. */
  readonly #chats = new Map<string, Chat>();

  constructor(client: Abide, { agent = "chat" }: ChatStoreOptions = {}) {
    this.#client = client;
    this.#agent = agent;
  }

  /** The messages of a chat, in order. A chat without messages does not have to exist. */
  async loadChat(chatId: string): Promise<Message[]> {
    return await this.#chat(chatId).load<Message>();
  }

  /**
   * Saves all messages of a chat. Only what differs from the stored messages is written, in one transaction, so the storage
   * grows with the number of messages and not with their square.
   */
  async saveChat({ chatId, messages }: { chatId: string; messages: readonly Message[] }): Promise<void> {
    await this.#chat(chatId).save(messages);
  }

  /**
   * Records a stream while it runs, for `resumeStream`: pass it to `consumeSseStream`. It resolves when the stream has ended
   * and every part is durable.
   */
  async recordStream(chatId: string, stream: ReadableStream<string>): Promise<void> {
    await recordStream(this.#client, await this.#chat(chatId).create(), stream);
  }

  /**
   * The stream that is running for a chat, from its beginning; `null` if there is none. If the program that produces it is
   * killed, it ends with an error.
   */
  async resumeStream(chatId: string): Promise<ReadableStream<string> | null> {
    const session = await this.#chat(chatId).find();
    return session === undefined ? null : await resumeStream(this.#client, session);
  }

  #chat(id: string): Chat {
    const chat = this.#chats.get(id) ?? new Chat(this.#client, id, this.#agent);
    this.#chats.delete(id);
    this.#chats.set(id, chat);
    const [oldest] = this.#chats.keys();
    if (this.#chats.size > CHATS && oldest !== undefined) this.#chats.delete(oldest);
    return chat;
  }
}
