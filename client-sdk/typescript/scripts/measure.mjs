/**
 * Measures this SDK alone: changes per second that a subscription applies, and memory per live row. `node --expose-gc scripts/measure.mjs`
 *
 * The server is a second process that sends frames made in advance, so that the engine does not limit the result.
 */
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { createServer } from "node:net";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

import { Abide } from "../dist/index.js";
import { Checksum } from "../dist/checksum.js";

const DELTAS = 200_000;
const ROWS = 100_000;
const COLUMNS = [
  { name: "id", type: "INTEGER" },
  { name: "role", type: "TEXT" },
  { name: "content", type: "TEXT" },
  { name: "created_at", type: "INTEGER" },
];
const SHAPE = { columns: COLUMNS, key: ["id"], order: [] };

if (process.argv[2] === "peer") servePeer();
else await measure();

function row(n) {
  return [n, "assistant", `The parcel ${n} is at the depot; it will arrive tomorrow.`, 1764000000000000 + n];
}

/** A frame of a server: not masked. */
function frame(message) {
  const payload = Buffer.from(JSON.stringify(message));
  const header = Buffer.alloc(10);
  header[0] = 0x81;
  header[1] = 127;
  header.writeBigUInt64BE(BigInt(payload.length), 2);
  return Buffer.concat([header, payload]);
}

function servePeer() {
  const server = createServer((socket) => {
    let open = false;
    socket.on("error", () => {});
    socket.on("data", (bytes) => {
      if (!open) {
        open = true;
        const key = /sec-websocket-key: (.*)\r\n/i.exec(bytes.toString())[1];
        const accept = createHash("sha1").update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
        const head = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"];
        head.push(`Sec-WebSocket-Accept: ${accept}`, "Sec-WebSocket-Protocol: abide.v1", "", "");
        socket.write(head.join("\r\n"));
        socket.write(frame({ op: "hello", seq: 1, timeline: "t" }));
        return;
      }
      const text = unmask(bytes);
      if (text.includes('"subscribe"')) answer(socket, JSON.parse(text));
    });
  });
  server.listen(0, "127.0.0.1", () => console.log(server.address().port));
}

function unmask(bytes) {
  const start = (bytes[1] & 0x7f) === 126 ? 8 : 6;
  const mask = bytes.subarray(start - 4, start);
  return Buffer.from(bytes.subarray(start).map((byte, at) => byte ^ mask[at & 3])).toString();
}

function answer(socket, { id, sql, checksum }) {
  if (sql.includes("rows")) {
    const rows = Array.from({ length: ROWS }, (_, n) => row(n));
    const sum = checksum ? { checksum: Checksum.of(rows).toString() } : {};
    socket.write(frame({ op: "snapshot", id, seq: 1, ...SHAPE, rows, ...sum }));
    return;
  }
  const sum = Checksum.of([]);
  const sums = () => (checksum ? { checksum: sum.toString() } : {});
  const frames = [frame({ op: "snapshot", id, seq: 1, ...SHAPE, rows: [], ...sums() })];
  for (let n = 1; n <= DELTAS; n += 1) {
    const change = { id, deletes: n > 1_000 ? [[n - 1_000]] : [], inserts: [row(n)], updates: [] };
    if (checksum) {
      sum.add(row(n));
      if (n > 1_000) sum.remove(row(n - 1_000));
    }
    frames.push(frame({ op: "delta", from: n, to: n + 1, changes: [{ ...change, ...sums() }] }));
  }
  socket.write(Buffer.concat(frames));
}

async function measure() {
  const peer = spawn(process.execPath, [fileURLToPath(import.meta.url), "peer"], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const { value: port } = await createInterface(peer.stdout)[Symbol.asyncIterator]().next();
  const client = await Abide.connect(`http://127.0.0.1:${port}`);
  for (const checksum of [true, false]) {
    const sub = await client.subscribe("deltas", {}, { checksum });
    const started = performance.now();
    await new Promise((resolve) => {
      sub.on("update", ({ inserts }) => {
        if (inserts[0].id === DELTAS) resolve();
      });
    });
    const perSecond = Math.round(DELTAS / ((performance.now() - started) / 1000));
    console.log(`${perSecond.toLocaleString("en")} changes per second, checksum: ${checksum}`);
    sub.close();
  }
  const heap = () => {
    globalThis.gc();
    const { heapUsed, arrayBuffers } = process.memoryUsage();
    return heapUsed + arrayBuffers;
  };
  const before = heap();
  const sub = await client.subscribe("rows", {}, { checksum: true });
  const held = heap() - before;
  const read = sub.rows.length;
  const shown = heap() - before;
  console.log(`${Math.round(held / ROWS)} bytes per live row, ${Math.round(shown / read)} once it was read as an object`);
  console.log(`(a row has four columns, and its JSON about ${JSON.stringify(row(ROWS)).length} bytes)`);
  await client.close();
  peer.kill();
}
