"""An agent of your own: messages come in as lines of JSON, what it says goes out as such. OpenAI's API, streamed; one tool."""

import json
import os
import subprocess
import sys
import urllib.request

MODEL = os.environ.get("MODEL", "gpt-5.2")
URL = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1") + "/chat/completions"
BASH = {
    "name": "bash",
    "description": "Runs a command of the shell.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


def say(**event):
    print(json.dumps(event), flush=True)


def ask(messages):
    """Sends the conversation to the model; tells its words as they come; gives its message."""
    body = {"model": MODEL, "messages": messages, "tools": [{"type": "function", "function": BASH}], "stream": True}
    # The value of the variable is a placeholder: the key is put in on the way to the model.
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(URL, json.dumps({**body, "stream_options": {"include_usage": True}}).encode(), headers)
    message = {"role": "assistant", "content": "", "tool_calls": []}
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                delta = choice["delta"]
                if delta.get("content"):
                    message["content"] += delta["content"]
                    say(type="text", text=delta["content"])
                for piece in delta.get("tool_calls") or []:
                    while len(message["tool_calls"]) <= piece["index"]:
                        message["tool_calls"].append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
                    call = message["tool_calls"][piece["index"]]
                    call["id"] += piece.get("id") or ""
                    for field, text in piece.get("function", {}).items():
                        call["function"][field] += text or ""
    return message if message["tool_calls"] else {"role": "assistant", "content": message["content"]}


def work(messages):
    while True:
        messages.append(ask(messages))
        for call in messages[-1].get("tool_calls", []):
            command = json.loads(call["function"]["arguments"])["command"]
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            said = f"{done.stdout}{done.stderr}\n(code {done.returncode})"[-20000:]
            say(type="tool", name="bash", title=command, status="completed", output=said[-4000:])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
        if "tool_calls" not in messages[-1] and messages[-1]["role"] == "assistant":
            return


conversation = [{"role": "system", "content": "You mend programs in the directory you are in. Be brief."}]
for line in sys.stdin:
    told = json.loads(line)
    if told["type"] == "message":
        conversation.append({"role": "user", "content": told["text"]})
        try:
            work(conversation)
            say(type="done")
        except OSError as error:
            say(type="error", code="model", text=getattr(error, "read", lambda: b"")().decode()[:2000] or str(error))
