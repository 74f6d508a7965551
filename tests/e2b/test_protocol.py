"""Requirements of the protocol that its clients do not test. A server has got each of them wrong before."""

import datetime
import http.client
import json
import os
import time
import urllib.parse
import uuid

import pytest
from conftest import call, containers_only, data_plane, raw, since, until
from e2b import Sandbox, Template

BASE = {"templateID": "base", "timeout": 60}


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("GET", "/no/such/route", 404),
        ("GET", "/", 404),
        ("PATCH", "/sandboxes", 405),
        ("PUT", "/templates/tags", 405),
        ("GET", "/sandboxes/%ff", 404),
        ("GET", "/templates/%ff/tags", 400),
        ("GET", "/templates/aliases/%ff", 400),
        ("GET", "/templates/x/builds/%ff/status", 400),
        ("GET", "/volumes/%ff", 400),
        ("GET", "/secrets/%ff", 400),
        ("GET", "/v2/sandboxes?limit=%ff", 400),
        ("POST", "/v3/templates", 413),
        ("POST", "/v2/sandboxes", 413),
    ],
)
def test_every_error_is_json_and_final(method, path, status):
    body = b" " * (2 << 20) if status == 413 else None
    got, headers, text = raw(method, path, body)
    answer = json.loads(text)
    assert (got, answer["code"]) == (status, status) and answer["message"], answer
    # Otherwise the Python client might ask again.
    assert headers["should-retry"] == "false" and headers["content-type"] == "application/json"


def left(path):
    info = call("GET", path)[1]
    ends = datetime.datetime.fromisoformat(info["endAt"].replace("Z", "+00:00"))
    return (ends - datetime.datetime.now(datetime.timezone.utc)).total_seconds()


@containers_only
def test_lives_when_nobody_says():
    status, made = call("POST", "/v2/sandboxes", {"templateID": "base"})
    path = f"/sandboxes/{made['sandboxID']}"
    try:
        assert status == 201 and 290 < left(path) <= 300
        # Connecting never shortens the life of a running sandbox. A paused one then lives as long as a new one.
        assert call("POST", f"/v2{path}/connect")[0] == 200 and 290 < left(path) <= 300
        assert call("POST", path + "/timeout", {"timeout": 1000})[0] == 204
        assert call("POST", f"/v2{path}/connect", {})[0] == 200 and 990 < left(path) <= 1000
        assert call("POST", path + "/pause", {})[0] == 204
        assert call("POST", f"/v2{path}/connect")[0] == 201 and 290 < left(path) <= 300
    finally:
        assert call("DELETE", path)[0] == 204


def chunked(method, path, body):
    """Sends a request with a chunked body, as the JavaScript client always does."""
    url = urllib.parse.urlsplit(os.environ["E2B_API_URL"])
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
    headers = {"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    pieces = json.dumps(body).encode()
    pieces = iter([pieces[:3], pieces[3:]])
    connection.request(method, url.path + path, pieces, headers, encode_chunked=True)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else None


@since(2, 20)
@containers_only
def test_bodies_of_no_announced_length_and_encoded_names():
    status, made = chunked("POST", "/v2/sandboxes", BASE)
    assert status == 201
    path = f"/sandboxes/{made['sandboxID']}"
    assert chunked("PUT", path + "/network", {"denyOut": ["8.8.8.8"]})[0] == 204
    assert chunked("POST", path + "/timeout", {"timeout": 100})[0] == 204 and 90 < left(path) <= 100
    assert call("DELETE", path)[0] == 204
    name = "e2b-test-" + uuid.uuid4().hex[:8]
    Template.build(Template().from_template("base").run_cmd("true"), f"{name}:v1", cpu_count=1, memory_mb=512)
    status, tagged = chunked("POST", "/templates/tags", {"target": f"{name}:v1", "tags": ["a", "b"]})
    assert status == 201 and uuid.UUID(tagged["buildID"])
    # Clients encode slashes and colons of names. Names may have a namespace.
    for reference in (name, f"{name}%3Av1", f"{name}%3Ab", f"anybody%2F{name}", f"anybody%2F{name}%3Aa"):
        assert call("GET", f"/templates/aliases/{reference}")[0] == 200, reference
        assert {tag["tag"] for tag in call("GET", f"/templates/{reference}/tags")[1]} >= {"a", "b", "v1"}, reference
    assert call("GET", f"/templates/aliases/anybody%2F{name}%3Anone")[0] == 404
    assert chunked("DELETE", "/templates/tags", {"name": name, "tags": ["a"]})[0] == 204
    assert chunked("DELETE", "/templates/tags", {"name": name, "tags": ["a"]})[0] == 404
    assert call("DELETE", f"/templates/anybody%2F{name}")[0] == 204


@since(2, 20)
@containers_only
def test_a_long_log_comes_in_pieces_until_it_is_whole():
    status, order = call("POST", "/v3/templates", {"name": "e2b-test-" + uuid.uuid4().hex[:8]})
    assert status == 202
    path = f"/templates/{order['templateID']}/builds/{order['buildID']}"
    step = {"type": "RUN", "args": ["seq -f 'line %g' 250"], "force": True}
    status, _, body = raw("POST", f"/v2{path}", {"fromTemplate": "base", "steps": [step]})
    assert (status, body) == (202, b"")
    until(lambda: call("GET", f"{path}/status")[1]["status"] == "ready")
    messages = []
    while True:
        answer = call("GET", f"{path}/status?logsOffset={len(messages)}")[1]
        assert answer["status"] == "ready" and len(answer["logEntries"]) == len(answer["logs"]) <= 100
        messages += answer["logs"]
        if not answer["logs"]:
            break
    assert [text for text in messages if text.startswith("line ")] == [f"line {n}" for n in range(1, 251)]
    assert call("DELETE", f"/templates/{order['templateID']}")[0] == 204


@containers_only
def test_what_is_said_about_sandboxes_that_do_not_run():
    def said(sandbox, path="/health", port=49983):
        status, _, text = data_plane(sandbox, "GET", path, port=port)
        return status, json.loads(text)

    status, made = call("POST", "/v2/sandboxes", BASE)
    sandbox = made["sandboxID"]
    path = f"/sandboxes/{sandbox}"
    gone = (502, {"sandboxId": sandbox, "message": "The sandbox was not found", "code": 502})
    assert call("POST", path + "/pause", {})[0] == 204
    assert said(sandbox) == gone and said(sandbox, "/files?path=x") == gone and said(sandbox, "/", 8080) == gone
    assert call("POST", path + "/connect", {"timeout": 60})[0] == 201
    closed = {"sandboxId": sandbox, "message": "The sandbox is running but port is not open", "port": 8080, "code": 502}
    assert said(sandbox, "/", 8080) == (502, closed)
    assert call("DELETE", path)[0] == 204
    assert said(sandbox) == gone and said(sandbox, "/", 8080) == gone
    assert call("POST", path + "/fork", {})[0] == 404 and call("POST", path + "/snapshots", {})[0] == 404


STREAM = """
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"first")
        self.wfile.flush()
        if self.path == "/slow":
            time.sleep(30)
http.server.ThreadingHTTPServer(("", 8126), Handler).serve_forever()
"""


def test_nothing_is_kept_back(own):
    """The client gets output of a process or a server at once, before more follows."""
    own.files.write("stream.py", STREAM)
    own.commands.run("exec python3 stream.py", background=True)
    until(lambda: data_plane(own.sandbox_id, "GET", "/", port=8126)[0] == 200)
    url = urllib.parse.urlsplit(os.environ["E2B_SANDBOX_URL"])
    headers = {"E2b-Sandbox-Id": own.sandbox_id, "E2b-Sandbox-Port": "8126"}
    # The timeout is shorter than the answer takes.
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=20)
    connection.request("GET", "/slow", headers=headers)
    assert connection.getresponse().read(5) == b"first"
    connection.close()
    payload = json.dumps({"process": {"cmd": "/bin/sleep", "args": ["30"]}, "stdin": False}).encode()
    headers = {
        "E2b-Sandbox-Id": own.sandbox_id, "X-Access-Token": own._envd_access_token,
        "Content-Type": "application/connect+json",
    }
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=20)
    connection.request("POST", "/process.Process/Start", b"\0" + len(payload).to_bytes(4, "big") + payload, headers)
    answer = connection.getresponse()
    flags, length = answer.read(1), int.from_bytes(answer.read(4), "big")
    pid = json.loads(answer.read(length))["event"]["start"]["pid"]
    assert (answer.status, flags) == (200, b"\0")
    # A client that disconnects does not end the process that it started.
    connection.close()
    time.sleep(0.5)
    assert pid in [process.pid for process in own.commands.list()]
    assert own.commands.kill(pid)


def test_the_control_plane_does_not_mind_the_data_plane_s_headers(own):
    """Clients up to 2.20 send these headers when they connect to a sandbox."""
    named = {"E2b-Sandbox-Id": own.sandbox_id, "E2b-Sandbox-Port": "49983"}
    status, sandbox = call("POST", f"/sandboxes/{own.sandbox_id}/connect", {"timeout": 300}, headers=named)
    assert (status, sandbox["sandboxID"]) == (200, own.sandbox_id)
    assert call("GET", "/sandboxes", headers=named, key="e2b_" + "0" * 40)[0] == 401
    # A server in the sandbox may have such a path itself.
    own.files.write("e2b/sandboxes", "its own")
    own.commands.run("exec python3 -m http.server 8131", background=True)
    until(lambda: data_plane(own.sandbox_id, "GET", "/e2b/sandboxes", port=8131)[2] == b"its own")


def test_large_numbers_are_texts(own):
    own.files.write("five", "12345")
    headers = {"X-Access-Token": own._envd_access_token}
    status, _, text = data_plane(
        own.sandbox_id, "POST", "/filesystem.Filesystem/Stat", {"path": "five"}, headers=headers
    )
    entry = json.loads(text)["entry"]
    assert status == 200 and entry["size"] == "5" and entry["permissions"] == "-rw-r--r--" and entry["mode"] == 0o644


@containers_only
def test_tokens_stay_and_are_new_for_forks():
    status, made = call("POST", "/v2/sandboxes", BASE)
    path, token = f"/sandboxes/{made['sandboxID']}", made["envdAccessToken"]
    assert call("POST", path + "/pause", {})[0] == 204
    assert call("POST", path + "/connect", {"timeout": 60})[1]["envdAccessToken"] == token
    status, forks = call("POST", path + "/fork", {"count": 2, "timeout": 60})
    tokens = {fork["sandbox"]["envdAccessToken"] for fork in forks}
    assert status == 201 and len(tokens) == 2 and token not in tokens
    for sandbox in [made["sandboxID"], *(fork["sandbox"]["sandboxID"] for fork in forks)]:
        assert call("DELETE", f"/sandboxes/{sandbox}")[0] == 204
