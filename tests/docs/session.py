"""The session of one page: a server with a data directory of its own, and the bash that runs the page's commands."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from page import Wrong

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
ATOLL = os.environ.get("ATOLL_BIN", str(REPOSITORY / "target/debug/atoll"))
# Seconds that a page may take at most. No result depends on the time that a step takes.
PATIENCE = 900


def place():
    return os.environ.get("TMPDIR", "/var/tmp")


class Session:
    def __init__(self, page, common):
        self.page, self.common = page, common
        self.setup = HERE / "pages" / (page.path.stem + ".sh")
        said = self.setup.read_text() if self.setup.exists() else ""
        self.serve = " ".join(re.findall(r"^# serve: (.*)$", said, re.M)).split()
        self.replacements = re.findall(r"^# replace: (.+) = (.*)$", said, re.M)

    def run(self):
        self.dir = Path(tempfile.mkdtemp(prefix="atoll-docs.", dir=place()))
        try:
            self.work()
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)

    def work(self):
        """Starts the server, runs the page, and ends both. Anything that they leave on the host is an error as well."""
        (self.dir / "outputs").mkdir()
        (self.dir / "bin").mkdir()
        (self.dir / "bin" / "atoll").symlink_to(ATOLL)
        shutil.copytree(self.common, self.dir / "here", symlinks=True)
        server = self.start()
        try:
            self.commands()
            self.page.check(self.dir / "outputs")
        except Wrong as wrong:
            raise Wrong(f"{wrong}\n  the server's last words:\n{tail(self.dir / 'log', 8)}") from None
        finally:
            self.stop(server)
        self.leaks()

    def start(self):
        if "--microvm-dir" in self.serve:
            self.machines(self.serve[self.serve.index("--microvm-dir") + 1])
        args = [ATOLL, "serve", "--listen", "127.0.0.1:0", "--data-dir", self.dir / "data", "--ready-json", "--log", "warn"]
        args += os.environ.get("SERVE_ARGS", "").split()
        args += [word.replace("$HERE", str(self.dir / "here")) for word in self.serve]
        with open(self.dir / "log", "wb") as log:
            environment = {**os.environ, "NO_COLOR": "1"}
            if "HUB_CA" in os.environ:
                environment["SSL_CERT_FILE"] = os.environ["HUB_CA"]
            server = subprocess.Popen(args, env=environment, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        ready = json.loads(server.stdout.readline() or "{}")
        if "url" not in ready:
            server.kill()
            server.wait()
            raise Wrong(f"  the server of {self.page.name} did not start:\n{tail(self.dir / 'log', 20)}")
        # A server with TLS also takes plain HTTP from this host, so that clients need not trust its certificate.
        url = ready["url"].replace("https://", "http://")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ATOLL_", "BASH_"))},
            "ATOLL_URL": url, "ATOLL_API_KEY": ready["api_key"], "HOME": str(self.dir / "here"),
            "PATH": f"{self.dir / 'bin'}:{os.environ['PATH']}", "DOCS": str(HERE), "REPOSITORY": str(REPOSITORY),
            "OUTPUTS": str(self.dir / "outputs"), "DATA": str(self.dir / "data"), "XDG_CACHE_HOME": cache(),
            "port": url.rsplit(":", 1)[1],
        }
        return server

    def machines(self, directory):
        """Sets up the kernel of virtual machines, which `scripts/install-deps` has fetched."""
        package = sorted(Path("/var/cache/atoll-tests").glob("linux-image-*.deb"))[-1]
        subprocess.run([ATOLL, "setup", "microvm", "--package", package, "--microvm-dir", directory], check=True,
                       stdout=subprocess.DEVNULL, timeout=PATIENCE)

    def commands(self):
        """Runs the page's script in a process group of its own, and kills what it left in the background."""
        sources = f"PS4='+${{BASH_SOURCE##*/}}:$LINENO: '; source {HERE / 'prelude.sh'}" + (f"; source {self.setup}" if self.setup.exists() else "")
        script = self.dir / self.page.path.name
        script.write_text(self.page.script(sources, self.replace))
        with open(self.dir / "trace", "wb") as trace, open(self.dir / "output", "wb") as output:
            os.set_inheritable(trace.fileno(), True)
            environment = {**self.environment, "BASH_XTRACEFD": str(trace.fileno())}
            bash = subprocess.Popen(["bash", "-euxo", "pipefail", script], cwd=self.dir / "here", env=environment,
                                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[trace.fileno()],
                                    start_new_session=True)
            try:
                code = bash.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                code = f"nothing for {PATIENCE} s"
            finally:
                end_group(bash)
        if code != 0:
            raise Wrong(self.failure(code))

    def replace(self, text):
        for word, by in self.replacements:
            text = text.replace(word, by)
        return text

    def failure(self, code):
        """Describes a failure: the last line of the page that bash traced, and the last output."""
        trace = (self.dir / "trace").read_text(errors="replace")
        name = re.escape(self.page.path.name)
        line = (re.findall(rf"^\++{name}:(\d+): ", trace, re.M) or ["1"])[-1]
        files = [self.dir / "output", *sorted((self.dir / "outputs").iterdir(), key=lambda file: file.stat().st_mtime)[-1:]]
        said = "\n".join(tail(file, 12) for file in files)
        return f"  {self.page.name}:{line}: ended with {code}\n{tail(self.dir / 'trace', 3)}\n  what was written last:\n{said}"

    def stop(self, server):
        try:
            subprocess.run([ATOLL, "rm", "--all", "--yes"], env=self.environment, timeout=PATIENCE,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            server.send_signal(signal.SIGTERM)
            server.wait(PATIENCE)
        finally:
            end_group(server)
            server.stdout.close()

    def leaks(self):
        look = [ATOLL, "doctor", "--leaks", "--data-dir", self.dir / "data"]
        found = subprocess.run(look, capture_output=True, text=True, timeout=PATIENCE)
        if found.returncode != 0:
            subprocess.run([*look, "--remove"], stdout=subprocess.DEVNULL, timeout=PATIENCE)
            raise Wrong(f"  {self.page.name}: left on this host:\n{found.stdout}{found.stderr}")


def cache():
    """The directory of the vendors' clients, which pages would not find, because their HOME is another."""
    return os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def tail(file, count):
    text = file.read_text(errors="replace") if file.exists() else ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-count:])
