"""A server for one test, which may kill it and start it again. The program is ATOLL_BIN."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time


class OwnServer:
    """A server with a data directory that is deleted with it, and an API key for a dialect."""

    def __init__(self, dialect):
        self.dialect, self.process, self.listen = dialect, None, "127.0.0.1:0"
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="atoll-own-", dir="/var/tmp"))

    def __enter__(self):
        self.start()
        command = [os.environ["ATOLL_BIN"], "key", "create", "own", "--scope", "admin", "--for", self.dialect]
        done = subprocess.run(command, env=self.environment(), check=True, capture_output=True, text=True)
        self.key = done.stdout.strip()
        return self

    def environment(self):
        return {**os.environ, "ATOLL_URL": self.url, "ATOLL_API_KEY": self.admin}

    def start(self, failpoints=""):
        ready = self.place / "ready"
        ready.unlink(missing_ok=True)
        command = [os.environ["ATOLL_BIN"], "serve", "--listen", self.listen, "--data-dir", self.place / "data", "--ready-json"]
        with open(ready, "wb") as out, open(self.place / "log", "ab") as log:
            armed = {**os.environ, "ATOLL_FAILPOINTS": failpoints} if failpoints else None
            self.process = subprocess.Popen(command, stdout=out, stderr=log, env=armed)
        while not ready.read_bytes().endswith(b"\n"):
            assert self.process.poll() is None, (self.place / "log").read_text()[-2000:]
            time.sleep(0.05)
        told = json.loads(ready.read_text().splitlines()[0])
        self.url = told["url"]
        # The next server listens on the same address.
        self.listen = self.url.removeprefix("http://")
        # Only the first server prints the API key.
        self.admin = told.get("api_key") or self.admin

    def kill_and_start(self, failpoints=""):
        """Kills the server and starts the next one, which is killed when it reaches one of the `failpoints`."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.start(failpoints)

    def __exit__(self, *_):
        atoll = os.environ["ATOLL_BIN"]
        subprocess.run([atoll, "rm", "--all", "--yes"], env=self.environment(), capture_output=True)
        self.process.terminate()
        self.process.wait()
        leaks = subprocess.run([atoll, "doctor", "--leaks", "--data-dir", self.place / "data"], capture_output=True, text=True)
        if leaks.returncode:
            remove = [atoll, "doctor", "--leaks", "--remove", "--data-dir", self.place / "data"]
            subprocess.run(remove, capture_output=True)
        shutil.rmtree(self.place, ignore_errors=True)
        assert leaks.returncode == 0, leaks.stdout
