"""Shared by the tests: the program, its API, a sandbox with an agent of a recipe in it."""

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RECIPES = HERE.parent.parent / "agents"
KEY = os.environ["MODEL_KEY"]
# The hosts that packages come from while a recipe is built, by the preset that allows them.
REGISTRIES = {"@pypi": ["pypi.org", "files.pythonhosted.org"], "@npm": ["registry.npmjs.org"]}


class Recipe:
    """A recipe: the vendor of its model, where its packages come from, and the image that it needs, if any."""

    def __init__(self, vendor, presets, image=None):
        self.vendor, self.presets, self.image = vendor, presets, image
        self.variable = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}[vendor]
        self.host = f"api.{vendor}.com"


KNOWN = {
    "python": Recipe("openai", []),
    "typescript": Recipe("anthropic", ["@npm"]),
    "mini-swe-agent": Recipe("openai", ["@pypi"]),
    "deepagents": Recipe("anthropic", ["@pypi"]),
    "deepagents-cli": Recipe("anthropic", ["@pypi"], image="docker.io/library/python:3.11"),
    "opencode": Recipe("anthropic", ["@npm"]),
    "opencode-serve": Recipe("anthropic", ["@npm"]),
    "claude-code": Recipe("anthropic", ["@npm"]),
    "codex": Recipe("openai", ["@npm"]),
}


def atoll(*arguments, check=True, **options):
    done = subprocess.run([os.environ["ATOLL_BIN"], *arguments], capture_output=True, text=True, timeout=1200, **options)
    assert not check or done.returncode == 0, f"atoll {' '.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def api(method, path, body=None, **headers):
    headers = {"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}", "Content-Type": "application/json", **headers}
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["ATOLL_URL"] + path, content, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        pytest.fail(f"{method} {path}: {error.code} {error.read().decode()}")
    return json.loads(text) if text else None


def way_out(presets):
    """Options that let a build reach package registries whose host names lead to mirrors at private addresses."""
    options = []
    for host in [host for preset in presets for host in REGISTRIES[preset]]:
        for address in {found[4][0] for found in socket.getaddrinfo(host, 443, socket.AF_INET)}:
            if not ipaddress.ip_address(address).is_global:
                options += ["--allow-cidr", f"{address}:443"]
    return options


_built = set()


def up(recipe, name, *options):
    """Runs `atoll agent up` with the broken project, and with the key in the environment variable of the recipe."""
    known = KNOWN[recipe]
    options = ["--workdir", str(HERE / "project"), "--secret", known.variable, "--name", name, *options]
    return atoll("agent", "up", recipe, *options, env={**os.environ, known.variable: KEY})


def build(name):
    """Builds a recipe once, on this machine's own programs or on an image that is made here: not every machine can
    fetch others.

    Without an image, `atoll agent up` builds it for a first agent. That agent may reach the hosts of the build, so
    this removes it, and no test uses it.
    """
    if name not in _built:
        known = KNOWN[name]
        if known.image:
            tar = subprocess.run([HERE / "python-image"], capture_output=True, text=True, check=True).stdout.strip()
            atoll("image", "import", tar, known.image)
            presets = [option for preset in known.presets for option in ("--allow", preset)]
            atoll("template", "build", str(RECIPES / name), "-t", name, *presets, *way_out(known.presets), "--timeout", "20m")
        else:
            up(name, f"first-{name}", "--from", "host", *way_out(known.presets))
            atoll("agent", "rm", f"first-{name}")
        _built.add(name)
    return name


@contextlib.contextmanager
def agent(recipe, name, *options):
    """An agent of a recipe, in a sandbox of the same name with the broken project in it; gives the name."""
    build(recipe)
    try:
        up(recipe, name, *options)
        yield name
    finally:
        atoll("agent", "rm", name, check=False)


def events(name, after, session="main"):
    """Returns the events after a message, until it is done or failed. Approves every request of the agent."""
    told = []
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        page = api("GET", f"/v1/agents/{name}/sessions/{session}/events?after={after}&wait_ms=30000")
        told += page["items"]
        for event in page["items"]:
            if event["kind"] == "approval":
                option = {"option": event["data"]["options"][0]["id"]}
                api("POST", f"/v1/agents/{name}/sessions/{session}/approvals/{event['data']['id']}", option)
        after = page["next_after"]
        if any(event["kind"] in ("done", "error") for event in told):
            return told
    pytest.fail(f"no end after ten minutes: {told}")


def say(name, text, session="main"):
    api("POST", f"/v1/agents/{name}/sessions", {"thread": session})
    number = api("POST", f"/v1/agents/{name}/sessions/{session}/messages", {"text": text})["number"]
    return events(name, number, session)


def words(told):
    return "".join(event["data"]["text"] for event in told if event["kind"] == "text")


def is_done(told):
    return [event["kind"] for event in told if event["kind"] in ("done", "error")] == ["done"]


def requests():
    """The requests that the model has received so far."""
    return [json.loads(line) for line in Path(os.environ["MODEL_LOG"]).read_text().splitlines()]
