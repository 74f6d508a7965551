"""The same interpreter through Atoll's own API: contexts and cells with durable events, by command line and HTTP."""

import json
import os
import re
import subprocess
import urllib.request

import pytest


def atoll(*args, code=0, text=None):
    done = subprocess.run([os.environ["ATOLL_BIN"], *args], input=text, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done
    return done.stdout


def api(method, path, body=None):
    request = urllib.request.Request(
        os.environ["ATOLL_URL"] + "/v1/sandboxes/" + path,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read() or b"null")


def run(box, context, code, **more):
    """Runs a cell; returns its final state and its events."""
    done = api("POST", f"{box}/contexts/{context}/cells", {"code": code, "wait_ms": 60000, **more})
    events = done["events"] or []
    after = 0
    while not events or events[-1]["kind"] != "end":
        page = api("GET", f"{box}/contexts/{context}/cells/{done['cell']['id']}/events?wait_ms=60000&after={after}")
        events, after = events + page["items"], page["next_after"]
    return events[-1]["data"], events


def data(events):
    return [event["data"]["data"] for event in events if event["kind"] == "result"]


@pytest.fixture(scope="module")
def box():
    id = json.loads(atoll("create", "--template", "code-interpreter-v1", "--json"))["id"]
    yield id
    atoll("rm", id)


def test_python_remembers_and_shows(box, tmp_path):
    assert atoll("code", box, "x = 20") == ""
    assert atoll("code", box, "x + 1") == "21\n"
    plot = "import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2]); plt.title('t'); plt.show()"
    atoll("code", "--save", str(tmp_path), box, "-", text=plot)
    assert (tmp_path / "1.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "1.chart.json").read_text())["type"] == "bar"
    end, events = run(box, "python", "import pandas\nprint(x)\npandas.DataFrame({'a': [1, 2]})")
    assert end["state"] == "done" and end["execution_count"] > 3
    assert [event["kind"] for event in events] == ["started", "stdout", "result", "end"]
    (table,) = data(events)
    assert table["application/vnd.atoll.table+json"] == {"a": [1, 2]} and "<table" in table["text/html"]
    rich = "from IPython.display import *\n" + "\n".join(
        f"display({kind}({value!r}))" for kind, value in
        [("Markdown", "*m*"), ("Latex", "$l$"), ("SVG", "<svg xmlns='http://www.w3.org/2000/svg'/>"), ("JSON", {"a": 1})]
    )
    kinds = [set(one) for one in data(run(box, "python", rich)[1])]
    for kind, found in zip(["text/markdown", "text/latex", "image/svg+xml", "application/json"], kinds):
        assert kind in found, kinds
    end, events = run(box, "python", "1/0")
    assert end["state"] == "error" and events[-2]["data"]["name"] == "ZeroDivisionError"
    # The traceback has colour codes.
    assert "1/0" in re.sub("\x1b\\[[0-9;]*m", "", events[-2]["data"]["traceback"])


def test_interruptions_leave_what_is_remembered(box):
    api("POST", f"{box}/contexts", {"name": "stopped"})
    run(box, "stopped", "kept = 5")
    end, events = run(box, "stopped", "print('here')\nwhile True: pass", timeout_ms=1500)
    assert end["state"] == "timed_out" and [event["kind"] for event in events][-2] == "error"
    assert events[-2]["data"]["name"] == "KeyboardInterrupt" and events[-2]["data"]["traceback"]
    cell = api("POST", f"{box}/contexts/stopped/cells", {"code": "import time; time.sleep(1000)"})["cell"]["id"]
    assert atoll("exec", box, "--", "sh", "-c", "sleep 1; echo up") == "up\n"
    api("POST", f"{box}/contexts/stopped/interrupt")
    assert api("GET", f"{box}/contexts/stopped/cells/{cell}?wait_ms=60000")["state"] == "interrupted"
    assert run(box, "stopped", "print(kept)")[1][1]["data"]["text"] == "5\n"
    api("POST", f"{box}/contexts/stopped/restart")
    assert run(box, "stopped", "kept")[0]["state"] == "error"
    # If a kernel exits, its cell fails; the next cell gets a new kernel.
    end, _ = run(box, "stopped", "import os; os._exit(3)")
    assert end["state"] == "failed" and end["reason"] == "interpreter_failed"
    assert run(box, "stopped", "1")[0]["state"] == "done"


def test_other_languages(box):
    assert atoll("code", "--language", "bash", box, "y=7; echo $((y + 1))").strip() == "8"
    assert atoll("code", "--language", "bash", box, "echo $y").strip() == "7"
    assert atoll("code", "--language", "javascript", box, "let z = 20; z + 1").strip() == "21"
    assert "python" in atoll("code", "contexts", box) and "javascript" in atoll("code", "contexts", box)
    refused = subprocess.run([os.environ["ATOLL_BIN"], "code", "--language", "cobol", box, "1"], capture_output=True, text=True)
    assert refused.returncode == 125 and "cobol" in refused.stderr, refused


def test_a_pause_that_keeps_only_the_disk_begins_again(box):
    api("POST", f"{box}/contexts", {"name": "slept", "cwd": "/tmp"})
    run(box, "slept", "gone = 1")
    atoll("pause", "--mode", "filesystem", box)
    end, events = run(box, "slept", "import os; print(os.getcwd(), 'gone' in globals())")
    assert events[0]["kind"] == "reset" and end["state"] == "done", events
    assert next(event for event in events if event["kind"] == "stdout")["data"]["text"].endswith("/tmp False\n")


def test_the_interpreter_comes_back_whatever_ends_it(box):
    """The template starts the interpreter as a service: if a command kills its processes, the service restarts it."""
    service = f"{box}/services/start"
    before = api("GET", f"{service}?wait_ms=60000")
    assert before["state"] == "running" and before["restart"] == "always"
    subprocess.run([os.environ["ATOLL_BIN"], "exec", box, "--", "sh", "-c", "pkill -9 -f [c]ode_interpreter"], timeout=60, check=True)
    end, events = run(box, "python", "'x' in globals()", timeout_ms=120_000)
    assert end["state"] == "done" and events[0]["kind"] == "reset", (end, events)
    after = api("GET", f"{service}?wait_ms=60000")
    assert after["state"] == "running" and after["run"] > before["run"]
