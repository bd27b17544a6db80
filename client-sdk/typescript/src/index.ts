/**
 * Abide for TypeScript and JavaScript: durable sessions for AI agents.
 *
 * ```ts
 * import { Abide } from "@abide/client";
 *
 * const client = await Abide.open("agents.db"); // or Abide.connect("http://127.0.0.1:7341")
 * const session = await client.call.create_session({ agent: "support" });
 * await client.call.append_message({ session_id: session.id, role: "user", content: "Where is my parcel?" });
 * ```
 *
 * In reading order: `abide` · `session`, `worker`, `supervisor` · `subscription`, `update` · `rows`,
 * `layout`, `order` · `subscriptions`, `requests`, `link` · `wire`, `json`, `values`, `checksum` · `platform`
 * WebSockets and the engine.
 */
export {
  Abide,
  type AbideEvents,
  type Answer,
  type BatchAnswer,
  type BatchCall,
  type BatchResults,
  type CallMethods,
  type CallOptions,
  type ConnectOptions,
  type Explanation,
  type OpenOptions,
  type QueryResult,
  type RequestOptions,
  type SqlOptions,
  type SubscribeOptions,
} from "./abide.js";
export type * from "./builtin.js";
export {
  AbideError,
  type ClientErrorCode,
  type ErrorCode,
  type ErrorDetails,
  isAbideError,
  type ServerErrorCode,
} from "./errors.js";
export { readJson, writeJson } from "./json.js";
export type { Heartbeat } from "./link.js";
export type { Positions } from "./rows.js";
export type { ArgsOf, Reducer, ReducerName, ResultOf, RowOf, Schema } from "./schema.js";
export {
  type Decision,
  type HandoffOptions,
  type MessageOptions,
  type Resolution,
  Session,
  type SessionOptions,
  type ToolOptions,
  type WaitOptions,
} from "./session.js";
export type { Subscription, SubscriptionEvents } from "./subscription.js";
export {
  type Handoff,
  Rejected,
  Supervisor,
  type SupervisorFunction,
  type SupervisorOptions,
} from "./supervisor.js";
export { Retryable, type ToolContext, ToolFailed, type ToolFunction, UnknownOutcome } from "./tool.js";
export type { Update } from "./update.js";
export {
  dateOf,
  type Integers,
  type Json,
  micros,
  type Params,
  Real,
  real,
  type SqlParam,
  type SqlRow,
  type SqlValue,
} from "./values.js";
export type { Column, OrderTerm, Plan } from "./wire.js";
export { type ServeOptions, type ToolFunctions, Worker, type WorkerOptions } from "./worker.js";
