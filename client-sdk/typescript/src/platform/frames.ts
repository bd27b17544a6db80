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

const EMPTY = Buffer.alloc(0);

/**
 * Bytes that arrive in parts, in one buffer: a part has no cost besides its bytes. So a peer that sends many
 * small parts takes no more memory than one that sends the same bytes at once.
 */
class Gathered {
  #buffer: Buffer = EMPTY;
  #start = 0;
  #end = 0;
  /** The buffer was made here, so that bytes can be added to it. */
  #isOwn = false;

  get length(): number {
    return this.#end - this.#start;
  }

  /** All bytes. They stay valid: bytes that were added are not overwritten. */
  get view(): Buffer {
    return this.#buffer.subarray(this.#start, this.#end);
  }

  add(part: Buffer): void {
    if (this.length === 0) {
      // Most parts are read at once, and need no copy.
      [this.#buffer, this.#start, this.#end] = [part, 0, part.length];
      this.#isOwn = false;
      return;
    }
    const length = this.length + part.length;
    if (!this.#isOwn || this.#end + part.length > this.#buffer.length) {
      const larger = Buffer.allocUnsafeSlow(length * 2);
      this.view.copy(larger);
      [this.#buffer, this.#start, this.#end] = [larger, 0, this.length];
      this.#isOwn = true;
    }
    part.copy(this.#buffer, this.#end);
    this.#end += part.length;
  }

  remove(bytes: number): void {
    this.#start += bytes;
    if (this.length === 0) this.clear();
  }

  clear(): void {
    [this.#buffer, this.#start, this.#end] = [EMPTY, 0, 0];
  }
}

/** Assembles messages from the bytes of the server. */
export class FrameReader {
  readonly #bytes = new Gathered();
  /** Bytes needed before the next step is possible. */
  #needed = 2;
  /** The fragments of a message so far. */
  readonly #fragments = new Gathered();
  /** The opcode of their message; `undefined` if there is none. */
  #opcode: number | undefined;

  /**
   * Adds bytes, and calls `take` with each message that is complete.
   *
   * @throws Error if the bytes violate RFC 6455.
   */
  push(chunk: Buffer, take: (message: Message) => void): void {
    this.#bytes.add(chunk);
    while (this.#bytes.length >= this.#needed) this.#next(take);
  }

  /** Takes the next frame, if it is complete. */
  #next(take: (message: Message) => void): void {
    const head = this.#bytes.view;
    const [first, second] = [head[0] as number, head[1] as number];
    if ((first & 0x70) !== 0) throw new Error("a frame with reserved bits");
    if ((second & 0x80) !== 0) throw new Error("a masked frame of the server");
    const short = second & 0x7f;
    const header = short === 126 ? 4 : short === 127 ? 10 : 2;
    this.#needed = header;
    if (head.length < header) return;
    const length =
      short === 126 ? head.readUInt16BE(2) : short === 127 ? Number(head.readBigUInt64BE(2)) : short;
    if (length + this.#fragments.length > MOST_BYTES) throw new Error(`a message of ${length} bytes`);
    this.#needed = header + length;
    if (head.length < this.#needed) return;
    this.#needed = 2;
    this.#bytes.remove(header + length);
    this.#assemble(first & 0x0f, (first & 0x80) !== 0, head.subarray(header, header + length), take);
  }

  #assemble(opcode: number, isLast: boolean, payload: Buffer, take: (message: Message) => void): void {
    if (opcode >= Opcode.Close) {
      if (!isLast || payload.length > 125) throw new Error("a control frame that is too long");
      return take({ opcode, payload });
    }
    const continues = this.#opcode !== undefined;
    if (continues !== (opcode === Opcode.Continuation)) throw new Error("fragments out of order");
    if (isLast && !continues) return take({ opcode, payload });
    this.#opcode ??= opcode;
    this.#fragments.add(payload);
    if (!isLast) return;
    const whole = { opcode: this.#opcode, payload: this.#fragments.view };
    this.#opcode = undefined;
    this.#fragments.clear();
    take(whole);
  }
}
