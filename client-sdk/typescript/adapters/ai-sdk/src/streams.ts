/**
 * Streams that can be resumed. Each stream has a session of its own, a child of the chat, with the text in
 * its entries. The producer holds a tool call under a lease, so a reader notices when the producer is killed.
 */
import { type Abide, AbideError, type Session } from "@abide/client";

const TOOL = "ui_stream";
const KEY = "stream";

const RUNNING = `SELECT c.session_id, c.call_id FROM sessions AS s JOIN tool_calls AS c ON c.session_id = s.id
WHERE s.parent_id = :chat AND c.tool_name = '${TOOL}' AND c.status = 'claimed' ORDER BY c.created_at DESC LIMIT 1`;
const TEXTS = `SELECT id, content FROM agent_state WHERE session_id = :id AND kind = '${TOOL}' ORDER BY id`;
const STATUS = "SELECT status FROM tool_calls WHERE call_id = :id";

/** Records a stream of the chat with this stored id. */
export async function recordStream(
  client: Abide,
  chatId: string,
  stream: ReadableStream<string>,
): Promise<void> {
  const session = await client.session({ agent: TOOL, parentId: chatId });
  await session.tool(TOOL, {}, { key: KEY, effect: "at_most_once", run: () => write(session, stream) });
  await session.complete();
}

/** Writes the parts of a stream. Parts that arrive during a write are written together. */
async function write(session: Session, stream: ReadableStream<string>): Promise<void> {
  const reader = stream.getReader();
  let waiting = "";
  let writing: Promise<void> | undefined;
  let failure: { error: unknown } | undefined;
  const flush = async () => {
    while (waiting !== "" && !failure) {
      const text = waiting;
      waiting = "";
      try {
        await session.message("assistant", text, { kind: TOOL });
      } catch (error) {
        failure = { error };
      }
    }
    writing = undefined;
  };
  for (;;) {
    const { done, value } = await reader.read();
    if (done || failure) break;
    waiting += value;
    writing ??= flush();
  }
  await writing;
  if (failure) throw failure.error;
}

/** The running stream of the chat with this stored id. */
export async function resumeStream(client: Abide, chatId: string): Promise<ReadableStream<string> | null> {
  type Running = { session_id: string; call_id: string };
  const { rows } = await client.sql<Running>(RUNNING, { chat: chatId });
  const [running] = rows;
  if (!running) return null;
  const stopped = new AbortController();
  const { signal } = stopped;
  const texts = await client.subscribe<{ content: string }>(TEXTS, { id: running.session_id }, { signal });
  const call = await client.subscribe<{ status: string }>(STATUS, { id: running.call_id }, { signal });
  return new ReadableStream<string>({
    start(controller) {
      const end = (error?: AbideError) => {
        if (signal.aborted) return;
        stopped.abort();
        if (error) controller.error(error);
        else controller.close();
      };
      const check = () => {
        const status = call.rows[0]?.status;
        // The text is written before the status, so all of it has arrived.
        if (status === "succeeded") end();
        else if (status !== "claimed")
          end(new AbideError("unknown_outcome", "the producer of the stream has disappeared"));
      };
      const show = (rows: readonly { content: string }[]) => {
        for (const { content } of rows) controller.enqueue(content);
      };
      show(texts.rows);
      texts.on("update", ({ inserts }) => show(inserts));
      call.on("update", check);
      // Without an error the client was closed, and the rest of the text is missing.
      const lose = (error = new AbideError("closed", "the client was closed before the stream had ended")) =>
        end(error);
      texts.on("end", lose);
      call.on("end", lose);
      check();
    },
    cancel() {
      stopped.abort();
    },
  });
}
