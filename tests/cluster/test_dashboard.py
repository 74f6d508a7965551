"""Two nodes and the dashboard: the dashboard of one shows and changes what is on the other. The browser is real."""

import json
import os
import pathlib
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest

from cluster import DEADLINE, Cluster, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The dashboard shows a sandbox that is made on the other node, and its list follows events of that node.
STORIES = "create, type, edit, look back|the list is live"


@pytest.fixture(scope="module")
def cluster():
    with Cluster("a", "b") as cluster:
        yield cluster


class Browser:
    """Sends requests to the dashboard of a node as a browser does, and keeps its cookie."""

    def __init__(self):
        self.cookie = None

    def host(self, node):
        return "console.localhost:" + node.listen.rsplit(":", 1)[1]

    def ask(self, node, method, path, body=None, timeout=30, **headers):
        sent = {"Host": self.host(node), "Content-Type": "application/json", **headers}
        if self.cookie:
            sent["Cookie"] = self.cookie
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(node.url + path, method=method, headers=sent, data=data)
        opener = urllib.request.build_opener(Stays)
        try:
            return opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            return error

    def status(self, node, path="/v1/sandboxes"):
        return self.ask(node, "GET", path).status

    def log_in(self, node, link):
        with self.ask(node, "GET", link[link.index("/login") :]) as answer:
            if answer.status == 303:
                self.cookie = answer.headers["Set-Cookie"].split(";")[0]
            return answer.status

    def change(self, node, method, path, body=None):
        csrf = json.load(self.ask(node, "GET", "/session"))["csrf"]
        origin = f"http://{self.host(node)}"
        return self.ask(node, method, path, body, **{"Origin": origin, "X-Atoll-Csrf": csrf})


class Stays(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def link(node):
    return node.ok("POST", "/v1/dashboard/links")["link"]


def test_a_session_of_one_node_counts_at_all(cluster):
    a, b = cluster.nodes
    made = link(a)
    browser = Browser()
    assert browser.log_in(b, made) == 303, "a link of one node opens at the other"
    assert Browser().log_in(a, made) == 401, "once"
    for node in (a, b, a):
        assert browser.status(node) == 200
    with browser.change(b, "POST", "/v1/secrets", {}) as refused:
        assert refused.status in (404, 405), "it may change something: there is only no such route"
    with browser.ask(b, "DELETE", "/session") as refused:
        assert refused.status == 403, "not without its token"
    with browser.change(b, "DELETE", "/session") as ended:
        assert ended.status == 204
    assert browser.status(a) == 401, "it ended where it was begun, too"
    until("nobody has it", lambda: browser.status(b) == 401)


def test_what_is_open_ends_with_the_session(cluster):
    a, b = cluster.nodes
    box = a.make(name=f"box-{os.urandom(3).hex()}")["name"]
    browser = Browser()
    assert browser.log_in(b, link(b)) == 303
    with browser.ask(b, "GET", f"/v1/sandboxes/{box}/events", timeout=DEADLINE, Accept="text/event-stream") as stream:
        assert stream.status == 200, stream.read()
        with browser.change(b, "DELETE", "/session") as ended:
            assert ended.status == 204
        try:
            while stream.read(1 << 16):
                pass
        except OSError as broken:
            assert not isinstance(broken, TimeoutError)
    a.raw("DELETE", f"/v1/sandboxes/{box}")


def test_nobody_passes_for_a_session(cluster):
    a, b = cluster.nodes
    box = a.make(name=f"box-{os.urandom(3).hex()}")["name"]
    key = a.ok("POST", "/v1/keys", {"name": f"k-{box}", "scope": "admin"})["key"]["id"]
    nodes = {node["name"]: node["id"] for node in a.ok("GET", "/v1/nodes")["items"]}
    browser = Browser()
    for headers in ({"atoll-node-session": key}, {"Cookie": f"atoll_console={'0' * 64}.{nodes['a']}"}):
        for node in (a, b):
            assert browser.ask(node, "GET", f"/v1/sandboxes/{box}", **headers).status == 401, headers
    assert a.raw("GET", "/nodes/session", headers={"atoll-node-token": "0" * 64})[0] == 404
    # A page of another site cannot use the session for a sandbox of another node, nor can a change without a token.
    assert browser.log_in(b, link(b)) == 303
    path = f"/v1/sandboxes/{box}"
    assert browser.ask(b, "GET", path).status == 200
    assert browser.ask(b, "GET", path, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert browser.ask(b, "DELETE", path, **{"Origin": "http://evil.example"}).status == 403
    assert browser.ask(b, "DELETE", path, **{"Origin": f"http://{browser.host(b)}"}).status == 403
    assert a.raw("GET", path)[0] == 200
    with browser.change(b, "DELETE", path) as gone:
        assert gone.status == 204


def test_a_session_ends_with_its_key_everywhere(cluster):
    a, b = cluster.nodes
    made = a.ok("POST", "/v1/keys", {"name": f"k-{os.urandom(3).hex()}", "scope": "read"})
    until("the key is known", lambda: b.raw("GET", "/v1/sandboxes", key=made["secret"])[0] == 200)
    browser = Browser()
    assert browser.log_in(a, b.ok("POST", "/v1/dashboard/links", key=made["secret"])["link"]) == 303
    assert browser.status(a) == browser.status(b) == 200
    b.raw("DELETE", f"/v1/keys/{made['key']['id']}")
    until("it is refused", lambda: browser.status(a) == 401 and browser.status(b) == 401)


@pytest.mark.long
def test_stories_of_a_browser(cluster, tmp_path):
    a, b = cluster.nodes
    # The node that the browser talks to makes no sandboxes.
    a.cli("node", "drain", "a")
    until("it drains", lambda: a.ok("GET", "/v1/nodes")["items"][0]["state"] == "draining")
    subprocess.run([ROOT / "tests/dashboard/clients", "fast"], check=True)
    browser = shutil.which("chromium")
    assert browser, "there is no browser: install Debian's chromium"
    environment = {**os.environ, "CHROMIUM": browser, "ATOLL_URL": a.url, "ATOLL_API_KEY": cluster.key, "DASHBOARD_OUT": str(tmp_path)}
    command = ["node_modules/.bin/playwright", "test", "-c", "test/playwright.config.ts", "-g", STORIES]
    done = subprocess.run(command, cwd=ROOT / "dashboard", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "2 passed" in done.stdout, done.stdout
    a.cli("node", "undrain", "a")
