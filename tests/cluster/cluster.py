"""A PostgreSQL, servers that share it, each with a data directory of its own, and a bucket. The program is ATOLL_BIN."""

import json
import os
import pathlib
import pwd
import shutil
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

# Seconds that anything here may take at most, on a busy host.
DEADLINE = 120


def until(what, so, seconds=DEADLINE):
    """Waits until a function gives a true value; returns that value."""
    end = time.monotonic() + seconds
    while True:
        got = so()
        if got:
            return got
        assert time.monotonic() < end, f"waited too long: {what}"
        time.sleep(0.05)


class Postgres:
    """Debian's PostgreSQL, started here as the user that its package made."""

    def __init__(self, place, name="postgres"):
        versions = pathlib.Path("/usr/lib/postgresql").iterdir()
        self.programs = max(versions, key=lambda path: int(path.name)) / "bin"
        self.place = place / name
        self.place.mkdir()
        user = pwd.getpwnam("postgres")
        os.chown(self.place, user.pw_uid, user.pw_gid)
        self.process = None
        self.initialize()
        self.start()

    def initialize(self):
        self.command(
            "initdb", "-U", "atoll", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "-D", self.place / "data"
        ).check_returncode()

    @property
    def url(self):
        return f"postgres:///atoll?host={str(self.place).replace('/', '%2F')}&user=atoll"

    def command(self, program, *args):
        command = [self.programs / program, *args]
        return subprocess.run(command, user="postgres", group="postgres", extra_groups=[], cwd=self.place, capture_output=True)

    def start(self):
        command = [self.programs / "postgres", "-c", "listen_addresses=", "-c", "fsync=off", "-k", self.place, "-D", self.place / "data"]
        log = open(self.place.parent / "postgres.log", "ab")
        self.process = subprocess.Popen(
            command, user="postgres", group="postgres", extra_groups=[], cwd=self.place, stdout=log, stderr=log
        )
        until("PostgreSQL answers", lambda: self.command("pg_isready", "-h", self.place).returncode == 0)

    def create(self):
        self.command("createdb", "-h", self.place, "-U", "atoll", "atoll").check_returncode()
        return self

    def kill(self):
        """Kills the server at once; its other processes end when they notice."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Stops the server in its fast mode: every session ends."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def ask(self, sql):
        """The lines that a query returns."""
        done = self.command("psql", "-h", self.place, "-U", "atoll", "-At", "-c", sql, "atoll")
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().splitlines()


class Replica(Postgres):
    """A replica of a primary, which acknowledges only what this replica has, too."""

    def __init__(self, primary):
        self.primary = primary
        super().__init__(primary.place.parent, "replica")
        for setting in ("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"):
            primary.ask(setting)
        until("it follows", lambda: primary.ask("SELECT sync_state FROM pg_stat_replication") == ["sync"])

    def initialize(self):
        command = ["pg_basebackup", "-h", self.primary.place, "-U", "atoll", "-D", self.place / "data", "-R", "--no-sync", "-c", "fast"]
        self.command(*command).check_returncode()

    def promote(self):
        """Makes this replica the primary."""
        self.ask("SELECT pg_promote()")


class Bucket:
    """An S3 server with a bucket: moto, as `tests/objects/moto` starts it. Its objects are gone when it ends."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.endpoint, self.name = f"http://127.0.0.1:{self.port}", "s3://atoll/cluster"
        self.program = pathlib.Path(__file__).resolve().parents[1] / "objects" / "moto"
        command = [self.program, "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until("the bucket", self.made)

    @property
    def args(self):
        return ["--objects", self.name, "--objects-endpoint", self.endpoint]

    def made(self):
        try:
            return self.request("PUT", "")[0] == 200
        except OSError:
            return False

    def request(self, method, name, body=None):
        # The server wants a signature, but does not check it.
        signed = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=none"
        headers = {"Authorization": signed, "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(f"{self.endpoint}/atoll/{name}", method=method, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()

    def names(self):
        """Every object, by name."""
        _, text = self.request("GET", "?list-type=2&max-keys=1000")
        text = text.decode()
        assert "<IsTruncated>false" in text, "more than the test looks at"
        return sorted(re.findall("<Key>([^<]*)</Key>", text))

    def of(self, sandbox):
        """The objects of the copies of one sandbox, without its journal, which outlives it and may come at any time."""
        return [name for name in self.names() if "/kept/" in name and f"/{sandbox}/" in name]

    def journal_of(self, sandbox):
        return [name for name in self.names() if f"/trace/{sandbox}/" in name]

    def signal(self, which):
        """Sends a signal to the S3 server, which is a single process."""
        self.process.send_signal(which)

    def stop(self):
        self.signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Node:
    """One server."""

    def __init__(self, cluster, name, *args):
        self.cluster, self.name, self.args = cluster, name, args
        self.data = cluster.place / name
        self.log = cluster.place / f"{name}.log"
        self.listen, self.process = "127.0.0.1:0", None
        self.database, self.prefix = cluster.postgres.url, []
        self.objects_endpoint = cluster.bucket and cluster.bucket.endpoint
        # Fail points that the server arms when it starts: see ATOLL_FAILPOINTS.
        self.failpoints = ""

    def start(self):
        ready = self.cluster.place / f"{self.name}.ready"
        ready.unlink(missing_ok=True)
        command = [os.environ["ATOLL_BIN"], "serve", "--listen", self.listen, "--data-dir", self.data, "--ready-json"]
        command += ["--database", self.database, "--node-name", self.name, "--node-lease", self.cluster.lease]
        command += ["--node-label", f"node={self.name}", *self.args]
        environment = {**os.environ, "ATOLL_VAULT_KEY": self.cluster.vault_key, "ATOLL_FAILPOINTS": self.failpoints}
        if self.cluster.bucket:
            command += ["--objects", self.cluster.bucket.name, "--objects-endpoint", self.objects_endpoint]
            environment |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        with open(ready, "wb") as out, open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.prefix, *command], stdout=out, stderr=log, env=environment)
        while not ready.read_bytes().endswith(b"\n"):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.05)
        told = json.loads(ready.read_text().splitlines()[0])
        self.url, self.listen = told["url"], told["url"].removeprefix("http://")
        self.cluster.key = told["api_key"] or self.cluster.key
        return self

    def signal(self, which):
        self.process.send_signal(which)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self.process.wait()

    def raw(self, method, path, body=None, key=None, headers=None, timeout=60):
        """Sends a request; returns the status, headers and body of the answer, undecoded."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {key or self.cluster.key}", "Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, method=method, data=data, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def call(self, method, path, body=None, **more):
        """Like `raw`, but returns the status and the decoded JSON."""
        status, _, text = self.raw(method, path, body, **more)
        return status, json.loads(text) if text else None

    def ok(self, method, path, body=None, **more):
        """The answer to a request that must succeed."""
        status, answer = self.call(method, path, body, **more)
        assert status < 300, (status, answer)
        return answer

    def make(self, **spec):
        """Makes a sandbox on this node, however busy it is.

        A node that refuses learns within a second that it may take sandboxes again."""

        def made():
            status, answer = self.call("POST", "/v1/sandboxes", {"node_labels": {"node": self.name}, **spec})
            assert status < 300 or answer["code"] == "node_unavailable", (status, answer)
            return answer if status < 300 else None

        return until(f"{self.name} makes a sandbox", made)

    def cli(self, *args, input=None, check=True):
        """Runs Atoll's own client."""
        environment = {**os.environ, "ATOLL_URL": self.url, "ATOLL_API_KEY": self.cluster.key}
        done = subprocess.run([os.environ["ATOLL_BIN"], *args], env=environment, input=input, capture_output=True, timeout=DEADLINE)
        assert not check or done.returncode == 0, done
        return done

    def cgroups(self):
        """The cgroups of the isolation levels that exist on this node."""
        installation = (self.data / "installation").read_text().strip()
        roots = [pathlib.Path("/sys/fs/cgroup/unified"), pathlib.Path("/sys/fs/cgroup")]
        root = next(root for root in roots if (root / "cgroup.controllers").exists())
        return [path for path in root.glob(f"atoll-{installation}*") if path.is_dir()]

    def stands_still(self):
        """Whether no process of the node's sandboxes can run."""
        fields = [path.joinpath("cgroup.events").read_text() for path in self.cgroups()]
        return all("frozen 1" in text or "populated 0" in text for text in fields)

    def freeze(self):
        """Freezes all sandboxes of the node."""
        for path in self.cgroups():
            path.joinpath("cgroup.freeze").write_text("1")

    def child_of_the_server(self):
        """A process in a sandbox's cgroup that still runs the server's program: it has not executed its own yet."""
        pids = [pid for path in self.cgroups() for file in path.glob("**/cgroup.procs") for pid in file.read_text().split()]
        program = os.path.realpath(os.environ["ATOLL_BIN"])
        return next((pid for pid in pids if os.path.realpath(f"/proc/{pid}/exe") == program), None)


class Cluster:
    """Three nodes, unless the caller names others."""

    def __init__(self, *names, objects=False):
        self.bucket = Bucket() if objects else None
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="atoll-cluster-", dir="/var/tmp"))
        self.place.chmod(0o755)
        self.vault_key, self.key = os.urandom(32).hex(), None
        self.postgres = Postgres(self.place).create()
        self.lease = "6s"
        self.nodes = [Node(self, name) for name in names or ("a", "b", "c")]

    def __enter__(self):
        for node in self.nodes:
            node.start()
        until("all know each other", lambda: all(len(node.ok("GET", "/v1/nodes")["items"]) == len(self.nodes) for node in self.nodes))
        return self

    def node_of(self, sandbox):
        """The name of the node that has a sandbox, as the database says."""
        sql = f"SELECT n.name FROM sandboxes s JOIN nodes n ON n.id = s.node WHERE s.id = '{sandbox}' OR s.name = '{sandbox}'"
        return (self.postgres.ask(sql) or [None])[0]

    def __exit__(self, kind, *_):
        if self.postgres.process.poll() is not None:
            self.postgres.start()
        if kind:
            for node in self.nodes:
                print(f"--- {node.name}:", node.log.read_text()[-4000:], sep="\n")
        alive = [node for node in self.nodes if node.process and node.process.poll() is None]
        for node in alive:
            node.signal(signal.SIGCONT)
        for node in alive[:1]:
            node.cli("rm", "--all", "--yes", check=False)
        left = []
        for node in self.nodes:
            node.stop()
            doctor = [os.environ["ATOLL_BIN"], "doctor", "--leaks", "--data-dir", node.data, "--database", self.postgres.url]
            leaks = subprocess.run(doctor, capture_output=True, text=True)
            if leaks.returncode:
                left.append((node.name, leaks.stdout, leaks.stderr))
                purge = [os.environ["ATOLL_BIN"], "purge", "--data-dir", node.data, "--yes"]
                purged = subprocess.run(purge, capture_output=True, text=True)
                if purged.returncode:
                    left.append((node.name, "purge", purged.stdout, purged.stderr))
        self.postgres.stop()
        if self.bucket:
            self.bucket.stop()
        shutil.rmtree(self.place)
        if kind and left:
            print("left behind:", left)
        assert kind or not left, left
