"""Links to ports and files."""

import threading
import time
import urllib.error
import urllib.request

import pytest
from conftest import VERSION, since
from langsmith.sandbox import ValidationError

pytestmark = since(0, 12)

SERVER = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        length = int(self.headers.get('Content-Length') or 0)
        body = json.dumps({'path': self.path, 'method': self.command, 'body': self.rfile.read(length).decode(),
                           'headers': dict(self.headers)}).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def serving(box):
    box.write("/tmp/server.py", SERVER)
    box.run("setsid python3 /tmp/server.py >/dev/null 2>&1 & echo")
    deadline = time.monotonic() + 30
    while box.run("(echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null").exit_code != 0:
        assert time.monotonic() < deadline, "nothing listens"
        time.sleep(0.1)
    return box


def test_the_sdk_reaches_a_port(serving):
    service = serving.service(8000)
    answer = service.get("/a/b?c=d").json()
    assert (answer["path"], answer["method"]) == ("/a/b?c=d", "GET")
    # The server in the sandbox does not get the credentials of the request.
    assert not any("token" in name.lower() or name.lower() == "x-api-key" for name in answer["headers"])
    assert service.post("/x", content=b"body").json()["body"] == "body"
    assert service.expires_at and service.token


def test_a_browser_reaches_it_with_the_link(serving):
    service = serving.service(8000, expires_in_seconds=60)
    host = service.browser_url.split("/")[2]
    assert host.split(":")[0].endswith("localhost") and service.token in service.browser_url
    # The name means this machine, but not every resolver knows that.
    address = service.browser_url.replace(host.split(":")[0], "127.0.0.1")

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args):
            return None

    opener = urllib.request.build_opener(Stay())
    with pytest.raises(urllib.error.HTTPError) as caught:
        opener.open(urllib.request.Request(address, headers={"Host": host, "Accept": "text/html"}), timeout=30)
    cookie = caught.value.headers["Set-Cookie"].split(";")[0]
    plain = address.split("?")[0]
    with opener.open(urllib.request.Request(plain, headers={"Host": host, "Cookie": cookie}), timeout=30) as answer:
        assert b'"path": "/"' in answer.read()


def test_only_with_the_right_token(serving, client):
    service = serving.service(8000)
    url = service.service_url + "/"
    header = "X-Langsmith-Sandbox-Service-Token"

    def status(headers, url=url):
        try:
            return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30).status
        except urllib.error.HTTPError as error:
            return error.code

    assert status({header: service.token}) == 200
    assert status({}) == 401
    assert status({header: "wrong"}) == 401
    assert status({header: service.token}, url.replace("/8000/", "/8001/")) == 401
    if VERSION < (0, 14):
        return
    with pytest.raises(ValidationError):
        client.service(serving.name, 8000, access="workspace")


def test_links_to_files(serving):
    serving.write("/tmp/report.txt", b"0123456789")
    link = serving.generate_download_url("/tmp/report.txt", expires_in_seconds=60, content_type="text/plain")
    with urllib.request.urlopen(link.download_url, timeout=30) as answer:
        assert answer.read() == b"0123456789" and answer.headers["Content-Type"].startswith("text/plain")
    part = urllib.request.Request(link.download_url, headers={"Range": "bytes=2-4"})
    with urllib.request.urlopen(part, timeout=30) as answer:
        assert (answer.status, answer.read()) == (206, b"234")
    assert link.expires_at
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(link.download_url.replace(link.token, "wrong"), timeout=30)


def test_after_a_wake_a_port_on_which_nothing_will_listen_is_closed(client):
    """A stop ended the server, and nothing begins it again: the address says so at once, and not when a command has
    begun another one."""
    with client.sandbox() as box:
        service = box.service(8000)
        header = {"X-Langsmith-Sandbox-Service-Token": service.token}
        request = urllib.request.Request(service.service_url + "/", headers=header)
        statuses = []

        def ask():
            try:
                statuses.append(urllib.request.urlopen(request, timeout=60).status)
            except urllib.error.HTTPError as error:
                statuses.append(error.code)

        client.stop_sandbox(box.name)
        asking = threading.Thread(target=ask)
        asking.start()
        # The answer is long there before all of these have run.
        for _ in range(50):
            box.run("true")
        box.run("setsid python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & echo")
        asking.join()
        assert statuses == [502]
