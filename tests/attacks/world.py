"""A real server, and tools for attacks on it: requests with any key, sandboxes, commands in them."""

import base64
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ATOLL = os.environ.get("ATOLL_BIN", str(REPOSITORY / "target/debug/atoll"))
# Seconds that any step may take at most; no verdict depends on the time that a step took.
PATIENCE = 300
CACHE = Path("/var/cache/atoll-tests")


class Broken(Exception):
    """The attack could not be tried, which proves nothing."""


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode(errors="replace")

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        try:
            return self.json.get("code", "")
        except (ValueError, AttributeError):
            return ""

    def __repr__(self):
        return f"{self.status} {self.text[:300]}"


class World:
    """One server at one isolation level; attackers share it."""

    def __init__(self, level, more=()):
        self.level = level
        self.dir = Path(tempfile.mkdtemp(prefix="atoll-attacks-", dir=os.environ.get("TMPDIR", "/var/tmp")))
        self.log = open(self.dir / "log", "wb")
        args = [ATOLL, "serve", "--ephemeral", "--listen", "127.0.0.1:0", "--ready-json", "--default-isolation", level]
        if level != "container":
            args += ["--default-image", "default"]
        if level == "microvm":
            set_up_machines()
            args += ["--microvm-dir", str(CACHE / "tested-machines")]
        self.server = subprocess.Popen([*args, *more], stdout=subprocess.PIPE, stderr=self.log)
        ready = json.loads(self.server.stdout.readline() or "{}")
        if "url" not in ready:
            raise Broken(f"the server did not start: {self.words()}")
        self.url, self.key = ready["url"], ready["api_key"]
        self.host, self.port = urllib.parse.urlsplit(self.url).hostname, urllib.parse.urlsplit(self.url).port
        self.lock, self.loading, self.count, self.keys = threading.Lock(), threading.Lock(), 0, {}
        # A file of the operator's, beside the server's: no sandbox may ever read or change it.
        self.bait = self.dir / "bait"
        self.bait_text = "bait-" + base64.b32encode(os.urandom(10)).decode().lower()
        self.bait.write_text(self.bait_text)
        # Whoever gets at it may have it: no attack is held by permissions of the host's only. Nothing else may appear there.
        self.dir.chmod(0o755)
        self.bait.chmod(0o666)
        self.loaded = False
        if level != "container":
            self.image()
        self.before = host_facts()

    def words(self):
        self.log.flush()
        return (self.dir / "log").read_text(errors="replace")[-3000:]

    def image(self):
        """The name of an image with layers, which the first call loads."""
        with self.loading:
            if not self.loaded:
                self.load_image()
                self.loaded = True
        return "default"

    def load_image(self):
        tree = CACHE / "debian-minimal"
        if not tree.is_dir():
            new = f"{tree}.{os.getpid()}"
            subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--include=procps,perl",
                            "--customize-hook=mkdir -p $1/home/user", "bookworm", new], check=True)
            os.rename(new, tree)
        tar = subprocess.Popen(["tar", "-C", tree, "-c", "."], stdout=subprocess.PIPE)
        env = {**os.environ, "ATOLL_URL": self.url, "ATOLL_API_KEY": self.key}
        subprocess.run([ATOLL, "image", "import", "-", "default"], stdin=tar.stdout, env=env, check=True,
                       stdout=subprocess.DEVNULL)

    def end(self):
        self.server.send_signal(signal.SIGTERM)
        try:
            code = self.server.wait(PATIENCE)
        finally:
            self.log.close()
        shutil.rmtree(self.dir)
        return code

    # --- requests ---

    def ask(self, method, path, body=None, key=..., headers=None, host=None):
        """Sends a request; `body` is sent as JSON unless it is bytes."""
        all_headers = {"host": host or f"{self.host}:{self.port}"}
        key = self.key if key is ... else key
        if key is not None:
            all_headers["authorization"] = f"Bearer {key}"
        if body is not None and not isinstance(body, bytes):
            body, all_headers["content-type"] = json.dumps(body).encode(), "application/json"
        all_headers |= headers or {}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, all_headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def ok(self, method, path, body=None, **more):
        answer = self.ask(method, path, body, **more)
        if not 200 <= answer.status < 300:
            raise Broken(f"{method} {path}: {answer!r}")
        return answer.json if answer.body else None

    def new_name(self, of="x"):
        with self.lock:
            self.count += 1
            return f"{of}-{self.count}-x"

    def new_key(self, scope):
        return self.ok("POST", "/v1/keys", {"name": self.new_name(scope), "scope": scope})

    def sandbox(self, key=..., **more):
        return self.ok("POST", "/v1/sandboxes", more, key=key)["id"]

    def delete(self, sandbox):
        self.ask("DELETE", f"/v1/sandboxes/{sandbox}")

    def run(self, sandbox, argv, key=..., **more):
        """Runs a command to its end: exit (None while it runs), standard output, standard error."""
        body = {"argv": argv, "wait_ms": 60_000, "timeout_ms": 120_000, **more}
        done = self.ok("POST", f"/v1/sandboxes/{sandbox}/execs", body, key=key)
        exec_ = done["exec"]
        since = time.monotonic()
        while exec_.get("exit") is None and time.monotonic() - since < PATIENCE:
            exec_ = self.ok("GET", f"/v1/sandboxes/{sandbox}/execs/{exec_['id']}?wait_ms=20000", key=key)
        streams = {"stdout": b"", "stderr": b""}
        for chunk in done.get("output") or self.output(sandbox, exec_["id"], key):
            data = chunk["data"].encode() if chunk["encoding"] != "base64" else base64.b64decode(chunk["data"])
            streams[chunk["stream"]] = streams.get(chunk["stream"], b"") + data
        return exec_.get("exit"), *(streams[name].decode(errors="replace") for name in ("stdout", "stderr"))

    def output(self, sandbox, exec_, key=...):
        answer = self.ask("GET", f"/v1/sandboxes/{sandbox}/execs/{exec_}/output", key=key)
        if answer.status != 200:
            return []
        answer = answer.json
        return answer.get("chunks", answer.get("items", [])) if isinstance(answer, dict) else answer

    def sh(self, sandbox, line, **more):
        return self.run(sandbox, ["sh", "-c", line], **more)[1]


def set_up_machines():
    """Sets up the kernel that virtual machines boot, which `scripts/install-deps` has fetched."""
    packages = sorted(CACHE.glob("linux-image-*.deb"))
    if not packages:
        raise Broken(f"no linux-image-*.deb in {CACHE} (scripts/install-deps fetches it)")
    subprocess.run([ATOLL, "setup", "microvm", "--package", packages[-1], "--microvm-dir", CACHE / "tested-machines"],
                   check=True, stdout=subprocess.DEVNULL)


def host_facts():
    """The settings and files of the host that no sandbox may change."""
    paths = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/kernel/panic",
             "/proc/sys/net/ipv4/ip_forward", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/pid_max", "/etc/passwd",
             "/etc/shadow", "/etc/hosts", "/etc/ld.so.preload"]
    facts = {}
    for path in paths:
        try:
            facts[path] = Path(path).read_bytes()
        except OSError:
            facts[path] = None
    facts["modules"] = {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()} \
        if Path("/proc/modules").exists() else set()
    return facts
