/**
 * An agent with one tool. Its model answers from a script: a call of the tool, then a sentence with the
 * tool's result.
 */
import { Agent, type Model, type ModelRequest, type ModelResponse, tool, Usage } from "@openai/agents";

class ScriptedModel implements Model {
  async getResponse({ input }: ModelRequest): Promise<ModelResponse> {
    const last = typeof input === "string" ? undefined : input.at(-1);
    const output: ModelResponse["output"] =
      last?.type === "function_call_result"
        ? [
            {
              type: "message",
              role: "assistant",
              status: "completed",
              content: [{ type: "output_text", text: `The refund is done: ${textOf(last.output)}` }],
            },
          ]
        : [
            {
              type: "function_call",
              callId: `c${Array.isArray(input) ? input.length : 0}`,
              name: "refund",
              status: "completed",
              arguments: "{}",
            },
          ];
    return { usage: new Usage(), output };
  }

  async *getStreamedResponse(): AsyncGenerator<never> {
    throw new Error("the test does not stream");
  }
}

function textOf(output: unknown): string {
  if (typeof output === "string") return output;
  return String((output as { text?: string }).text);
}

export function refundAgent(refund: () => Promise<string>): Agent {
  const parameters = {
    type: "object" as const,
    properties: {},
    required: [],
    additionalProperties: false as const,
  };
  const tools = [
    tool({ name: "refund", description: "Refunds an order.", parameters, strict: true, execute: refund }),
  ];
  return new Agent({ name: "support", instructions: "Refund orders.", model: new ScriptedModel(), tools });
}
