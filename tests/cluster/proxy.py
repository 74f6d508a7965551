"""Proxies that count what travels, and can cut their clients off."""

import re
import socket
import threading
import time

# The answer of an overloaded object store.
REFUSAL = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy:
    """Passes connections to `listener` on to a server."""

    def __init__(self, listener):
        self.sent = self.received = 0
        # Seconds to wait before each piece is passed on.
        self.delay = 0
        # If set, the proxy answers every request with this and does not pass it on.
        self.refusal = None
        self.open = threading.Event()
        self.open.set()
        self.listener = listener
        listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def connect(self):
        """Connects to the server behind the proxy."""
        raise NotImplementedError

    def before(self, data, what):
        """Called with each piece before it is passed on."""

    def cut(self):
        """Passes nothing on from now, as a network that drops all packets."""
        self.open.clear()

    def mend(self):
        self.open.set()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        self.open.wait()
        try:
            server = self.connect()
        except OSError:
            client.close()
            return
        threading.Thread(target=self.copy, args=(server, client, "received"), daemon=True).start()
        self.copy(client, server, "sent")

    def copy(self, source, target, what):
        try:
            while data := source.recv(65536):
                self.open.wait()
                self.before(data, what)
                if self.refusal and what == "sent":
                    source.sendall(self.refusal)
                    break
                if self.delay:
                    time.sleep(self.delay)
                setattr(self, what, getattr(self, what) + len(data))
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class PostgresProxy(Proxy):
    """A proxy in front of PostgreSQL: clients connect to `url`."""

    def __init__(self, postgres, name):
        place = postgres.place / f"proxy-{name}"
        place.mkdir()
        # A test may put another server here later.
        self.postgres = postgres
        self.url = f"postgres:///atoll?host={str(place).replace('/', '%2F')}&user=atoll"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(place / ".s.PGSQL.5432"))
        super().__init__(listener)

    def connect(self):
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self.postgres.place / ".s.PGSQL.5432"))
        return server


class BucketProxy(Proxy):
    """A proxy in front of an object store: clients connect to `endpoint`."""

    def __init__(self, bucket, address):
        self.bucket = bucket
        listener = socket.socket()
        listener.bind((address, 0))
        self.endpoint = f"http://{address}:{listener.getsockname()[1]}"
        super().__init__(listener)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.bucket.port))


class WithholdingProxy(BucketProxy):
    """The same, but what is asked about the copies of some sandboxes is not passed on until they are let go."""

    def __init__(self, bucket, address):
        # The sandboxes, and those of them about which something was asked meanwhile.
        self.withheld, self.held = frozenset(), set()
        self.changed = threading.Condition()
        super().__init__(bucket, address)

    def withhold(self, sandboxes):
        with self.changed:
            self.withheld, self.held = frozenset(sandboxes), set()
            self.changed.notify_all()

    def before(self, data, what):
        if what == "sent":
            # Beside the parts of a copy there is the sandbox's journal, which has nothing to do with the places of copies.
            asked = {name.decode() for name in re.findall(rb"/kept/[^/ ]+/([^/ ]+)/", data)}
            with self.changed:
                while asked & self.withheld:
                    self.held |= asked & self.withheld
                    self.changed.wait()
