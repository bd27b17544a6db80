/**
 * Two copies of this package in one program: a library with its own dependency, or a bundled and an external copy.
 * `instanceof` was false between them, so a `Retryable` of the other copy made a step fail for ever.
 */
import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import * as first from "@abide/client";

/** Loads another copy of the package. */
async function otherCopy(): Promise<{ second: typeof first; remove: () => void }> {
  const dist = fileURLToPath(new URL(".", import.meta.resolve("@abide/client")));
  const folder = mkdtempSync(join(tmpdir(), "abide-copy-"));
  cpSync(join(dist, "..", "package.json"), join(folder, "package.json"));
  cpSync(dist, join(folder, "dist"), { recursive: true });
  const second = (await import(pathToFileURL(join(folder, "dist", "index.js")).href)) as typeof first;
  return { second, remove: () => rmSync(folder, { recursive: true }) };
}

test("classes are the same in two copies", async () => {
  const { second, remove } = await otherCopy();
  try {
    assert.notEqual(first.AbideError, second.AbideError);
    for (const [ours, theirs] of [
      [first, second],
      [second, first],
    ] as const) {
      const error = new theirs.AbideError("bad_arguments", "wrong");
      assert(error instanceof ours.AbideError && error instanceof Error);
      assert(ours.isAbideError(error, "bad_arguments"));
      assert(!(error instanceof ours.ToolFailed));
      const failed = new theirs.ToolFailed("s1/c1", "failed", "it broke");
      assert(failed instanceof ours.ToolFailed && failed instanceof ours.AbideError);
      assert(!(failed instanceof ours.UnknownOutcome));
      assert(new theirs.UnknownOutcome("s1/c1", "pay") instanceof ours.UnknownOutcome);
      assert(new theirs.Retryable("again") instanceof ours.Retryable);
      assert(new theirs.Rejected("no") instanceof ours.Rejected);
      assert(theirs.real(1) instanceof ours.Real);
    }
    for (const other of [null, undefined, 1, "text", {}, new Error("no")]) {
      assert(!(other instanceof first.AbideError) && !(other instanceof first.Retryable));
    }
  } finally {
    remove();
  }
});

test("a class that extends an error has its own instances only", () => {
  class Own extends first.AbideError {}
  assert(new Own("internal", "x") instanceof Own);
  assert(new Own("internal", "x") instanceof first.AbideError);
  assert(!(new first.AbideError("internal", "x") instanceof Own));
});
