/** What a failed handshake of TLS means for the caller. */

const AUTHORITY_HINT =
  "give the certificate of the authority that signed the server's: NODE_EXTRA_CA_CERTS=FILE, set before the program starts";
const NAME_HINT =
  "write a name of the certificate in the URL, or request a certificate that has the name of the URL";
const PLAIN_HINT = "write http:// in place of https://, or start the server with --tls-cert and --tls-key";

/** Hints by the code of the error of Node. */
const HINTS: Record<string, string> = {
  DEPTH_ZERO_SELF_SIGNED_CERT: AUTHORITY_HINT,
  SELF_SIGNED_CERT_IN_CHAIN: AUTHORITY_HINT,
  UNABLE_TO_GET_ISSUER_CERT: AUTHORITY_HINT,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: AUTHORITY_HINT,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: AUTHORITY_HINT,
  ERR_TLS_CERT_ALTNAME_INVALID: NAME_HINT,
  CERT_HAS_EXPIRED: "renew the certificate of the server, or check the clock of this machine",
  CERT_NOT_YET_VALID: "check the clock of this machine, and that of the authority",
};

const OTHER_HINT = "see docs/tls.md; `openssl s_client -connect HOST:PORT` shows what the server presents";

/** The hint of an error of TLS; `undefined` for other errors of a connection. `fetch` has the error as its cause. */
export function tlsHint(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined;
  const { code } = error as { code?: unknown };
  if (typeof code !== "string") return tlsHint(error.cause);
  const hint = HINTS[code];
  if (hint !== undefined || !/^ERR_(?:SSL|TLS)_|^EPROTO$/.test(code)) return hint;
  // The code does not say why OpenSSL could not read the answer.
  return /wrong.version.number|packet.length.too.long/i.test(error.message) ? PLAIN_HINT : OTHER_HINT;
}
