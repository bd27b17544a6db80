"""A folder of agents whose run delegates, calls a tool and sends its spans to a collector; and the spans that belong to it."""

from pathlib import Path

CONFIGURATION = """
models:
  providers:
    - { id: leads, kind: script, script: lead.yaml, models: [one] }
    - { id: helps, kind: script, script: helper.yaml, models: [two] }
programs:
  - name: look
    description: Looks.
    command: [echo, found]
    effect: read_only
traces:
  log_data: true
  sinks: [{ kind: otlp, url: "http://127.0.0.1:PORT/v1/traces" }]
"""

FILES = {
    "agents/lead.yaml": "subagents: [helper]\nconfig: { provider: leads }\n",
    "agents/helper.yaml": "mode: subagent\nas_tool: { name: help }\ntools: [look]\nconfig: { provider: helps }\n",
    "lead.yaml": "answers: [{ calls: [{ name: help, arguments: { input: Look. } }],"
    " usage: { input_tokens: 7, output_tokens: 3 } }, { text: Found. }]\n",
    "helper.yaml": "answers: [{ calls: [{ name: look }] }, { text: There it is. }]\n",
}

# Each span with the one that it belongs to.
EXPECTED = {
    ("invoke_agent lead", ""),
    ("chat one", "invoke_agent lead"),
    ("execute_tool help", "invoke_agent lead"),
    ("invoke_agent helper", "execute_tool help"),
    ("chat two", "invoke_agent helper"),
    ("execute_tool look", "invoke_agent helper"),
}

SPANS = 8


def write(folder: Path, port: int) -> None:
    """Writes the folder of agents below `folder`; spans go to that port of this machine."""
    agents = folder / ".abide"
    (agents / "agents").mkdir(parents=True)
    (agents / "abide.yaml").write_text(CONFIGURATION.replace("PORT", str(port)))
    for path, text in FILES.items():
        (agents / path).write_text(text)
