"""Commands: over the WebSocket, over events, in one request."""

import json
import os
import socket
import threading
import time
import urllib.parse
import urllib.request

import pytest
from conftest import VERSION, since
from langsmith.sandbox import (
    CommandTimeoutError,
    SandboxClientError,
    SandboxOperationError,
)


def test_streams_and_codes(box):
    assert box.run("true").exit_code == 0
    result = box.run("printf out; printf err >&2; exit 7")
    assert (result.stdout, result.stderr, result.exit_code) == ("out", "err", 7)
    assert box.run("kill -9 $$").exit_code == 137
    assert box.run("no-such-command").exit_code == 127


def test_environment_and_directory(box):
    assert box.run('echo "$A $PWD"', env={"A": "x y"}, cwd="/tmp").stdout == "x y /tmp\n"


@since(0, 13)
def test_run_config(box):
    result = box.run('echo "$A $PWD"', run_config={"user": "root", "work_dir": "/tmp", "env_vars": {"A": "1"}})
    assert result.stdout == "1 /tmp\n"


def test_callbacks_get_output_as_it_comes(box):
    seen = []
    result = box.run(
        "for i in 1 2 3; do echo $i; sleep 0.1; done; echo end >&2",
        on_stdout=lambda text: seen.append(("out", text)),
        on_stderr=lambda text: seen.append(("err", text)),
    )
    assert result.stdout == "1\n2\n3\n"
    assert "".join(text for stream, text in seen if stream == "out") == "1\n2\n3\n"
    assert ("err", "end\n") in seen and len(seen) >= 4


def test_timeout(box):
    with pytest.raises(CommandTimeoutError):
        box.run("sleep 30", timeout=1)


def test_main_process_ends_it_not_its_children(box):
    start = time.monotonic()
    result = box.run("sleep 100 & echo done")
    assert (result.stdout, result.exit_code) == ("done\n", 0)
    assert time.monotonic() - start < 60
    box.run("pkill sleep || true")


def test_stdin(box):
    kwargs = {"close_input": False} if VERSION >= (0, 13) else {}
    handle = box.run("while read line; do echo got $line; [ $line = end ] && exit 5; done", wait=False, **kwargs)
    for line in ["one", "two", "end"]:
        handle.send_input(line + "\n")
    result = handle.result
    assert (result.stdout, result.exit_code) == ("got one\ngot two\ngot end\n", 5)


@since(0, 13)
def test_stdin_is_closed_unless_asked_otherwise(box):
    assert box.run("cat; echo end", timeout=20).stdout == "end\n"
    handle = box.run("cat; echo end", wait=False, close_input=False)
    handle.send_input("text")
    handle.close_input()
    assert handle.result.stdout == "textend\n"


def test_kill_ends_the_whole_tree(box):
    handle = box.run("sleep 1234 & sleep 1234; echo never", wait=False)
    for _ in handle_started(handle):
        break
    handle.kill()
    deadline = time.monotonic() + 30
    while box.run("pgrep -f '[s]leep 1234'").exit_code == 0:
        assert time.monotonic() < deadline, "sleep goes on"
        time.sleep(0.1)


def handle_started(handle):
    assert handle.command_id and handle.pid
    yield


def test_terminal(box):
    result = box.run("tty; stty size; printf err >&2", pty=True)
    assert "/dev/pts/" in result.stdout and "24 80" in result.stdout and "err" in result.stdout
    assert result.stderr == ""


def test_reattach_by_id(box):
    handle = box.run("for i in $(seq 20); do echo line $i; sleep 0.05; done", wait=False)
    first = next(iter(handle))
    again = box.reconnect(handle.command_id, stdout_offset=handle.last_stdout_offset)
    rest = "".join(chunk.data for chunk in again if chunk.stream == "stdout")
    assert first.data + rest == "".join(f"line {i}\n" for i in range(1, 21))
    # After its end the output can still be read from the beginning.
    assert box.reconnect(handle.command_id).result.stdout.startswith("line 1\n")


@since(0, 13)
def test_input_is_closed_right_after_reattaching(box):
    handle = box.run("cat; echo over", wait=False, close_input=False)
    handle.send_input("hi\n")
    again = box.reconnect(handle.command_id)
    again.close_input()
    assert again.result.stdout == "hi\nover\n"


def test_reattach_to_what_is_not_there(box):
    with pytest.raises(SandboxOperationError):
        box.reconnect("00000000000000000000000000000000").result


def test_the_same_id_is_the_same_command(box):
    """A client that does not know whether its first message arrived sends it again, with the same id."""
    from websockets.sync.client import connect

    url = box.dataplane_url.replace("http", "ws", 1) + "/execute/ws"
    headers = {"X-Api-Key": os.environ["LANGSMITH_API_KEY"]}
    request = json.dumps(
        {"type": "execute", "command": "echo run >> /tmp/runs; cat /tmp/runs", "command_id": "same", "close_stdin": True}
    )
    for _ in range(3):
        with connect(url, additional_headers=headers) as socket:
            socket.send(request)
            frames = [json.loads(message) for message in socket]
        assert frames[0]["type"] == "started" and frames[0]["command_id"] == "same"
        assert frames[1:] == [{"type": "stdout", "data": "run\n", "offset": 0}, {"type": "exit", "exit_code": 0}]
        assert socket.protocol.close_rcvd.code == 1000


def test_bytes_that_are_no_text(box):
    result = box.run(r"printf 'a\xff\xc3'; sleep 0.1; printf '\xa4b\xe2\x82'")
    assert result.stdout == "a\ufffdäb\ufffd"
    handle = box.run(r"for i in $(seq 50); do printf '\xff\xc3'; sleep 0.01; printf '\xa4x'; done", wait=False)
    text, chunks = "", iter(handle)
    text += next(chunks).data
    for _ in range(3):
        again = box.reconnect(handle.command_id, stdout_offset=len(text.encode()))
        text += next(iter(again)).data
    text += box.reconnect(handle.command_id, stdout_offset=len(text.encode())).result.stdout
    assert text == "\ufffdäx" * 50


def test_much_output_is_complete(box):
    result = box.run("seq 1 400000", timeout=120)
    assert result.stdout == "".join(f"{i}\n" for i in range(1, 400_001))


def test_control_characters_and_quotes(box):
    result = box.run("head -c 200000 /dev/zero", timeout=60)
    assert result.stdout == "\0" * 200_000
    assert box.run("""printf '"\\\\\\t\\n%.0s' $(seq 3)""").stdout == '"\\\t\n' * 3


def test_a_shell_that_is_not_there(box):
    assert box.run("echo $0", shell="/bin/sh").stdout == "/bin/sh\n"
    assert box.run("echo x", shell="/no/shell").exit_code == 127


def test_what_cannot_start_says_why(box):
    with pytest.raises(SandboxOperationError, match="/no/where"):
        box.run("true", cwd="/no/where")


def post(box, path, body):
    request = urllib.request.Request(
        box.dataplane_url + path,
        method="POST",
        data=json.dumps(body).encode(),
        headers={"X-Api-Key": os.environ["LANGSMITH_API_KEY"], "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_in_one_request(box):
    status, text = post(box, "/execute", {"command": "echo out; echo err >&2; exit 4", "timeout": 10, "shell": "/bin/sh"})
    assert (status, json.loads(text)) == (200, {"stdout": "out\n", "stderr": "err\n", "exit_code": 4})
    status, text = post(box, "/execute", {"command": ["printf", "%s-", "a", "b"]})
    assert (status, json.loads(text)["stdout"]) == (200, "a-b-")
    status, text = post(box, "/execute", {"command": "sleep 30", "timeout": 1})
    assert status == 408 and json.loads(text)["detail"]["error"] == "CommandError"
    assert post(box, "/execute", {"command": "true", "cwd": "/", "run_config": {}})[0] == 400


@pytest.fixture
def events(monkeypatch):
    monkeypatch.setenv("LANGSMITH_EXPERIMENTAL_FEATURES", "sandbox_sse_exec")


@since(0, 13)
def test_events(box, events):
    result = box.run("printf out; printf err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out", "err", 3)
    with pytest.raises(CommandTimeoutError):
        box.run("sleep 30", timeout=1)
    # The output is larger than one answer: the client asks again, from the position that it has.
    result = box.run("seq 1 800000", timeout=120)
    assert result.stdout == "".join(f"{i}\n" for i in range(1, 800_001))
    result = box.run("""python3 -c "print('é' * 600000, end='')" """)
    assert result.stdout == "é" * 600_000


@since(0, 13)
def test_events_of_what_is_not_there(box):
    assert post(box, "/execute/stream/resume", {"command_id": "nothing"})[0] == 404


def test_a_client_that_goes_away_ends_what_asked_for_it(box):
    handle = box.run("sleep 4321", wait=False, kill_on_disconnect=True)
    assert handle.pid
    handle._stream.close() if hasattr(handle._stream, "close") else None
    del handle
    deadline = time.monotonic() + 30
    while box.run("pgrep -f '[s]leep 4321'").exit_code == 0:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.1)


def test_nobody_attached_for_too_long(box):
    from websockets.sync.client import connect

    url = box.dataplane_url.replace("http", "ws", 1) + "/execute/ws"
    headers = {"X-Api-Key": os.environ["LANGSMITH_API_KEY"]}
    request = {"type": "execute", "command": "sleep 5678", "command_id": "left", "idle_timeout_seconds": 1}
    with connect(url, additional_headers=headers) as socket:
        socket.send(json.dumps(request))
        assert json.loads(socket.recv())["type"] == "started"
        time.sleep(1.5)  # while a client is attached, the idle timeout does not apply
        assert box.run("pgrep -f '[s]leep 5678'").exit_code == 0
    deadline = time.monotonic() + 30
    while box.run("pgrep -f '[s]leep 5678'").exit_code == 0:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.1)
    assert box.reconnect("left").result.exit_code == 137


def test_many_at_once(box):
    results = {}

    def run(n):
        results[n] = box.run(f"echo {n}").stdout

    threads = [threading.Thread(target=run, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: f"{n}\n" for n in range(20)}


def test_a_sandbox_that_is_gone(client):
    box = client.create_sandbox()
    client.delete_sandbox(box.name)
    # With a 404 in the handshake the clients say that the server does not know WebSockets. Those before 0.12 ask once more
    # over HTTP, and tell what they read there.
    with pytest.raises(SandboxClientError, match=f"HTTP 410|^no sandbox '{box.id}'$"):
        box.run("true")
    # What a client reads names what the client knows: no id that only the server has.
    for path, body in [("/execute", {"command": "true"}), ("/glob", {"pattern": "*", "path": "/"})]:
        status, text = post(box, path, body)
        error = json.loads(text)["detail"]
        assert (status, error["error"]) == (410, "SandboxNotFound")
        assert error["message"] == f"no sandbox '{box.id}'"


def test_a_terminal_in_a_browser(box):
    """The request of Open SWE's terminal: a login shell that lives as long as a client is connected."""
    handle = box.run("exec ${SHELL:-/bin/bash} -l", wait=False, pty=True, timeout=0, idle_timeout=-1, kill_on_disconnect=True)
    handle.send_input("echo $((20 + 22)); exit 5\n")
    assert handle.result.exit_code == 5 and "42" in handle.result.stdout


@pytest.mark.parametrize("first", [True, False])
def test_a_message_that_is_too_large(box, first):
    """A client that sends all of its message before it reads anything is told why it was refused."""
    address = urllib.parse.urlsplit(box.dataplane_url)
    head = f"GET {address.path}/execute/ws HTTP/1.1\r\nHost: {address.netloc}\r\nX-Api-Key: {os.environ['LANGSMITH_API_KEY']}\r\n"
    head += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

    def frame(payload):
        # A text message whose length has eight bytes, and whose mask is zero.
        return b"\x81\xff" + len(payload).to_bytes(8, "big") + bytes(4) + payload

    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(head.encode())
        if not first:
            connection.sendall(frame(json.dumps({"type": "execute", "command": "cat > /dev/null"}).encode()))
        connection.sendall(frame(b"x" * (9 << 20)))
        told = b""
        while piece := connection.recv(65536):
            told += piece
    assert told.startswith(b"HTTP/1.1 101 ")
    reason = b"a message is larger than 8 MiB; send input in smaller pieces"
    assert told.endswith(b"\x88" + bytes([2 + len(reason)]) + (1009).to_bytes(2, "big") + reason)


@since(0, 12)
def test_a_console_that_changes_its_size(box):
    """The requests of the command-line client: no command, and frames that the SDKs do not send."""
    from websockets.sync.client import connect

    url = box.dataplane_url.replace("http://", "ws://", 1) + "/execute/ws"
    with connect(url, additional_headers={"X-Api-Key": os.environ["LANGSMITH_API_KEY"]}) as socket:
        first = {"type": "execute", "pty": True, "timeout_seconds": 0, "idle_timeout_seconds": -1}
        socket.send(json.dumps(first))
        started = json.loads(socket.recv(timeout=30))
        assert started["type"] == "started" and started["command_id"] and started["pid"]
        socket.send(json.dumps({"type": "resize", "cols": 120, "rows": 40}))
        socket.send(json.dumps({"type": "input", "data": "stty size; exit 3\n"}))
        frames = [json.loads(frame) for frame in socket]
    assert "40 120" in "".join(frame.get("data", "") for frame in frames)
    assert frames[-1] == {"type": "exit", "exit_code": 3} and {frame["type"] for frame in frames} == {"stdout", "exit"}
    assert socket.close_code == 1000
    with connect(url, additional_headers={"X-Api-Key": os.environ["LANGSMITH_API_KEY"]}) as socket:
        socket.send(json.dumps({"type": "execute", "command": "true", "ssh_agent_forward": True}))
        answer = json.loads(socket.recv(timeout=30))
        assert answer["type"] == "error" and "ssh_agent_forward" in answer["error"]
