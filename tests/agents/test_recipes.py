"""Each recipe: it is built, and its agent mends a project with a model that it reaches only through the gateway, without its key."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import search
from conftest import KEY, KNOWN, RECIPES, agent, atoll, build, is_done, requests, say, words
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
        # The model was asked by whoever had the key: the gateway.
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


CLIENTS = {
    "python": [sys.executable, str(RECIPES / "client.py")],
    # What is TypeScript to newer versions of Node is JavaScript to older ones: it names no types.
    "typescript": ["node", "--input-type=module", "--eval", (RECIPES / "client.ts").read_text(), "--", "client.ts"],
}


@pytest.mark.parametrize("language", CLIENTS)
def test_a_client_of_a_few_lines_reconnects_in_the_middle(language):
    """The client's connection is cut after some events; it goes on where it was, and misses nothing."""
    from cutter import Cutter

    recipe = WANTED[0]
    with agent(recipe, f"talks-{language}") as name, Cutter(os.environ["ATOLL_URL"]) as cutter:
        client = [*CLIENTS[language], name, TASK]
        done = subprocess.run(client, env={**os.environ, "ATOLL_URL": cutter.url}, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        numbers = [int(line.split()[0]) for line in lines]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "none is missing, none told twice"
        assert cutter.cuts >= 2, "it was cut"
        assert [line.split()[1] for line in lines].count("done") == 1
        passes(name)
