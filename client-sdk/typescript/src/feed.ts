/** The messages between a connection and one subscription. */
import type { AbideError } from "./errors.js";
import type { Cell } from "./values.js";
import type { Changes, Plan, Shape } from "./wire.js";

/**
 * Where a subscription starts: with the current result, with the changes after a seq, or with the result as
 * of a seq.
 */
export type Start = { at: "now" } | { at: "after"; seq: number } | { at: "asOf"; seq: number };

/** A subscription's query. */
export interface Query {
  sql: string;
  params: Record<string, unknown>;
  /** Request a checksum of the result with the snapshot and with each change. */
  checksum: boolean;
  /** Request the SQL statements that produce the changes. */
  explain: boolean;
}

/** The shape of a result and how it is maintained. */
export interface Info {
  shape: Shape;
  plan: Plan | undefined;
}

/** The whole result. A later one replaces everything before it. */
export interface SnapshotEvent {
  kind: "snapshot";
  seq: number;
  info: Info;
  rows: Cell[][];
  checksum: string | undefined;
  /** Earlier events are from a history that the server does not have. */
  historyChanged: boolean;
}

/** The changes up to a seq. It has the shape if it answers a resume. */
export interface DeltaEvent {
  kind: "delta";
  to: number;
  changes: Changes;
  checksum: string | undefined;
  info: Info | undefined;
}

/** An event of a subscription. Consecutive events leave no gap. `progress`: nothing changed up to a seq. */
export type FeedEvent = SnapshotEvent | DeltaEvent | { kind: "progress"; seq: number };

/** The receiver of a subscription's events. */
export interface Consumer {
  take(event: FeedEvent): void;
  /** The subscription has ended. Nothing follows. Without an error: the program has closed the client. */
  end(error: AbideError | undefined): void;
}
