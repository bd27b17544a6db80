/** Waits with a limit: a test that reaches it names what it waits for. */

const LIMIT_MS = 20_000;

export async function within<T>(what: string, promise: Promise<T>, limitMs = LIMIT_MS): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    // tidy: a bound, which a test that passes does not reach
    timer = setTimeout(() => reject(new Error(`${what} did not happen in time`)), limitMs);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Waits until a condition is true; `changed` calls back whenever it can have changed. */
export async function until(
  what: string,
  isDone: () => boolean,
  onChange: (changed: () => void) => () => void,
): Promise<void> {
  if (isDone()) return;
  let stop = () => {};
  const done = new Promise<void>((resolve) => {
    stop = onChange(() => {
      if (isDone()) resolve();
    });
  });
  try {
    await within(what, done);
  } finally {
    stop();
  }
}
