"""The Connect protocol by hand: JSON and protobuf, packed and plain, over HTTP/1.1 and HTTP/2."""

import gzip
import json
import os
import shutil
import struct
import subprocess

import pytest
from conftest import data_plane
from e2b import Sandbox


@pytest.fixture(scope="module")
def call(box):
    token = {"X-Access-Token": box._envd_access_token}

    def call(path, body, kind, **headers):
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return data_plane(box.sandbox_id, "POST", path, body, headers={**token, "Content-Type": kind, **more})

    return call


def envelope(payload, flags=0):
    return struct.pack(">BI", flags, len(payload)) + payload


def envelopes(body):
    found = []
    while body:
        flags, length = struct.unpack(">BI", body[:5])
        found.append((flags, body[5 : 5 + length]))
        body = body[5 + length :]
    return found


def run(line):
    return {"process": {"cmd": "/bin/sh", "args": ["-c", line]}, "stdin": False}


def test_json_streams(call):
    status, headers, body = call(
        "/process.Process/Start", envelope(json.dumps(run("echo hi; exit 2")).encode()), "application/connect+json"
    )
    assert status == 200 and headers["content-type"] == "application/connect+json"
    found = envelopes(body)
    assert [flags for flags, _ in found] == [0, 0, 0, 2]
    assert "start" in json.loads(found[0][1])["event"]
    assert json.loads(found[1][1]) == {"event": {"data": {"stdout": "aGkK"}}}
    end = {"exitCode": 2, "exited": True, "status": "exit status 2", "error": "exit status 2"}
    assert json.loads(found[2][1]) == {"event": {"end": end}}
    assert json.loads(found[3][1]) == {}


def test_packed_envelopes(call):
    body = envelope(gzip.compress(json.dumps(run("true")).encode()), flags=1)
    status, _, body = call("/process.Process/Start", body, "application/connect+json", connect_content_encoding="gzip")
    assert status == 200 and envelopes(body)[-1] == (2, b"{}")


def test_protobuf(call):
    field = lambda number, payload: bytes([number << 3 | 2, len(payload)]) + payload
    process = field(1, b"/bin/sh") + field(2, b"-c") + field(2, b"echo hi")
    status, headers, body = call("/process.Process/Start", envelope(field(1, process)), "application/connect+proto")
    assert status == 200 and headers["content-type"] == "application/connect+proto"
    assert b"hi\n" in body and b"exit status 0" in body
    status, headers, body = call("/filesystem.Filesystem/Stat", field(1, b"/etc/passwd"), "application/proto")
    assert status == 200 and headers["content-type"] == "application/proto" and b"-rw-r--r--" in body


def test_errors(call):
    stat = lambda body, kind="application/json", **more: call("/filesystem.Filesystem/Stat", body, kind, **more)
    status, _, body = stat(b'{"path":"/no/such"}')
    assert status == 404 and json.loads(body)["code"] == "not_found"
    status, _, body = stat(b"{")
    assert status == 400 and json.loads(body)["code"] == "invalid_argument"
    assert stat(b"{}", kind="text/plain")[0] == 415
    assert stat(b"{}", content_encoding="br")[0] == 501
    assert stat(b"{}", connect_timeout_ms="soon")[0] == 400
    status, _, body = call("/filesystem.Filesystem/Nothing", b"{}", "application/json")
    assert status == 501 and json.loads(body)["code"] == "unimplemented"
    # Errors before a stream begins are sent in the stream.
    for body in [b"\0\0", envelope(b"{}"), envelope(json.dumps(run("true")).encode()[:-1])]:
        status, _, answer = call("/process.Process/Start", body, "application/connect+json")
        ((flags, text),) = envelopes(answer)
        assert (status, flags) == (200, 2) and json.loads(text)["error"]["code"] == "invalid_argument"
    status, _, answer = call(
        "/process.Process/Connect", envelope(b'{"process":{"pid":999999}}'), "application/connect+json"
    )
    assert json.loads(envelopes(answer)[0][1])["error"]["code"] == "not_found"


def test_input_in_a_stream_and_tags(box, call):
    import threading

    answers = []
    start = {"process": {"cmd": "/bin/cat"}, "tag": "the cat", "stdin": True}
    body = envelope(json.dumps(start).encode())
    running = threading.Thread(
        target=lambda: answers.append(call("/process.Process/Start", body, "application/connect+json"))
    )
    running.start()
    from conftest import until

    listed = lambda: json.loads(call("/process.Process/List", b"{}", "application/json")[2]).get("processes", [])
    until(lambda: any(process.get("tag") == "the cat" for process in listed()))
    cat = {"process": {"tag": "the cat"}}
    messages = [{"start": cat}, {"data": {"input": {"stdin": "YQ=="}}}, {"keepalive": {}}, {"data": {"input": {"stdin": "Yg=="}}}]
    body = b"".join(envelope(json.dumps(message).encode()) for message in messages)
    status, _, answer = call("/process.Process/StreamInput", body, "application/connect+json")
    assert status == 200 and envelopes(answer) == [(0, b"{}"), (2, b"{}")]
    assert call("/process.Process/CloseStdin", json.dumps(cat).encode(), "application/json")[0] == 200
    running.join(20)
    text = b"".join(payload for _, payload in envelopes(answers[0][2]))
    assert b"YQ==" in text and b"Yg==" in text or b"YWI=" in text


def test_keepalives_and_deadlines(call):
    body = envelope(json.dumps(run("sleep 1.5")).encode())
    _, _, answer = call("/process.Process/Start", body, "application/connect+json", keepalive_ping_interval="1")
    assert any(b"keepalive" in payload for _, payload in envelopes(answer))
    body = envelope(json.dumps(run("sleep 1000.25")).encode())
    _, _, answer = call("/process.Process/Start", body, "application/connect+json", connect_timeout_ms="500")
    assert json.loads(envelopes(answer)[-1][1])["error"]["code"] == "deadline_exceeded"


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_http2(box):
    command = [
        "curl", "-s", "--http2-prior-knowledge", "-w", "%{http_version}", "-X", "POST",
        "-H", f"E2b-Sandbox-Id: {box.sandbox_id}", "-H", f"X-Access-Token: {box._envd_access_token}",
        "-H", "Content-Type: application/json", "-d", "{}", os.environ["ATOLL_URL"] + "/process.Process/List",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    assert answer.startswith("{") and answer.endswith("2"), answer
