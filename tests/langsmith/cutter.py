"""A TCP proxy that cuts connections at random places."""

import random
import socket
import struct
import threading
from urllib.parse import urlsplit


class Cutter:
    """Listens on loopback and forwards connections to `url`. Cuts `cuts` connections, each after a random number of
    bytes from the server, then cuts no more. Every second cut is a reset."""

    def __init__(self, url, cuts, least, most, seed=1):
        target = urlsplit(url)
        self.target = (target.hostname, target.port)
        self.cuts_left, self.cut, self.least, self.most = cuts, 0, least, most
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        server = socket.create_connection(self.target)
        threading.Thread(target=self.pump, args=(client, server), daemon=True).start()
        left = self.random.randint(self.least, self.most)
        while True:
            try:
                data = server.recv(65536)
            except OSError:
                break
            if not data:
                break
            with self.lock:
                cutting = self.cuts_left > 0 and len(data) >= left
                if cutting:
                    self.cuts_left -= 1
                    self.cut += 1
            try:
                client.sendall(data[:left] if cutting else data)
            except OSError:
                break
            if cutting:
                if self.cut % 2:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                break
            left -= len(data)
        for end in (client, server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def pump(self, source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass

    def close(self):
        self.listener.close()
