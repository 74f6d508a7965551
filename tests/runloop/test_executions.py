"""Commands: asynchronous, synchronous, streams, standard input, exit."""

import os
import subprocess
import threading
import time
import uuid

import pytest
from conftest import VERSION, call, newer, raw, until
from runloop_api_client import BadRequestError, NotFoundError


def path(box, execution=None, rest=""):
    return f"/v1/devboxes/{box.id}" + (f"/executions/{execution}" if execution else "") + rest


def test_wait(box, client):
    began = client.devboxes.execute_async(box.id, command="sleep 0.5; echo done")
    assert began.status in ("queued", "running") and began.exit_status is None
    ended = client.devboxes.executions.await_completed(began.execution_id, devbox_id=box.id)
    assert (ended.status, ended.exit_status, ended.stdout) == ("completed", 0, "done\n")
    again = client.devboxes.executions.retrieve(began.execution_id, devbox_id=box.id)
    assert (again.status, again.stdout) == ("completed", "done\n")


def test_a_wait_that_is_too_short_is_no_error(box):
    began = call("POST", path(box, rest="/execute_async"), {"command": "sleep 60"})[1]["execution_id"]
    wait = path(box, began, "/wait_for_status")
    assert call("POST", wait, {"statuses": ["completed"], "timeout_seconds": 0.1})[0] == 408
    assert call("POST", wait, {"statuses": ["running"]})[1]["status"] == "running"
    assert call("POST", wait, {"statuses": []})[0] == 400
    killed = call("POST", path(box, began, "/kill"), {})[1]
    assert (killed["status"], killed["exit_status"]) == ("completed", 137)
    assert call("POST", path(box, began, "/kill"), {})[1]["exit_status"] == 137


def test_execute(box, client):
    ended = client.devboxes.execute(box.id, command="echo one; echo two", command_id=str(uuid.uuid4()), last_n="1")
    assert (ended.status, ended.stdout, ended.stdout_truncated) == ("completed", "two\n", True)
    id = str(uuid.uuid4())
    began = client.devboxes.execute(box.id, command="sleep 600", command_id=id, optimistic_timeout=0)
    assert began.status == "running"
    # The command id is another name of the execution.
    assert client.devboxes.executions.retrieve(id, devbox_id=box.id).execution_id == began.execution_id
    assert client.devboxes.executions.kill(id, devbox_id=box.id).status == "completed"


def test_execute_sync(box, client):
    ended = client.devboxes.execute_sync(box.id, command="echo out; echo err >&2; exit 7")
    assert (ended.stdout, ended.stderr, ended.exit_status) == ("out\n", "err\n", 7)


def test_a_command_that_is_sent_again_runs_once(box):
    headers = {"x-request-id": f"test-{uuid.uuid4()}"}
    send = lambda: call("POST", path(box, rest="/execute_sync"), {"command": "echo x >> once; wc -l < once"}, headers=headers)
    assert [send()[1]["stdout"].strip() for _ in range(3)] == ["1", "1", "1"]
    id = str(uuid.uuid4())
    twice = lambda: call("POST", path(box, rest="/execute"), {"command": "echo x >> twice; wc -l < twice", "command_id": id})
    assert [twice()[1]["stdout"].strip() for _ in range(2)] == ["1", "1"]


def test_much_output(box):
    result = box.cmd.exec("head -c 500000 /dev/zero | tr '\\0' a")
    assert len(result.stdout()) == 500_000
    # The client reads output that is too large for one answer from the stream.
    result = box.cmd.exec("seq 1 1000000; echo é")
    assert result.result.stdout_truncated
    lines = result.stdout().splitlines()
    assert len(lines) == 1_000_001 and lines[0] == "1" and lines[-1] == "é"
    assert result.stdout(num_lines=2) == "1000000\né"


def test_streams(box):
    out, err, both = [], [], []
    line = "for n in 1 2 3; do echo out $n; echo err $n >&2; sleep 0.1; done"
    result = box.cmd.exec(line, stdout=out.append, stderr=err.append, output=both.append)
    assert "".join(out) == "out 1\nout 2\nout 3\n" and "".join(err) == "err 1\nerr 2\nerr 3\n"
    assert sorted("".join(both).splitlines()) == sorted("".join(out + err).splitlines())
    assert result.exit_code == 0


def events(box, execution, offset=None):
    query = "" if offset is None else f"?offset={offset}"
    status, headers, body = raw("GET", path(box, execution, f"/stream_stdout_updates{query}"))
    assert status == 200 and headers["content-type"] == "text/event-stream"
    import json

    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]


def test_a_stream_goes_on_where_it_was_left(box):
    ran = call("POST", path(box, rest="/execute_async"), {"command": "printf 'aé€b'; sleep 0.3; printf cd; echo no >&2"})
    execution = ran[1]["execution_id"]
    all = events(box, execution)
    assert "".join(event["output"] for event in all) == "aé€bcd"
    first = all[0]
    rest = events(box, execution, first["offset"])
    assert first["output"] + "".join(event["output"] for event in rest) == "aé€bcd"
    assert events(box, execution, all[-1]["offset"]) == []
    assert raw("GET", path(box, execution, "/stream_stdout_updates?offset=x"))[0] == 400


def test_stdin(box, client):
    began = client.devboxes.execute_async(box.id, command="cat; echo end", attach_stdin=True)
    send = lambda **what: client.devboxes.executions.send_std_in(began.execution_id, devbox_id=box.id, **what)
    assert send(text="one\n").success and send(text="two\n").success
    assert send(signal="EOF").success
    ended = client.devboxes.executions.await_completed(began.execution_id, devbox_id=box.id)
    assert ended.stdout == "one\ntwo\nend\n"
    with pytest.raises(BadRequestError):
        send(text="late\n")


def test_stdin_that_is_sent_again_arrives_once(box):
    execution = call("POST", path(box, rest="/execute_async"), {"command": "cat", "attach_stdin": True})[1]["execution_id"]
    for headers in [{"x-request-id": str(uuid.uuid4())}] * 3:
        assert call("POST", path(box, execution, "/send_std_in"), {"text": "x\n"}, headers=headers)[1]["success"]
    call("POST", path(box, execution, "/send_std_in"), {"signal": "EOF"})
    ended = call("POST", path(box, execution, "/wait_for_status"), {"statuses": ["completed"]})[1]
    assert ended["stdout"] == "x\n"


def test_no_stdin_and_interrupts(box, client):
    # A shell goes on after an interrupt that comes in the moment in which a program ends by itself, as `cat` does here.
    quiet = client.devboxes.execute_async(box.id, command="cat; echo ended; exec sleep 600")
    until(lambda: client.devboxes.executions.retrieve(quiet.execution_id, devbox_id=box.id).stdout == "ended\n")
    with pytest.raises(BadRequestError, match="attach_stdin"):
        client.devboxes.executions.send_std_in(quiet.execution_id, devbox_id=box.id, text="x")
    client.devboxes.executions.send_std_in(quiet.execution_id, devbox_id=box.id, signal="INTERRUPT")
    ended = client.devboxes.executions.await_completed(quiet.execution_id, devbox_id=box.id)
    assert ended.exit_status == 130


@newer
def test_handles(box):
    execution = box.cmd.exec_async("read line; echo got $line", attach_stdin=True)
    assert execution.get_state().status in ("queued", "running")
    execution.send_std_in("it\n")
    execution.close_std_in()
    assert execution.result().stdout() == "got it\n"
    endless = box.cmd.exec_async("sleep 600")
    endless.kill()
    assert endless.result().exit_code == 137


def test_many_at_once(box):
    texts = {}
    run = lambda n: texts.update({n: box.cmd.exec(f"sleep 0.2; echo {n}").stdout()})
    threads = [threading.Thread(target=run, args=(n,)) for n in range(10)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert texts == {n: f"{n}\n" for n in range(10)}


def test_errors(box, client):
    for execution in ["exec_none", "exec_" + "0" * 20, str(uuid.uuid4())]:
        with pytest.raises(NotFoundError):
            client.devboxes.executions.retrieve(execution, devbox_id=box.id)
    with pytest.raises(BadRequestError):
        client.devboxes.execute_async(box.id, command="")
    assert box.cmd.exec("no-such-command").exit_code == 127
    assert call("POST", path(box, rest="/execute_sync"), {"command": "a\0b"})[0] == 400


def test_another_sandboxes_execution_is_not_found(box, own, client):
    began = client.devboxes.execute_async(own.id, command="echo secret")
    with pytest.raises(NotFoundError):
        client.devboxes.executions.retrieve(began.execution_id, devbox_id=box.id)
    assert raw("GET", path(box, began.execution_id, "/stream_stdout_updates"))[0] == 404
