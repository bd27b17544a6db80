/**
 * A registry with the packages of one folder, for `cargo xtask package --check`: `npx` resolves and downloads them as it
 * does after they are published. Prints its port.
 *
 *   node registry.mjs FOLDER
 */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

const folder = process.argv[2];
/** The manifest of each package, by its name, with the content of its file. */
const packages = new Map();
for (const file of readdirSync(folder).filter((name) => name.endsWith(".tgz"))) {
  const text = execFileSync("tar", ["-xzOf", join(folder, file), "package/package.json"], { encoding: "utf8" });
  const manifest = JSON.parse(text);
  packages.set(manifest.name, { manifest, file, content: readFileSync(join(folder, file)) });
}

const server = createServer((request, response) => {
  const name = decodeURIComponent(request.url.slice(1));
  const found = packages.get(name) ?? packages.get(name.split("/-/")[0]);
  if (found === undefined) {
    response.writeHead(404, { "content-type": "application/json" }).end('{"error": "not found"}');
  } else if (name.endsWith(".tgz")) {
    response.writeHead(200, { "content-type": "application/octet-stream" }).end(found.content);
  } else {
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(description(found)));
  }
});

function description({ manifest, file, content }) {
  const { name, version } = manifest;
  const tarball = `http://127.0.0.1:${server.address().port}/${name}/-/${file}`;
  const integrity = `sha512-${createHash("sha512").update(content).digest("base64")}`;
  return {
    name,
    "dist-tags": { latest: version },
    versions: { [version]: { ...manifest, dist: { tarball, integrity } } },
  };
}

server.listen(0, "127.0.0.1", () => console.log(server.address().port));
