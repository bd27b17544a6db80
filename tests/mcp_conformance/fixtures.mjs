/**
 * The server that the suite of MCP sees: `fixtures.mjs FIXTURES ABIDE`. Tasks are answered by a real `abide serve` with the agents of this
 * folder, whose first line of output is the second argument, and everything else by the fixtures in Rust, whose URL is the first. Prints
 * its own URL.
 *
 * The suite wants tools with certain names that become tasks. A task of Abide is a run of an agent, whose tool has another name and a
 * message as its argument, so calls are renamed; and a form of Abide asks for `approve`, while the suite answers with `confirm`.
 */
import { createServer } from "node:http";

const fixtures = process.argv[2];
const tasks = `http://${JSON.parse(process.argv[3]).listening}/mcp`;

/** The tool of Abide for a tool of the suite. */
const TOOLS = {
  greet: () => "greet",
  slow_compute: ({ seconds }) => (seconds > 10 ? "agent_long" : "agent_short"),
  failing_job: () => "agent_fails",
  protocol_error_job: () => "agent_fails",
  confirm_delete: () => "agent_asks-once",
  multi_input: () => "agent_asks-twice",
};

/** The request for Abide; `undefined` if the fixtures answer it. */
function renamed(body, headers) {
  const { method, params } = body;
  if (method?.startsWith("tasks/")) {
    const inputResponses = params?.inputResponses && Object.fromEntries(
      Object.entries(params.inputResponses).map(([key, { action }]) => [key, { action, content: { approve: true } }]),
    );
    return { body: inputResponses ? { ...body, params: { ...params, inputResponses } } : body, headers };
  }
  if (method !== "tools/call" || !(params?.name in TOOLS)) return undefined;
  const name = TOOLS[params.name](params.arguments ?? {});
  const isAgent = name.startsWith("agent_");
  const args = isAgent ? { message: JSON.stringify(params.arguments) } : params.arguments;
  // A header that does not match the body still does not.
  const header = headers["mcp-name"] === params.name ? { "mcp-name": name } : {};
  return { body: { ...body, params: { ...params, name, arguments: args } }, headers: { ...headers, ...header } };
}

/** A description of the tools that Abide has for the suite. */
const described = Object.keys(TOOLS).map((name) => ({ name, description: "A task.", inputSchema: { type: "object" } }));

createServer(async (request, response) => {
  let text = "";
  for await (const piece of request) text += piece;
  const { host: _, connection: __, "content-length": ___, "transfer-encoding": ____, ...headers } = request.headers;
  const wanted = request.method === "POST" ? renamed(JSON.parse(text), headers) : undefined;
  const left = new AbortController();
  response.on("close", () => left.abort());
  try {
    const answer = await fetch(wanted ? tasks : fixtures, {
      method: request.method,
      headers: wanted?.headers ?? headers,
      body: request.method === "GET" ? undefined : wanted ? JSON.stringify(wanted.body) : text,
      signal: left.signal,
    });
    const answered = Object.fromEntries(answer.headers);
    delete answered["content-length"];
    const isList = text.includes('"tools/list"') && answered["content-type"]?.includes("json");
    response.writeHead(answer.status, answered);
    if (isList) {
      const list = await answer.json();
      list.result?.tools.push(...described);
      response.end(JSON.stringify(list));
      return;
    }
    for await (const piece of answer.body ?? []) response.write(piece);
    response.end();
  } catch (error) {
    if (!left.signal.aborted) response.destroy(error);
  }
}).listen(0, "127.0.0.1", function () {
  console.log(`http://127.0.0.1:${this.address().port}/mcp`);
});
