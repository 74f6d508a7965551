"""A proxy before PostgreSQL that counts what travels, and can cut its clients off."""

import socket
import threading
import time


class Proxy:
    """Clients connect to `url`."""

    def __init__(self, postgres, name):
        self.dir = postgres.place / f"proxy-{name}"
        self.dir.mkdir()
        self.sent = self.received = 0
        # Seconds that each piece takes.
        self.delay = 0
        self.open = threading.Event()
        self.open.set()
        self.real = str(postgres.place / ".s.PGSQL.5432")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.dir / ".s.PGSQL.5432"))
        self.listener.listen(64)
        self.url = f"postgres:///atoll?host={str(self.dir).replace('/', '%2F')}&user=atoll"
        threading.Thread(target=self.accept, daemon=True).start()

    def cut(self):
        """From now on nothing comes through, as on a network that swallows everything."""
        self.open.clear()

    def mend(self):
        self.open.set()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        self.open.wait()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.real)
        except OSError:
            client.close()
            return
        threading.Thread(target=self.copy, args=(server, client, "received"), daemon=True).start()
        self.copy(client, server, "sent")

    def copy(self, source, target, what):
        try:
            while data := source.recv(65536):
                self.open.wait()
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
