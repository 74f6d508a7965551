"""Each recipe: it is built, and its agent mends a project with a model that it reaches only through the gateway, without its key."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import search
from conftest import HERE, KEY, KNOWN, RECIPES, agent, atoll, build, is_done, requests, say, words
from script import ANSWER, PLAN

WANTED = os.environ["RECIPES"].split()
TASK = "The tests of this project fail. Mend it, and run them."


def passes(name):
    atoll("exec", "--workdir", "/work/project", name, "--", "python3", "-m", "unittest")


@pytest.mark.parametrize("recipe", WANTED)
def test_it_mends_a_project_without_the_key(recipe, tmp_path):
    build(recipe)
    marker = tmp_path / "marker"
    marker.touch()
    with agent(recipe, f"mends-{recipe}") as name:
        before = len(requests())
        told = say(name, TASK)
        assert is_done(told), told
        assert ANSWER.split(":")[0] in words(told), told
        assert any(event["kind"] == "tool" for event in told), told
        passes(name)
        assert "a + b" in atoll("exec", name, "--", "cat", "/work/project/calc.py")
        # The gateway, which has the key, made the requests to the model.
        asked = requests()[before:]
        assert len(asked) > len(PLAN) and all(one["status"] == 200 for one in asked), asked
        assert all(one["host"] == KNOWN[recipe].host for one in asked)

        sandbox = json.loads(atoll("inspect", name))["id"]
        placeholder = atoll("exec", name, "--", "printenv", KNOWN[recipe].variable).strip().encode()
        running = list(search.processes(sandbox))
        texts = [KEY.encode(), placeholder]
        found = set().union(*(search.in_memory(pid, texts) for pid in running))
        assert found == {placeholder}, "the placeholder, and only that, is in the memory of the agent"
        found = set().union(*(search.in_environment(pid, texts) for pid in running))
        assert found == {placeholder}
        assert search.on_disk(running[0], "a + b", marker), "the search finds what is there"
        assert search.on_disk(running[0], KEY, marker) == []
        assert search.in_data(KEY) == [], "neither logs nor events nor the database have it in clear"
        # The conversation goes on.
        told = say(name, "What was it?")
        assert is_done(told) and ANSWER.split(":")[0] in words(told), told


def test_one_command_makes_all_of_it(tmp_path):
    """Makes an agent from a recipe and a project. Existing parts are not made again, and a failure leaves nothing."""
    build("python")
    atoll("secret", "rm", "OPENAI_API_KEY", check=False)
    environment = {**os.environ, "OPENAI_API_KEY": KEY}
    up = ["agent", "up", "python", "--workdir", str(HERE / "project"), "--secret", "OPENAI_API_KEY", "--name"]
    try:
        assert atoll(*up, "fix-tests", env=environment).strip() == "fix-tests"
        told = say("fix-tests", TASK)
        assert is_done(told), told
        passes("fix-tests")
        assert "a + b" not in (HERE / "project" / "calc.py").read_text(), "the sandbox has a copy"
        again = subprocess.run([os.environ["ATOLL_BIN"], *up, "fix-tests"], capture_output=True, text=True)
        assert again.returncode != 0 and "atoll agent attach fix-tests" in again.stderr, again.stderr
        # The server has the key now. A second agent uses it, and the template.
        atoll(*up, "second")
        alone = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_") or name == "ATOLL_BIN"}
        assert "opencode" in atoll("agent", "recipes", env=alone), "without a server, too"
        # The program reports errors before it makes anything.
        for wrong in (["agent", "up", "nothing", "--name", "third"], [*up[:3], "--workdir", str(tmp_path / "none"), "--name", "third"]):
            said = subprocess.run([os.environ["ATOLL_BIN"], *wrong], capture_output=True, text=True)
            assert said.returncode == 2, said.stderr
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "Dockerfile").write_text("FROM host\n")
        (tmp_path / "broken" / "agent.json").write_text('{"argv": ["/bin/true"], "profile": "nobody"}')
        said = subprocess.run([os.environ["ATOLL_BIN"], "agent", "up", f"{tmp_path}/broken", "--name", "third"], capture_output=True, text=True)
        assert said.returncode != 0 and "nobody" in said.stderr, said.stderr
        names = [one.get("name") for one in json.loads(atoll("--json", "ls"))["items"]]
        assert "third" not in names and {"fix-tests", "second"} <= set(names), names
    finally:
        for name in ("fix-tests", "second"):
            atoll("agent", "rm", name, check=False)


CLIENTS = {
    "ten lines": [sys.executable, str(RECIPES / "talk.py")],
    "python": [sys.executable, str(RECIPES / "client.py")],
    # The file names no types, so Node versions that know no TypeScript run it as JavaScript.
    "typescript": ["node", "--input-type=module", "--eval", (RECIPES / "client.ts").read_text(), "--", "client.ts"],
}


# `deepagents-cli`, whose Dockerfile has two lines, with one client; all clients with the first wanted recipe.
TALKS = [(client, WANTED[0]) for client in CLIENTS] + [("ten lines", one) for one in WANTED[1:] if one == "deepagents-cli"]


@pytest.mark.parametrize(("client", "recipe"), TALKS)
def test_a_client_of_a_few_lines_reconnects_in_the_middle(client, recipe):
    """The client's connection is cut after some events; the client goes on where it was, and misses no event."""
    from cutter import Cutter

    with agent(recipe, f"talks-{client.split()[0]}-{recipe}") as name, Cutter(os.environ["ATOLL_URL"]) as cutter:
        done = subprocess.run([*CLIENTS[client], name, TASK], env={**os.environ, "ATOLL_URL": cutter.url}, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        numbers = [int(line.split()[0]) for line in lines]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "none is missing, none told twice"
        assert cutter.cuts >= 2, "it was cut"
        assert [line.split()[1] for line in lines].count("done") == 1
        passes(name)
