/** A chat with an agent, as a page of the AI SDK has it. */
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const query = new URLSearchParams(location.search);

function Part({ part, parts, decide }) {
  if (part.type === "text") return <p className="part">{part.text}</p>;
  if (part.type === "data-waiting") return <p className="part">{part.data.message}</p>;
  if (part.type !== "dynamic-tool") return null;
  return (
    <div>
      <p className="part">
        {part.toolName} {part.state}
      </p>
      {part.state === "approval-requested" && (
        <>
          <p className="question">{parts.findLast((it) => it.type === "data-approval" && it.id === part.toolCallId)?.data.message}</p>
          <button className="approve" onClick={() => decide({ id: part.approval.id, approved: true })}>
            Approve
          </button>
          <button className="reject" onClick={() => decide({ id: part.approval.id, approved: false })}>
            Reject
          </button>
        </>
      )}
    </div>
  );
}

/** The detail of a refusal; an error of the connection has none. */
function detail({ message }) {
  try {
    return JSON.parse(message).detail;
  } catch {
    return message;
  }
}

function Chat() {
  const [text, setText] = useState("");
  const { messages, sendMessage, addToolApprovalResponse, status, stop, error } = useChat({
    id: query.get("chat"),
    resume: true,
    transport: new DefaultChatTransport({ api: `/v1/agents/${query.get("agent")}/chat` }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const abort = () => fetch(`/v1/sessions/${query.get("chat")}/abort`, { method: "POST" }).finally(stop);
  const answers = messages.filter((message) => message.role === "assistant");
  return (
    <main>
      <p>{status}</p>
      {error && <p className="problem">{detail(error)}</p>}
      {answers.flatMap((message) =>
        message.parts.map((part, at) => <Part key={`${message.id} ${at}`} part={part} parts={message.parts} decide={addToolApprovalResponse} />),
      )}
      <input value={text} onChange={(event) => setText(event.target.value)} />
      <button id="send" onClick={() => sendMessage({ text })}>
        Send
      </button>
      <button id="stop" onClick={abort}>
        Stop
      </button>
    </main>
  );
}

createRoot(document.getElementById("root")).render(<Chat />);
