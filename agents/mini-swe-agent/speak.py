"""Lets mini-swe-agent speak JSON lines: each message is a task, what it does is told as it does it."""

import json
import logging
import os
import sys

# Its own words on standard output would be between ours.
out, sys.stdout = sys.stdout, sys.stderr
logging.disable(logging.CRITICAL)

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel


def say(**event):
    print(json.dumps(event), file=out, flush=True)


class Telling(DefaultAgent):
    def add_messages(self, *messages):
        for message in messages:
            if message.get("role") == "assistant" and message.get("content"):
                say(type="text", text=message["content"] + "\n")
            for action in message.get("extra", {}).get("actions", []):
                say(type="tool", name="bash", title=action.get("command", ""), status="in_progress")
            if message.get("role") == "tool":
                say(type="tool", name="bash", status="completed", output=str(message.get("content", ""))[-4000:])
        return super().add_messages(*messages)


config = get_config_from_spec("mini.yaml")
settings = {key: value for key, value in config["agent"].items() if key != "mode"}
model = LitellmModel(model_name=os.environ.get("MODEL", "openai/gpt-5.2"), **config["model"])
for line in sys.stdin:
    told = json.loads(line)
    if told["type"] != "message":
        continue
    try:
        ended = Telling(model, LocalEnvironment(**config["environment"]), **settings).run(told["text"])
        say(type="text", text=ended.get("submission", ""))
        say(type="done", reason=ended.get("exit_status", "Submitted"))
    except Exception as error:
        say(type="error", code="model", text=f"{type(error).__name__}: {error}"[:2000])
