/** `useChat` of the AI SDK in a real browser: a tool, an approval, SIGKILL of the server, and a page that is reloaded. */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { createServer, request } from "node:http";
import { after, before, test } from "node:test";

import { build } from "esbuild";
import puppeteer from "puppeteer-core";

import { Server, slowText } from "./server.mjs";

const executable = [
  process.env.CHROMIUM,
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
].find((path) => path && existsSync(path));
if (!executable) console.log("skipped: useChat in a browser, there is no Chromium (CHROMIUM names it)");
const skip = !executable;

let server;
let pages;
let browser;

/** The page, and a proxy for the rest: the server sends no CORS headers. */
async function servePages() {
  const bundle = await build({
    entryPoints: [new URL("use-chat.page.jsx", import.meta.url).pathname],
    bundle: true,
    write: false,
    jsx: "automatic",
    define: { "process.env.NODE_ENV": '"production"' },
  });
  const script = bundle.outputFiles[0].text;
  const http = createServer((incoming, outgoing) => {
    if (incoming.url === "/page.js") return outgoing.setHeader("content-type", "text/javascript").end(script);
    if (!incoming.url.startsWith("/v1/")) {
      outgoing.setHeader("content-type", "text/html");
      return outgoing.end('<!doctype html><meta charset="utf-8"><div id="root"></div><script src="/page.js"></script>');
    }
    const { url: path, method, headers } = incoming;
    const forwarded = request({ host: "127.0.0.1", port: server.port, path, method, headers }, (answer) => {
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.on("error", () => outgoing.destroy());
      answer.pipe(outgoing);
    });
    forwarded.on("error", () => outgoing.destroy());
    incoming.pipe(forwarded);
  });
  await new Promise((listening) => http.listen(0, "127.0.0.1", listening));
  return http;
}

before(async () => {
  if (skip) return;
  server = await Server.start();
  pages = await servePages();
  browser = await puppeteer.launch({ executablePath: executable, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
});
after(async () => {
  await browser?.close();
  pages?.close();
  await server?.stop();
});

async function open(agent, chat) {
  const page = await browser.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(error));
  await page.goto(`http://127.0.0.1:${pages.address().port}/?agent=${agent}&chat=${chat}`);
  return page;
}

/** Waits until the page shows a text. */
const shows = (page, text) =>
  page.waitForFunction((text) => document.body.innerText.includes(text), { polling: "mutation" }, text);

const texts = (page) => page.$$eval(".part", (parts) => parts.map((part) => part.textContent));

async function say(page, text) {
  await page.bringToFront();
  await page.type("input", text);
  await page.click("#send");
}

test("a person approves a call in a page, also after it was reloaded", { skip }, async () => {
  const page = await open("clerk", "page-1");
  await say(page, "Pay order A-7 back.");
  await shows(page, "refund approval-requested");
  await server.kill();
  await server.start();
  await page.reload();
  await shows(page, "refund approval-requested");
  await page.click(".approve");
  await shows(page, "Order A-7 is paid back.");
  assert.deepEqual(await texts(page), [
    "Let me look. ",
    "look output-available",
    "It can be paid back. ",
    "refund output-available",
    "Order A-7 is paid back.",
  ]);
  assert.deepEqual(await server.sql("SELECT status, attempt FROM tool_calls WHERE tool_name = 'refund'"), [["succeeded", 1]]);
  assert.deepEqual(page.errors, []);
});

test("a page that is reloaded after SIGKILL shows the whole answer once", { skip }, async () => {
  const page = await open("writer", "page-2");
  await say(page, "Write.");
  await shows(page, "word9 ");
  await server.kill();
  await shows(page, "error");
  await server.start();
  await page.reload();
  await shows(page, "word59");
  assert.deepEqual(await texts(page), [slowText]);
  assert.deepEqual(await server.sql("SELECT count(*) FROM runs WHERE session_id = 'page-2'"), [[1]]);
  assert.deepEqual(page.errors, []);
});

/** The run went on after `stop`, and the next message was refused. */
test("a person stops an answer and sends another message", { skip }, async () => {
  const page = await open("writer", "page-3");
  await say(page, "Write.");
  await shows(page, "word9 ");
  await page.click("#stop");
  await shows(page, "ready");
  await say(page, "And now?");
  await shows(page, "Again.");
  // The last words arrive before the run is done; the stream ends after it.
  await shows(page, "ready");
  assert.deepEqual(await server.sql("SELECT status FROM runs WHERE session_id = 'page-3' ORDER BY created_at"), [["aborted"], ["done"]]);
  assert.deepEqual(page.errors, []);
});

/** The answer of the agent was to a conversation that the page did not show. */
test("a page that has missed an answer shows why its message is refused", { skip }, async () => {
  const [page, other] = [await open("writer", "page-4"), await open("writer", "page-4")];
  await say(page, "Write.");
  await shows(page, "word59");
  await shows(page, "ready");
  await other.reload();
  await shows(other, "word59");
  await say(page, "And now?");
  await shows(page, "Again.");
  await say(other, "And?");
  await shows(other, "does not follow the end of the session");
  assert.deepEqual(await server.sql("SELECT count(*) FROM runs WHERE session_id = 'page-4'"), [[2]]);
  assert.deepEqual([...page.errors, ...other.errors], []);
});

/**
 * The page hung when an answer had a call with an approval and another call: `useChat` sends decisions when every call of the
 * step has an output or a decision, and the other calls do not start before the decision.
 */
const mixes = { ap: ["refund", "look"], aap: ["refund", "refund", "look"], pap: ["look", "refund", "look"], apa: ["refund", "look", "refund"] };
for (const [mix, calls] of Object.entries(mixes)) {
  for (const decision of ["approve", "reject"]) {
    test(`a person decides to ${decision} first in an answer with the calls ${calls}`, { skip }, async () => {
      const page = await open(`mix-${mix}`, `${mix}-${decision}`);
      await say(page, "Do it.");
      await page.waitForSelector(".approve");
      const asks = calls.filter((call) => call === "refund");
      assert.deepEqual(await texts(page), asks.map(() => "refund approval-requested"));
      await page.click(`.${decision}`);
      while (await page.$(".approve")) await page.click(".approve");
      await shows(page, "All is done.");
      const shown = await texts(page);
      assert.equal(shown.at(-1), "All is done.");
      const failed = decision === "reject" ? 1 : 0;
      const count = (text) => shown.filter((part) => part === text).length;
      assert.deepEqual([count("refund output-denied"), count("refund output-available")], [failed, asks.length - failed]);
      assert.equal(count("look output-available"), calls.length - asks.length);
      await page.reload();
      await shows(page, "All is done.");
      // A page that did not reject the call itself may be one of the AI SDK before 6, which has no such state.
      const reloaded = shown.map((text) => text.replace("output-denied", "output-error"));
      assert.deepEqual((await texts(page)).toSorted(), reloaded.toSorted());
      assert.deepEqual(page.errors, []);
    });
  }
}
