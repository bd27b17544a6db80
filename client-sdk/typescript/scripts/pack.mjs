/**
 * Packs the client and the engine of one platform as npm packages:
 *
 *   node scripts/pack.mjs --binary ../../target/release/abide --out packages
 *
 * The package of the engine has the program `abide`. The client depends on the packages of all
 * platforms optionally, and npm installs the one that fits. `npm run build` must have run.
 *
 * `--distribution NAME` packs them as they are published: under names that begin with NAME, which programs
 * install as `@abide/client`, and with the package NAME, whose command is the program. `--documents FOLDER` adds
 * the files of a folder to the package of the engine, such as licences.
 */
import { execFileSync } from "node:child_process";
import {
  chmodSync,
  copyFileSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";

/** The platforms for which there is an engine. */
const PLATFORMS = ["linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64"];

const { values } = parseArgs({
  options: {
    binary: { type: "string" },
    platform: { type: "string", default: `${process.platform}-${process.arch}` },
    out: { type: "string", default: "packages" },
    distribution: { type: "string" },
    documents: { type: "string" },
  },
});
const root = resolve(import.meta.dirname, "..");
const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
const { version, license } = manifest;
const { distribution } = values;
const out = resolve(values.out);
if (values.binary !== undefined && !PLATFORMS.includes(values.platform)) {
  throw new Error(`--platform is one of ${PLATFORMS.join(", ")}`);
}
const staging = mkdtempSync(join(tmpdir(), "abide-pack-"));
mkdirSync(out, { recursive: true });
try {
  if (values.binary !== undefined) pack(engine(values.platform, resolve(values.binary)));
  pack(client());
  if (distribution !== undefined) pack(program());
} finally {
  rmSync(staging, { recursive: true });
}

/** The package of the engine of one platform. */
function engine(platform, binary) {
  const folder = join(staging, "engine");
  const [os, cpu] = platform.split("-");
  const program = join(folder, "bin", os === "win32" ? "abide.exe" : "abide");
  mkdirSync(join(folder, "bin"), { recursive: true });
  copyFileSync(binary, program);
  chmodSync(program, 0o755);
  const documents = values.documents === undefined ? [] : readdirSync(values.documents);
  for (const name of documents) {
    copyFileSync(join(values.documents, name), join(folder, name));
  }
  writeManifest(folder, {
    name: distribution === undefined ? `@abide/engine-${platform}` : `${distribution}-${platform}`,
    version,
    description: `The engine of Abide for ${platform}`,
    license,
    os: [os],
    cpu: [cpu],
    ...(os === "linux" && { libc: ["glibc"] }),
    files: ["bin", ...documents],
  });
  writeFileSync(join(folder, "README.md"), "The program `abide` of one platform.\n");
  return folder;
}

/** The client, without what only its development needs. */
function client() {
  const folder = join(staging, "client");
  cpSync(join(root, "dist"), join(folder, "dist"), { recursive: true });
  copyFileSync(join(root, "README.md"), join(folder, "README.md"));
  const { scripts: _scripts, devDependencies: _dev, ...published } = manifest;
  delete published.imports["#dist/*"];
  published.optionalDependencies = engines();
  if (distribution !== undefined) published.name = `${distribution}-client`;
  writeManifest(folder, published);
  return folder;
}

/** The package whose command is the program: `npx NAME`. */
function program() {
  const folder = join(staging, "program");
  mkdirSync(join(folder, "bin"), { recursive: true });
  copyFileSync(join(root, "../../package/npm/abide.mjs"), join(folder, "bin/abide.mjs"));
  copyFileSync(join(root, "../../package/npm/README.md"), join(folder, "README.md"));
  writeManifest(folder, {
    name: distribution,
    version,
    description: "Abide, a durable session engine for AI agents, in one SQLite file",
    license,
    type: "module",
    engines: manifest.engines,
    bin: { abide: "bin/abide.mjs" },
    files: ["bin"],
    optionalDependencies: engines(),
  });
  return folder;
}

/** The packages of all platforms, by the names under which the client finds them. */
function engines() {
  const published = (platform) =>
    distribution === undefined ? version : `npm:${distribution}-${platform}@${version}`;
  return Object.fromEntries(
    PLATFORMS.map((platform) => [`@abide/engine-${platform}`, published(platform)]),
  );
}

function writeManifest(folder, content) {
  writeFileSync(join(folder, "package.json"), `${JSON.stringify(content, null, 2)}\n`);
}

function pack(folder) {
  const args = ["pack", folder, "--pack-destination", out, "--silent"];
  const file = execFileSync("npm", args, { encoding: "utf8", shell: process.platform === "win32" });
  console.log(join(out, file.trim()));
}
