"""Git: against repositories inside the sandbox, and a server there that wants a password."""

import pytest
from conftest import call, since, toolbox, until
from daytona import DaytonaError

REMOTE = "/tmp/git/remote.git"

# A web server for `git http-backend`, with one user.
SERVER = r'''
import base64, os, subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Git(BaseHTTPRequestHandler):
    def serve(self):
        if self.headers.get("Authorization") != "Basic " + base64.b64encode(b"me:secret").decode():
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        env = dict(os.environ, GIT_PROJECT_ROOT="/tmp/git", GIT_HTTP_EXPORT_ALL="1", PATH_INFO=path, QUERY_STRING=query,
                   REQUEST_METHOD=self.command, CONTENT_TYPE=self.headers.get("Content-Type", ""), REMOTE_USER="me",
                   CONTENT_LENGTH=str(len(body)), GIT_CONFIG_COUNT="2", GIT_CONFIG_KEY_0="http.receivepack",
                   GIT_CONFIG_VALUE_0="true", GIT_CONFIG_KEY_1="safe.directory", GIT_CONFIG_VALUE_1="*")
        said = subprocess.run(["git", "http-backend"], input=body, env=env, stdout=subprocess.PIPE).stdout
        head, _, content = said.partition(b"\r\n\r\n")
        status, headers = 200, []
        for line in head.decode().split("\r\n"):
            name, _, value = line.partition(": ")
            if name == "Status":
                status = int(value.split()[0])
            else:
                headers.append((name, value))
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = serve

ThreadingHTTPServer(("127.0.0.1", 8418), Git).serve_forever()
'''


@pytest.fixture(scope="module")
def remote(box):
    box.process.exec("git config --global init.defaultBranch main")
    done = box.process.exec(
        f"set -e; mkdir -p /tmp/git; git init -q --bare {REMOTE}; cd /tmp/git; git clone -q {REMOTE} seed; cd seed; "
        "git config user.email a@b; git config user.name A; echo one >one; git add .; git commit -qm first; git push -q origin HEAD:main; "
        "git checkout -q -b other; echo two >two; git add .; git commit -qm second; git push -q origin other"
    )
    assert done.exit_code == 0, done.result
    return REMOTE


def test_a_repository(box, remote):
    box.git.clone(remote, "/tmp/work")
    status = box.git.status("/tmp/work")
    assert (status.current_branch, status.file_status, status.ahead, status.branch_published) == ("main", [], 0, True)
    box.fs.upload_file(b"changed", "/tmp/work/one")
    box.fs.upload_file(b"new", "/tmp/work/with space")
    files = {f.name: (f.staging.value, f.worktree.value) for f in box.git.status("/tmp/work").file_status}
    assert files == {"one": ("Unmodified", "Modified"), "with space": ("Untracked", "Untracked")}
    box.git.add("/tmp/work", ["one", "with space"])
    files = {f.name: f.staging.value for f in box.git.status("/tmp/work").file_status}
    assert files == {"one": "Modified", "with space": "Added"}
    commit = box.git.commit("/tmp/work", "a message", "Ann", "ann@example.com")
    assert len(commit.sha) == 40
    assert box.git.status("/tmp/work").ahead == 1
    box.git.push("/tmp/work")
    assert box.git.status("/tmp/work").ahead == 0
    status, history = call("GET", f"/{box.id}/git/history?path=/tmp/work", root=toolbox())
    assert (history[0]["message"], history[0]["author"], history[0]["hash"]) == ("a message", "Ann", commit.sha)


def test_branches(box, remote):
    box.git.clone(remote, "/tmp/branches", branch="other")
    assert box.git.status("/tmp/branches").current_branch == "other"
    box.git.create_branch("/tmp/branches", "mine")
    box.git.checkout_branch("/tmp/branches", "other")
    assert set(box.git.branches("/tmp/branches").branches) == {"other", "mine"}
    box.git.delete_branch("/tmp/branches", "mine")
    assert box.git.branches("/tmp/branches").branches == ["other"]


def test_a_commit(box, remote):
    first = box.process.exec(f"git -C {remote} rev-parse main~0").result.strip()
    box.git.clone(remote, "/tmp/commit", commit_id=first)
    assert box.process.exec("git -C /tmp/commit rev-parse HEAD").result.strip() == first


def test_pulling(box, remote):
    box.git.clone(remote, "/tmp/puller")
    box.process.exec(
        "cd /tmp/git/seed && git checkout -q main && git pull -q origin main && echo more >more && git add . && git commit -qm more "
        "&& git push -q origin main"
    )
    box.git.pull("/tmp/puller")
    assert box.fs.download_file("/tmp/puller/more") == b"more\n"


def code(response):
    return response[1]["code"]


def test_errors(box, remote):
    def post(path, body):
        return call("POST", f"/{box.id}/git/{path}", body, root=toolbox())

    assert code(post("clone", {"url": "/tmp/git/none.git", "path": "/tmp/n1"})) == "GIT_REPO_NOT_FOUND"
    assert code(post("clone", {"url": remote, "path": "/tmp/n2", "branch": "none"})) == "GIT_BRANCH_NOT_FOUND"
    assert post("clone", {"url": "--upload-pack=touch /tmp/pwned", "path": "/tmp/n3"})[0] == 400
    assert post("checkout", {"path": "/tmp/git/seed", "branch": "--orphan"})[0] == 400
    assert code(call("GET", f"/{box.id}/git/status?path=/usr", root=toolbox())) == "GIT_REPO_NOT_FOUND"
    assert code(post("branches", {"path": "/tmp/git/seed", "name": "other"})) == "GIT_BRANCH_EXISTS"
    assert code(post("checkout", {"path": "/tmp/git/seed", "branch": "nowhere"})) == "GIT_BRANCH_NOT_FOUND"
    with pytest.raises(DaytonaError):
        box.git.status("/tmp/none")


@since(0, 210)
def test_repositories_of_ones_own(box):
    def post(path, body, want=200):
        status, answer = call("POST", f"/{box.id}/git/{path}", body, root=toolbox())
        assert status == want, answer

    post("init", {"path": "/tmp/own", "initial_branch": "trunk"}, 201)
    post("config/user", {"path": "/tmp/own", "name": "Me", "email": "me@example.com"})
    post("remotes", {"path": "/tmp/own", "name": "up", "url": "/tmp/git/remote.git"}, 201)
    assert call("GET", f"/{box.id}/git/remotes?path=/tmp/own", root=toolbox())[1] == {
        "remotes": [{"name": "up", "url": "/tmp/git/remote.git"}]
    }
    assert call("GET", f"/{box.id}/git/config?path=/tmp/own&key=user.name", root=toolbox())[1] == {"value": "Me"}
    assert call("GET", f"/{box.id}/git/config?path=/tmp/own&key=no.such", root=toolbox())[1] == {}
    box.fs.upload_file(b"1", "/tmp/own/file")
    box.git.add("/tmp/own", ["."])
    box.git.commit("/tmp/own", "one", "Me", "me@example.com")
    box.fs.upload_file(b"2", "/tmp/own/file")
    post("restore", {"path": "/tmp/own", "files": ["file"]})
    assert box.fs.download_file("/tmp/own/file") == b"1"
    box.fs.upload_file(b"3", "/tmp/own/file")
    box.git.add("/tmp/own", ["file"])
    post("reset", {"path": "/tmp/own", "mode": "hard"})
    assert box.fs.download_file("/tmp/own/file") == b"1"


def test_a_password(box, remote):
    box.fs.upload_file(SERVER.encode(), "/tmp/git/server.py")
    box.process.exec("nohup python3 /tmp/git/server.py >/tmp/git/server.log 2>&1 &")
    until(lambda: call("GET", f"/{box.id}/port/8418/in-use", root=toolbox())[1]["isInUse"])
    url = "http://127.0.0.1:8418/remote.git"
    status, body = call("POST", f"/{box.id}/git/clone", {"url": url, "path": "/tmp/p0"}, root=toolbox())
    assert (status, body["code"]) == (401, "GIT_AUTH_FAILED")
    wrong = {"url": url, "path": "/tmp/p0", "username": "me", "password": "wrong"}
    assert call("POST", f"/{box.id}/git/clone", wrong, root=toolbox())[1]["code"] == "GIT_AUTH_FAILED"
    box.git.clone(url, "/tmp/p1", username="me", password="secret")
    box.fs.upload_file(b"pushed", "/tmp/p1/pushed")
    box.git.add("/tmp/p1", ["pushed"])
    box.git.commit("/tmp/p1", "pushed", "Ann", "ann@example.com")
    box.git.push("/tmp/p1", username="me", password="secret")
    box.git.pull("/tmp/p1", username="me", password="secret")
    assert "pushed" in box.process.exec(f"git -C {remote} ls-tree --name-only main").result
    # The password is neither in the repository nor in Git's store of credentials.
    assert box.process.exec("grep -r secret /tmp/p1/.git ~/.git-credentials").exit_code != 0
