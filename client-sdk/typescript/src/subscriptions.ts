/**
 * The subscriptions of a client across connections: finds the subscription of each frame, and knows where
 * each one resumes.
 *
 * The rule of the protocol: a subscription at seq s accepts a frame iff `from <= s < to`. A frame that ends
 * at or before s is a duplicate and is skipped. A frame that begins after s leaves a gap, so the subscription
 * starts again from s.
 *
 * One kind of frame is an exception. The answer to `subscribe` with an `after_seq` is a delta too, but it
 * concerns that subscription alone: others may still expect changes of the same span, so it must not advance
 * them. It is recognised by the subscription that waits for it. If nothing changed it can name no
 * subscription; then it belongs to the first that waits, because answers arrive in order. The same holds for
 * the delta that follows the snapshot of a past state.
 */
import { Backoff } from "./backoff.js";
import { refusalError, type AbideError, type Refusal } from "./errors.js";
import type { Consumer, DeltaEvent, Info, Query, Start } from "./feed.js";
import { type Cell, cellsOf } from "./values.js";
import { changesOf, type Frame, type FrameChange, shapeOf } from "./wire.js";

/** Sends a message on the current connection. */
export type Send = (message: Record<string, unknown>) => void;

/** One subscription of the client. */
export interface Entry {
  readonly query: Query;
  readonly consumer: Consumer;
  state: State;
  /**
   * The name of the current start on the connection. Each start has a new one, so that frames of an earlier
   * one are not mistaken for it.
   */
  name: string | undefined;
  /** Where it starts as long as the consumer has received nothing. */
  start: Start;
  /** The consumer has everything up to here. */
  seq: number | undefined;
  /** The history that `seq` belongs to. */
  timeline: string | undefined;
  /** Later changes are unknown until a rerun. */
  stale: boolean;
  /** The parts of a snapshot received so far. */
  parts: Cell[][];
  readonly backoff: Backoff;
  /** When it starts again after it was refused as overloaded. */
  retry: ReturnType<typeof setTimeout> | undefined;
}

/** `off`: not on a connection. `begun`: started, not answered. `live`: receives every commit. */
type State = "off" | "begun" | "live";

export class Subscriptions {
  readonly #all = new Set<Entry>();
  readonly #byName = new Map<string, Entry>();
  #nextName = 0;
  /**
   * Starts without an answer, in order, with their positions. It includes subscriptions that were removed:
   * their answers still arrive.
   */
  #unanswered: { name: string; start: Start }[] = [];
  /** The connection received everything up to here. */
  #received: number | undefined;
  /** The timeline of the connection. */
  #timeline: string | undefined;
  #isConnected = false;

  constructor(readonly send: Send) {}

  get size(): number {
    return this.#all.size;
  }

  add(query: Query, start: Start, consumer: Consumer): Entry {
    const entry: Entry = {
      query,
      consumer,
      state: "off",
      name: undefined,
      start,
      seq: start.at === "after" ? start.seq : undefined,
      // A consumer that stored the seq in an earlier process cannot be checked. One that just read it can:
      // the connection may be lost before the first answer.
      timeline: this.#timeline,
      stale: false,
      parts: [],
      backoff: new Backoff(),
      retry: undefined,
    };
    this.#all.add(entry);
    this.#begin(entry);
    return entry;
  }

  /** Starts it again from here. */
  restart(entry: Entry, start: Start): void {
    if (!this.#all.has(entry)) return;
    entry.start = start;
    entry.seq = start.at === "after" ? start.seq : undefined;
    this.#begin(entry);
  }

  /** Stops it on the server, until it is restarted. */
  pause(entry: Entry): void {
    this.#unsubscribe(entry);
  }

  remove(entry: Entry): void {
    this.#unsubscribe(entry);
    this.#all.delete(entry);
  }

  /** There is a new connection. */
  connected(): void {
    this.#isConnected = true;
    const again = Array.from(this.#all).filter((entry) => entry.state !== "off" || entry.retry);
    for (const entry of again) this.#begin(entry);
  }

  /** The connection is lost. */
  disconnected(): void {
    this.#isConnected = false;
    for (const entry of this.#all) {
      if (entry.state === "live") entry.seq = this.#position(entry);
      entry.name = undefined;
    }
    this.#received = undefined;
    this.#timeline = undefined;
    this.#byName.clear();
    this.#unanswered = [];
  }

  /** The first frame of a connection. */
  hello(frame: Frame): void {
    this.#timeline = frame.timeline;
  }

  snapshot(frame: Frame): void {
    const entry = this.#byName.get(frame.id ?? "");
    if (!entry) return;
    for (const row of frame.rows ?? []) entry.parts.push(cellsOf(row));
    if (frame.more) return;
    const seq = frame.seq ?? 0;
    const rows = entry.parts;
    entry.parts = [];
    entry.seq = seq;
    entry.stale = false;
    entry.timeline = this.#timeline;
    const moreFollows = this.#continuesFromPast(entry, seq);
    if (!moreFollows) this.#answered(entry.name);
    entry.consumer.take({
      kind: "snapshot",
      seq,
      info: infoOf(frame),
      rows,
      checksum: frame.checksum,
      historyChanged: frame.history_changed ?? false,
    });
    const isBehind = this.#received !== undefined && this.#received > seq;
    if (!moreFollows && isBehind && entry.state !== "off") this.#begin(entry);
  }

  delta(frame: Frame): void {
    const { from, to, changes = [] } = frame;
    if (from === undefined || to === undefined) return;
    const answered = this.#answerOf(from, changes);
    if (answered !== undefined) {
      const entry = this.#byName.get(answered);
      this.#answered(answered);
      if (entry) this.#resumed(entry, from, to, changes[0]);
      // Earlier changes for the other subscriptions arrived before the answer.
      this.#received = Math.max(this.#received ?? to, to);
      return;
    }
    if (this.#received === undefined || from > this.#received) this.#closeGap(from);
    const received = this.#received;
    for (const change of changes) {
      const entry = this.#byName.get(change.id);
      if (entry?.state !== "live") continue;
      const at = this.#position(entry, received);
      if (at === undefined || from > at || at >= to) continue;
      if (change.stale) {
        entry.seq = at;
        entry.stale = true;
        continue;
      }
      entry.seq = to;
      entry.consumer.take(deltaEvent(change, to));
    }
    this.#received = Math.max(this.#received ?? to, to);
  }

  rerun(frame: Frame): void {
    const to = frame.seq;
    if (to === undefined) return;
    for (const change of frame.changes ?? []) {
      const entry = this.#byName.get(change.id);
      if (entry?.state !== "live" || to < (entry.seq ?? 0)) continue;
      entry.seq = to;
      entry.stale = change.stale ?? false;
      entry.consumer.take(deltaEvent(change, to));
    }
  }

  progress(frame: Frame): void {
    const seq = frame.seq;
    if (seq === undefined) return;
    this.#received = Math.max(this.#received ?? seq, seq);
    for (const entry of this.#all) {
      if (entry.state !== "live" || entry.stale || (entry.seq ?? 0) >= seq) continue;
      entry.seq = seq;
      entry.consumer.take({ kind: "progress", seq });
    }
  }

  /** The server refuses or ends a subscription. */
  refused(name: string, refusal: Refusal): void {
    // Refusals do not wait for the answers before them.
    if (refusal.code !== "resync_required") {
      this.#unanswered = this.#unanswered.filter((start) => start.name !== name);
    }
    const entry = this.#byName.get(name);
    if (!entry) return; // The consumer removed it.
    switch (refusal.code) {
      case "resync_required": // A snapshot follows.
        entry.parts = [];
        break;
      case "rate_limited":
      case "overloaded":
      case "unavailable":
        if (entry.state === "live") entry.seq = this.#position(entry);
        this.#byName.delete(name);
        this.#clear(entry);
        entry.retry = setTimeout(
          () => {
            entry.retry = undefined;
            this.#begin(entry);
          },
          Math.max(entry.backoff.next(), refusal.retry_after_ms ?? 0),
        );
        break;
      default:
        this.#byName.delete(name);
        this.#clear(entry);
        this.#all.delete(entry);
        entry.consumer.end(refusalError(refusal));
    }
  }

  /** Ends all: with this error, or because the program closes the client. */
  end(error: AbideError | undefined): void {
    const all = Array.from(this.#all);
    this.#all.clear();
    this.disconnected();
    for (const entry of all) {
      this.#clear(entry);
      entry.consumer.end(error);
    }
  }

  /** The seq up to which it is complete, on a connection that has received everything up to `received`. */
  #position(entry: Entry, received = this.#received): number | undefined {
    if (entry.stale || received === undefined) return entry.seq;
    return Math.max(entry.seq ?? received, received);
  }

  /** Whether a snapshot is that of a past state, with the changes since still to follow. */
  #continuesFromPast(entry: Entry, seq: number): boolean {
    const waiting = this.#unanswered.find(({ name }) => name === entry.name);
    if (waiting?.start.at !== "asOf") return false;
    waiting.start = { at: "after", seq };
    return true;
  }

  /** The start that a delta answers, if it is an answer. */
  #answerOf(from: number, changes: FrameChange[]): string | undefined {
    if (changes.length > 1) return undefined;
    const [change] = changes;
    const found = this.#unanswered.find(({ name, start }) =>
      change ? name === change.id : start.at === "after" && start.seq === from,
    );
    return found?.name;
  }

  #resumed(entry: Entry, from: number, to: number, change: FrameChange | undefined): void {
    const isBehind = this.#received !== undefined && this.#received > to;
    if (entry.seq === undefined || from > entry.seq || isBehind) {
      this.#begin(entry);
      return;
    }
    if (to < entry.seq) return;
    entry.seq = to;
    // Also without changes: it carries the shape of the result.
    entry.consumer.take(deltaEvent(change ?? { id: "" }, to));
  }

  /** A frame begins after the end of the previous one: subscriptions behind it start again. */
  #closeGap(from: number): void {
    for (const entry of Array.from(this.#all)) {
      const at = this.#position(entry);
      if (entry.state !== "live" || (at !== undefined && at >= from)) continue;
      entry.seq = at;
      this.#begin(entry);
    }
  }

  #begin(entry: Entry): void {
    this.#unsubscribe(entry);
    entry.state = "begun";
    entry.stale = false;
    entry.parts = [];
    if (!this.#isConnected) return;
    this.#nextName += 1;
    const name = `q${this.#nextName}`;
    const start: Start = entry.seq === undefined ? entry.start : { at: "after", seq: entry.seq };
    const { sql, params, checksum, explain } = entry.query;
    entry.name = name;
    this.#byName.set(name, entry);
    this.#unanswered.push({ name, start });
    this.send({
      op: "subscribe",
      id: name,
      sql,
      params,
      after_seq: start.at === "after" ? start.seq : undefined,
      timeline: start.at === "after" ? entry.timeline : undefined,
      as_of: start.at === "asOf" ? start.seq : undefined,
      checksum: checksum || undefined,
      explain: explain || undefined,
    });
  }

  #answered(name: string | undefined): void {
    if (name === undefined) return;
    // Answers arrive in order: those before it will not arrive any more.
    const at = this.#unanswered.findIndex((start) => start.name === name);
    if (at >= 0) this.#unanswered.splice(0, at + 1);
    const entry = this.#byName.get(name);
    if (!entry) return;
    entry.state = "live";
    entry.timeline = this.#timeline;
    entry.backoff.reset();
  }

  /** Ends the current start of a subscription. */
  #unsubscribe(entry: Entry): void {
    if (entry.name !== undefined) {
      this.#byName.delete(entry.name);
      if (this.#isConnected) this.send({ op: "unsubscribe", id: entry.name });
    }
    this.#clear(entry);
  }

  #clear(entry: Entry): void {
    clearTimeout(entry.retry);
    entry.retry = undefined;
    entry.name = undefined;
    entry.state = "off";
  }
}

function infoOf(part: Frame | FrameChange): Info {
  return { shape: shapeOf(part), plan: part.plan };
}

function deltaEvent(change: FrameChange, to: number): DeltaEvent {
  return {
    kind: "delta",
    to,
    changes: changesOf(change),
    checksum: change.checksum,
    info: change.columns ? infoOf(change) : undefined,
  };
}
