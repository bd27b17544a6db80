/** `useLiveQuery`: a query result in a React component, which renders again when the result changes. */
import { useCallback, useMemo, useRef, useSyncExternalStore } from "react";

import type { Abide, SubscribeOptions } from "./abide.js";
import { AbideError, closedError, messageOf } from "./errors.js";
import { writeJson } from "./json.js";
import { checkOptions } from "./options.js";
import type { Schema } from "./schema.js";
import type { Subscription } from "./subscription.js";
import { type Params, type SqlRow, wireParams } from "./values.js";

/** The state of a live query. */
export interface LiveQuery<R extends object> {
  /** The rows; empty until the first result. Rows that did not change keep their identity. */
  rows: readonly R[];
  /** There is no result yet. */
  isLoading: boolean;
  /** The seq up to which all changes are applied. */
  seq: number;
  /** Why the query failed or ended. */
  error: AbideError | undefined;
}

/** Options of the hook. */
export interface LiveQueryOptions extends Pick<SubscribeOptions, "checksum" | "deadlineMs"> {
  /** While it is `false` there is no subscription. Default: `true`. */
  enabled?: boolean;
}

const LOADING: LiveQuery<never> = { rows: [], isLoading: true, seq: 0, error: undefined };

/**
 * Subscribes to a query as long as the component is mounted. A new client, statement or parameter starts a
 * new subscription; the object of the parameters can be a new one in each render.
 */
export function useLiveQuery<R extends object = SqlRow>(
  client: Pick<Abide<Schema>, "subscribe">,
  sql: string,
  params: Params = {},
  options: LiveQueryOptions = {},
): LiveQuery<R> {
  checkOptions("useLiveQuery", options, ["enabled", "checksum", "deadlineMs"]);
  const { enabled = true, checksum, deadlineMs } = options;
  const state = useRef<LiveQuery<R>>(LOADING);
  const identity = identityOf(params);
  // The parameters are compared by value.
  const stableParams = useMemo(() => params, [identity]);
  const subscribe = useCallback(
    (onChange: () => void) => {
      const set = (next: LiveQuery<R>) => {
        state.current = next;
        onChange();
      };
      state.current = LOADING;
      if (!enabled) return () => {};
      const controller = new AbortController();
      const settings: SubscribeOptions = { signal: controller.signal };
      if (checksum !== undefined) settings.checksum = checksum;
      if (deadlineMs !== undefined) settings.deadlineMs = deadlineMs;
      client.subscribe<R>(sql, stableParams, settings).then(
        (subscription) => {
          const show = () => set(stateOf(subscription));
          subscription.on("update", show);
          subscription.on("end", () => {
            if (!controller.signal.aborted) show();
          });
          show();
        },
        (error: unknown) => {
          if (!controller.signal.aborted) set({ ...LOADING, isLoading: false, error: asAbideError(error) });
        },
      );
      return () => controller.abort();
    },
    [client, sql, stableParams, enabled, checksum, deadlineMs],
  );
  const snapshot = () => state.current;
  return useSyncExternalStore(subscribe, snapshot, () => LOADING);
}

/** The parameters as a text. Those that cannot be sent make `subscribe` fail, not the rendering. */
function identityOf(params: Params): string {
  try {
    return writeJson(wireParams(params));
  } catch (error) {
    return messageOf(error);
  }
}

function stateOf<R extends object>({ rows, seq, error, isEnded }: Subscription<R>): LiveQuery<R> {
  // The rows of a component whose client was closed are no longer up to date.
  return { rows, isLoading: false, seq, error: error ?? (isEnded ? closedError() : undefined) };
}

function asAbideError(error: unknown): AbideError {
  return error instanceof AbideError ? error : new AbideError("internal", messageOf(error), { cause: error });
}
