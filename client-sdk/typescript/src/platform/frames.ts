/** The frames of a WebSocket (RFC 6455, section 5), as a client writes and reads them. */
import { randomFillSync } from "node:crypto";

export const Opcode = { Continuation: 0, Text: 1, Binary: 2, Close: 8, Ping: 9, Pong: 10 } as const;

/**
 * The most bytes of one message. A change of a large result is one message; the server reads at most 64 MB
 * for one, which JSON may expand several times.
 */
const MOST_BYTES = 512 << 20;

/** A whole message, or a control frame. */
export interface Message {
  opcode: number;
  payload: Buffer;
}

const masks = Buffer.alloc(4096);
let nextMask = masks.length;

/** A frame with its mask. */
export function frameOf(opcode: number, payload: Buffer): Buffer {
  const { length } = payload;
  const header = length < 126 ? 2 : length < 0x1_0000 ? 4 : 10;
  const frame = Buffer.allocUnsafe(header + 4 + length);
  frame[0] = 0x80 | opcode;
  if (header === 2) {
    frame[1] = 0x80 | length;
  } else if (header === 4) {
    frame[1] = 0x80 | 126;
    frame.writeUInt16BE(length, 2);
  } else {
    frame[1] = 0x80 | 127;
    frame.writeBigUInt64BE(BigInt(length), 2);
  }
  if (nextMask === masks.length) {
    randomFillSync(masks);
    nextMask = 0;
  }
  masks.copy(frame, header, nextMask, nextMask + 4);
  nextMask += 4;
  const start = header + 4;
  for (let at = 0; at < length; at += 1) {
    frame[start + at] = (payload[at] as number) ^ (frame[header + (at & 3)] as number);
  }
  return frame;
}

/** Assembles messages from the bytes of the server. */
export class FrameReader {
  #chunks: Buffer[] = [];
  #buffered = 0;
  /** Bytes needed before the next step is possible. */
  #needed = 2;
  #parts: Buffer[] = [];
  #partsOpcode = 0;
  #partsBytes = 0;

  /**
   * Adds bytes, and calls `take` with each message that is complete.
   *
   * @throws Error if the bytes violate RFC 6455.
   */
  push(chunk: Buffer, take: (message: Message) => void): void {
    this.#chunks.push(chunk);
    this.#buffered += chunk.length;
    while (this.#buffered >= this.#needed) {
      const message = this.#next();
      if (message === undefined) continue;
      take(message);
    }
  }

  /** The next message. `undefined` if more bytes are needed, or a fragment was stored. */
  #next(): Message | undefined {
    const head = this.#peek(this.#needed);
    const [first, second] = [head[0] as number, head[1] as number];
    if ((first & 0x70) !== 0) throw new Error("a frame with reserved bits");
    if ((second & 0x80) !== 0) throw new Error("a masked frame of the server");
    const short = second & 0x7f;
    const header = short === 126 ? 4 : short === 127 ? 10 : 2;
    if (head.length < header) return this.#need(header);
    const length =
      short === 126 ? head.readUInt16BE(2) : short === 127 ? Number(head.readBigUInt64BE(2)) : short;
    if (length + this.#partsBytes > MOST_BYTES) throw new Error(`a message of ${length} bytes`);
    if (this.#buffered < header + length) return this.#need(header + length);
    const payload = this.#peek(header + length).subarray(header, header + length);
    this.#consume(header + length);
    this.#needed = 2;
    return this.#assemble(first & 0x0f, (first & 0x80) !== 0, payload);
  }

  #assemble(opcode: number, isLast: boolean, payload: Buffer): Message | undefined {
    if (opcode >= Opcode.Close) {
      if (!isLast || payload.length > 125) throw new Error("a control frame that is too long");
      return { opcode, payload };
    }
    const continues = this.#parts.length > 0;
    if (continues !== (opcode === Opcode.Continuation)) throw new Error("fragments out of order");
    if (isLast && !continues) return { opcode, payload };
    if (!continues) this.#partsOpcode = opcode;
    this.#parts.push(payload);
    this.#partsBytes += payload.length;
    if (!isLast) return undefined;
    const whole = { opcode: this.#partsOpcode, payload: Buffer.concat(this.#parts) };
    this.#parts = [];
    this.#partsBytes = 0;
    return whole;
  }

  #need(bytes: number): undefined {
    this.#needed = bytes;
    return undefined;
  }

  /** The first bytes, in one buffer. */
  #peek(bytes: number): Buffer {
    const [first] = this.#chunks;
    if (first && first.length >= bytes) return first;
    this.#chunks = [Buffer.concat(this.#chunks)];
    return this.#chunks[0] as Buffer;
  }

  #consume(bytes: number): void {
    const first = this.#chunks[0] as Buffer;
    this.#buffered -= bytes;
    if (first.length === bytes) this.#chunks.shift();
    else this.#chunks[0] = first.subarray(bytes);
  }
}
