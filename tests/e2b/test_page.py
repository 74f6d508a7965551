"""Claims of docs/e2b.md that no other test looks at, with the newest SDK."""

import base64
import hashlib
import os
import socket
import urllib.parse
import uuid

import pytest
from conftest import call, data_plane, raw, until
from e2b import BuildException, Sandbox, SandboxException, SandboxQuery, Template, wait_for_port


def native(method, path):
    key = {"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}"}
    return call(method, path, root=os.environ["ATOLL_URL"], headers=key)


def name():
    return f"e2b-test-{uuid.uuid4().hex[:8]}"


def test_lists_by_template(own):
    def listed(template):
        return own.sandbox_id in [item.sandbox_id for item in Sandbox.list(query=SandboxQuery(template=template)).next_items()]

    assert listed("base") and listed(own.get_info().template_id) and not listed("another")


def test_a_resume_without_memory(own):
    own.files.write("kept", "kept")
    running = own.commands.run("sleep 1000", background=True)
    own.pause()
    own.connect(on_resume="reboot")
    assert own.files.read("kept") == "kept"
    assert running.pid not in [process.pid for process in own.commands.list()]


def test_what_a_snapshot_is_good_for(own):
    own.files.write("state", "kept")
    own.commands.run("sleep 1000", background=True)
    # In containers it has the files, whatever is asked for.
    snapshot = own.create_snapshot(name(), mode="full").snapshot_id
    with Sandbox.create(snapshot, timeout=60) as child:
        assert child.files.read("state") == "kept" and child.commands.list() == []
    with pytest.raises(BuildException, match="is a snapshot"):
        Template.build(Template().from_template(snapshot).run_cmd("true"), name())
    assert Sandbox.delete_snapshot(snapshot)


def test_forks_begin_with_the_files(own):
    own.files.write("state", "parent")
    own.commands.run("sleep 1000", background=True)
    for child in own.fork(count=2):
        assert child.files.read("state") == "parent" and child.commands.list() == []
        child.kill()


def test_the_log_tells_begin_and_end(own):
    own.commands.run("true")
    logs = call("GET", f"/v2/sandboxes/{own.sandbox_id}/logs?direction=forward")[1]["logs"]
    assert [entry["message"] for entry in logs] == ["process started", "process ended"]


def test_public_ports_are_an_access(own):
    path = f"/v1/sandboxes/{own.sandbox_id}/access"
    [access] = native("GET", path)[1]["items"]
    assert access["all_ports"] and access["public"]
    own.commands.run("cd /tmp && exec python3 -m http.server 8127", background=True)
    until(lambda: data_plane(own.sandbox_id, "GET", "/", port=8127)[0] == 200)
    assert native("DELETE", f"{path}/{access['id']}")[0] == 204
    assert data_plane(own.sandbox_id, "GET", "/", port=8127)[0] == 403


ECHO = """
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 8128))
while True:
    one, _ = server.accept()
    asked = b""
    while b"\\r\\n\\r\\n" not in asked:
        asked += one.recv(65536) or b"\\r\\n\\r\\n"
    headers = dict(line.lower().split(": ", 1) for line in asked.decode().split("\\r\\n")[1:] if ": " in line)
    key = next((line.split(": ", 1)[1] for line in asked.decode().split("\\r\\n") if line.lower().startswith("sec-websocket-key")), "")
    said = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    one.sendall(f"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: {said}\\r\\n\\r\\n".encode())
    while piece := one.recv(65536):
        one.sendall(piece)
"""


def test_a_websocket_to_a_port(own):
    own.files.write("/tmp/echo.py", ECHO)
    own.commands.run("exec python3 /tmp/echo.py", background=True)
    until(lambda: own.commands.run("grep -c ':1FC0 ' /proc/net/tcp || true").stdout.strip() != "0")
    at = urllib.parse.urlsplit(os.environ["ATOLL_URL"])
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET /chat HTTP/1.1\r\nHost: {at.netloc}\r\nE2b-Sandbox-Id: {own.sandbox_id}\r\nE2b-Sandbox-Port: 8128\r\n"
        f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        connection.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(65536) or pytest.fail(f"it ended after {answer!r}")
        assert answer.startswith(b"HTTP/1.1 101 ")
        right = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        assert right in answer
        frame = b"\x81\x85\x01\x02\x03\x04" + bytes(a ^ b for a, b in zip(b"hello", b"\x01\x02\x03\x04\x01"))
        connection.sendall(frame)
        back = b""
        while len(back) < len(frame):
            back += connection.recv(65536) or pytest.fail(f"it ended after {back!r}")
        assert back == frame


def test_start_and_ready_commands():
    first, second = name(), name()
    serve = "cd /tmp && echo $WHAT > up && exec python3 -m http.server 8126"
    template = Template().from_template("base").set_envs({"WHAT": "started"}).set_start_cmd(serve, wait_for_port(8126))
    Template.build(template, first)
    assert Template.exists(first) and not Template.exists(name())
    # A template on it has its files, environment and start command.
    Template.build(Template().from_template(first).run_cmd("echo $WHAT > /tmp/seen"), second)
    with Sandbox.create(second, timeout=60) as box:
        assert data_plane(box.sandbox_id, "GET", "/up", port=8126)[::2] == (200, b"started\n")
        assert box.files.read("/tmp/seen") == "started\n"
    # Whether they succeed shows when a sandbox is made.
    Template.build(Template().from_template("base").set_start_cmd("exit 3", "false"), first)
    with pytest.raises(SandboxException, match="ended with code 3"):
        Sandbox.create(first, timeout=60)
    for template in (first, second):
        assert call("DELETE", f"/templates/{template}")[0] == 204
        assert not Template.exists(template)


def test_what_is_refused():
    aws = Template().from_aws_registry("1.dkr.ecr.eu-west-1.amazonaws.com/a:b", "key", "secret", "eu-west-1")
    with pytest.raises(BuildException, match="400.*aws ecr get-login-password"):
        Template.build(aws, name())
    with pytest.raises(SandboxException, match="400: iam"):
        Sandbox.create(iam={"tokens": {"aws": {"audience": "x", "token_type": "jwt"}}})
    with pytest.raises(SandboxException, match="400: network.dnsServers"):
        Sandbox.create(network={"dns_servers": ["9.9.9.9"]})
    with pytest.raises(SandboxException, match="404: template 'mcp-gateway' not found"):
        Sandbox.create(mcp={"exa": {}})
    with pytest.raises(SandboxException, match="MCP gateway"):
        Sandbox.create("base", mcp={"exa": {}}, timeout=60)
    status, headers, _ = raw("GET", "/sandboxes/none")
    assert (status, headers["should-retry"]) == (404, "false")
