/**
 * The checksum of a query's result, as `schema/src/checksum.rs` defines it: a sum modulo 2^64 of a hash of
 * each row. Both ends of a subscription compute it, so that they notice if they hold different rows.
 */
import { type Cell, isReal, Real } from "./values.js";

/** The checksum of a multiset of rows. */
export class Checksum {
  #sum = 0n;

  static of(rows: Iterable<readonly Cell[]>): Checksum {
    const checksum = new Checksum();
    for (const row of rows) checksum.add(row);
    return checksum;
  }

  add(row: readonly Cell[]): void {
    this.#sum = BigInt.asUintN(64, this.#sum + hashOf(row));
  }

  remove(row: readonly Cell[]): void {
    this.#sum = BigInt.asUintN(64, this.#sum - hashOf(row));
  }

  copy(): Checksum {
    const copy = new Checksum();
    copy.#sum = this.#sum;
    return copy;
  }

  /** 16 hex digits, as on the wire. */
  toString(): string {
    return this.#sum.toString(16).padStart(16, "0");
  }
}

const encoder = new TextEncoder();
let scratch = new Uint8Array(1024);
const eight = new DataView(new ArrayBuffer(8));

/** FNV-1a of 64 bits, in two halves of 32 bits. */
class Fnv {
  #high = 0xcbf29ce4;
  #low = 0x84222325;

  byte(byte: number): void {
    const low = (this.#low ^ byte) >>> 0;
    // The prime is 2^40 + 0x1b3. Each product is less than 2^53.
    const product = low * 0x1b3;
    const high = this.#high * 0x1b3 + Math.floor(product / 0x1_0000_0000) + low * 256;
    this.#low = product >>> 0;
    this.#high = high >>> 0;
  }

  bytes(bytes: Uint8Array, length: number): void {
    for (let at = 0; at < length; at += 1) this.byte(bytes[at] as number);
  }

  eight(): void {
    for (let at = 0; at < 8; at += 1) this.byte(eight.getUint8(at));
  }

  content(tag: number, bytes: Uint8Array, length: number): void {
    this.byte(tag);
    eight.setUint32(0, length >>> 0, true);
    eight.setUint32(4, Math.floor(length / 0x1_0000_0000), true);
    this.eight();
    this.bytes(bytes, length);
  }

  /** MurmurHash3's final mixer. */
  mixed(): bigint {
    let hash = (BigInt(this.#high) << 32n) | BigInt(this.#low);
    hash = BigInt.asUintN(64, (hash ^ (hash >> 33n)) * 0xff51afd7ed558ccdn);
    hash = BigInt.asUintN(64, (hash ^ (hash >> 33n)) * 0xc4ceb9fe1a85ec53n);
    return hash ^ (hash >> 33n);
  }
}

function hashOf(row: readonly Cell[]): bigint {
  const hash = new Fnv();
  for (const cell of row) {
    if (cell === null) hash.byte(0);
    else if (typeof cell === "string") text(hash, cell);
    else if (cell instanceof Uint8Array) hash.content(4, cell, cell.length);
    else number(hash, cell);
  }
  return hash.mixed();
}

function number(hash: Fnv, cell: number | bigint | Real): void {
  if (isReal(cell)) {
    hash.byte(2);
    eight.setFloat64(0, cell instanceof Real ? cell.value : (cell as number), true);
  } else {
    hash.byte(1);
    eight.setBigInt64(0, BigInt(cell as number | bigint), true);
  }
  hash.eight();
}

function text(hash: Fnv, content: string): void {
  // A UTF-16 unit has at most three bytes in UTF-8.
  if (scratch.length < content.length * 3) scratch = new Uint8Array(content.length * 3);
  const { written } = encoder.encodeInto(content, scratch);
  hash.content(3, scratch, written);
  if (scratch.length > 1 << 20) scratch = new Uint8Array(1024);
}
