"""A client that knows only a domain: TLS, the names of the control plane, of envd and of ports."""

import json
import os
import ssl
import time
import urllib.error
import urllib.request

import pytest
from e2b import AsyncSandbox, AsyncVolume, Sandbox, Volume


@pytest.fixture(scope="module")
def box():
    sandbox = Sandbox.create(timeout=300)
    yield sandbox
    sandbox.kill()


def get(url, headers=None):
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30, context=ssl.create_default_context()) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def serve(sandbox, port):
    program = (
        "import http.server\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "  def do_GET(self):\n"
        "    self.send_response(200); self.end_headers(); self.wfile.write(('served '+self.headers['Host']).encode())\n"
        f"http.server.HTTPServer(('127.0.0.1',{port}),H).serve_forever()\n"
    )
    sandbox.files.write("/tmp/serve.py", program)
    sandbox.commands.run("python3 /tmp/serve.py", background=True)


def until_served(url, headers=None):
    end = time.monotonic() + 30
    while (got := get(url, headers))[0] != 200 and time.monotonic() < end:
        time.sleep(0.1)
    return got


def test_commands_and_files(box):
    assert box.commands.run("echo over TLS").stdout == "over TLS\n"
    box.files.write("/tmp/a", "x" * 100_000)
    assert len(box.files.read("/tmp/a")) == 100_000
    terminal = box.commands.run("cat", background=True, stdin=True)
    box.commands.send_stdin(terminal.pid, "typed\n")
    for out, _, _ in terminal:
        assert out == "typed\n"
        break
    terminal.kill()


async def test_the_asynchronous_client():
    sandbox = await AsyncSandbox.create(timeout=60)
    try:
        assert (await sandbox.commands.run("echo async")).stdout == "async\n"
    finally:
        await sandbox.kill()


def test_get_host(box):
    host = box.get_host(8123)
    assert host == f"8123-{box.sandbox_id}.{os.environ['E2B_DOMAIN']}"
    status, text = get(f"https://{host}/")
    assert status == 502 and json.loads(text)["message"] == "The sandbox is running but port is not open"
    serve(box, 8123)
    status, text = until_served(f"https://{host}/")
    assert (status, text.decode()) == (200, f"served {host}")


def test_ports_that_want_a_token_and_another_host():
    network = {"allow_public_traffic": False, "mask_request_host": "localhost:${PORT}"}
    sandbox = Sandbox.create(timeout=120, network=network)
    try:
        url = f"https://{sandbox.get_host(8124)}/"
        serve(sandbox, 8124)
        with_token = {"e2b-traffic-access-token": sandbox.traffic_access_token}
        assert until_served(url, with_token) == (200, b"served localhost:8124")
        assert get(url)[0] == 403 and get(url, {"e2b-traffic-access-token": "x"})[0] == 403
        # The native API's own key opens it too.
        assert get(url, {"X-Atoll-Token": os.environ["ATOLL_API_KEY"]})[0] == 200
    finally:
        sandbox.kill()


def test_signed_addresses(box):
    box.files.write("/tmp/signed.txt", "signed")
    assert get(box.download_url("/tmp/signed.txt")) == (200, b"signed")


def test_volumes():
    volume = Volume.create("of-a-domain")
    try:
        volume.write_file("/a", "x" * 100_000)
        assert len(volume.read_file("/a")) == 100_000
        assert sum(len(part) for part in Volume.connect(volume.volume_id).read_file("/a", format="stream")) == 100_000
        assert [entry.name for entry in volume.list("/")] == ["a"]
        sandbox = Sandbox.create(timeout=60, volume_mounts={"/v": volume})
        assert sandbox.commands.run("wc -c < /v/a").stdout == "100000\n"
        sandbox.kill()
    finally:
        Volume.destroy(volume.volume_id)


async def test_volumes_of_the_asynchronous_client():
    volume = await AsyncVolume.create("of-a-domain")
    try:
        await volume.write_file("/a", "async")
        assert await volume.read_file("/a") == "async"
    finally:
        await AsyncVolume.destroy(volume.volume_id)


def test_nobody_else_is_served(box):
    domain = os.environ["E2B_DOMAIN"]
    gone = Sandbox.create(timeout=60)
    gone.kill()
    for sandbox in ("sb00000000000000000000", gone.sandbox_id):
        status, told = get(f"https://8123-{sandbox}.{domain}/")
        assert (status, json.loads(told)["message"]) == (502, "The sandbox was not found")
    assert get(f"https://8123-none.{domain}/")[0] == 401
    assert get(f"https://49983-sb00000000000000000000.{domain}/health")[0] == 502
    with pytest.raises(urllib.error.URLError, match="certificate"):
        get(f"https://a.b.{domain}/")
