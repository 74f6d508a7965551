"""Ports: preview links, signed ones, public ones."""

import os
import urllib.error
import urllib.parse
import urllib.request

import pytest
from conftest import call, since, toolbox, until


class Keep(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def fetch(url, headers=None):
    """Gets a page of a name below `localhost`. As not every resolver knows these, it sends the name in `Host`."""
    parts = urllib.parse.urlsplit(url)
    server = urllib.parse.urlsplit(os.environ["ATOLL_URL"])
    assert parts.port == server.port, url
    address = urllib.parse.urlunsplit((parts.scheme, server.netloc, parts.path or "/", parts.query, ""))
    request = urllib.request.Request(address, headers={"Host": parts.netloc, **(headers or {})})
    try:
        with urllib.request.build_opener(Keep).open(request, timeout=30) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


@pytest.fixture(scope="module")
def web(box):
    box.fs.upload_file(b"hello from inside", "/tmp/www/index.html")
    server = (
        "import http.server,functools,json\n"
        "class H(http.server.SimpleHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        if self.path.startswith('/headers'):\n"
        "            body = json.dumps([self.path, dict(self.headers)]).encode()\n"
        "            self.send_response(200); self.end_headers(); self.wfile.write(body)\n"
        "        else:\n"
        "            super().do_GET()\n"
        "http.server.ThreadingHTTPServer(('', 3000), functools.partial(H, directory='/tmp/www')).serve_forever()\n"
    )
    box.fs.upload_file(server.encode(), "/tmp/www.py")
    box.process.exec("nohup python3 /tmp/www.py >/dev/null 2>&1 &")
    until(lambda: call("GET", f"/{box.id}/port/3000/in-use", root=toolbox())[1]["isInUse"])
    return box


def test_a_preview_link(web):
    link = web.get_preview_link(3000)
    assert f"3000-{web.id}." in link.url
    assert fetch(link.url)[0] == 401
    status, _, body = fetch(link.url, {"x-daytona-preview-token": link.token})
    assert (status, body) == (200, b"hello from inside")
    assert fetch(link.url, {"Authorization": f"Bearer {os.environ['DAYTONA_API_KEY']}"})[0] == 200
    assert fetch(link.url, {"x-daytona-preview-token": link.token + "0"})[0] == 401
    assert fetch(f"{link.url}?DAYTONA_SANDBOX_AUTH_KEY={link.token}")[0] == 200


def test_a_browser_keeps_the_token(web):
    link = web.get_preview_link(3000)
    status, headers, _ = fetch(f"{link.url}/a?b=1&DAYTONA_SANDBOX_AUTH_KEY={link.token}", {"Accept": "text/html"})
    assert (status, headers["location"]) == (302, "/a?b=1")
    cookie = headers["set-cookie"].split(";")[0]
    assert fetch(link.url, {"Cookie": cookie})[0] == 200
    assert fetch(link.url, {"Cookie": cookie, "Origin": "https://evil.example"})[0] == 401
    assert fetch(link.url, {"Cookie": cookie, "Sec-Fetch-Site": "cross-site"})[0] == 401


def test_the_server_inside_sees_no_token(web):
    link = web.get_preview_link(3000)
    status, _, body = fetch(
        f"{link.url}/headers?DAYTONA_SANDBOX_AUTH_KEY={link.token}",
        {"Authorization": f"Bearer {os.environ['DAYTONA_API_KEY']}", "x-daytona-preview-token": link.token},
    )
    assert status == 200
    assert link.token not in body.decode() and os.environ["DAYTONA_API_KEY"] not in body.decode()


def test_a_token_is_for_one_sandbox(web, own):
    own.process.exec("nohup python3 -m http.server 3000 >/dev/null 2>&1 &")
    other = own.get_preview_link(3000)
    assert fetch(other.url, {"x-daytona-preview-token": web.get_preview_link(3000).token})[0] == 401


@since(0, 120)
def test_a_signed_link(web):
    signed = web.create_signed_preview_url(3000, expires_in_seconds=60)
    assert fetch(signed.url)[2] == b"hello from inside"
    elsewhere = signed.url.replace("//3000-", "//3001-")
    assert fetch(elsewhere)[0] == 401
    web.expire_signed_preview_url(3000, signed.token)
    assert fetch(signed.url)[0] == 401


def test_public_ports(own):
    own.process.exec("cd /tmp && nohup python3 -m http.server 3000 >/dev/null 2>&1 &")
    until(lambda: call("GET", f"/{own.id}/port/3000/in-use", root=toolbox())[1]["isInUse"])
    link = own.get_preview_link(3000)
    assert fetch(link.url)[0] == 401
    assert call("POST", f"/sandbox/{own.id}/public/true")[1]["public"] is True
    assert fetch(link.url)[0] == 200
    assert call("POST", f"/sandbox/{own.id}/public/false")[1]["public"] is False
    assert fetch(link.url)[0] == 401


def test_the_toolbox_by_token(web):
    token = web.get_preview_link(1).token
    status, body = call(
        "POST",
        f"/{web.id}/process/execute?DAYTONA_SANDBOX_AUTH_KEY={token}",
        {"command": "echo in"},
        key="",
        root=toolbox(),
    )
    assert (status, body["result"]) == (200, "in\n")
    wrong = f"/{web.id}/process/execute?DAYTONA_SANDBOX_AUTH_KEY={token}0"
    assert call("POST", wrong, {"command": "echo in"}, key="", root=toolbox())[0] == 401
