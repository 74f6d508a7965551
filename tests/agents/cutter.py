"""A proxy to the server that cuts connections after a number of bytes of answers, also in the middle of an event."""

import socket
import threading
from urllib.parse import urlsplit


class Cutter:
    """Cuts the first few connections whose answer is longer than `after` bytes."""

    def __init__(self, url, after=700, most=3):
        at = urlsplit(url)
        self.there, self.after, self.most, self.cuts = (at.hostname, at.port), after, most, 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, socket.create_connection(self.there) as server:
            threading.Thread(target=self.forward, args=(client, server), daemon=True).start()
            passed = 0
            while piece := server.recv(512):
                passed += len(piece)
                if passed > self.after:
                    with self.lock:
                        if self.cuts < self.most:
                            self.cuts += 1
                            # Closing alone sends nothing to the client while another thread reads from the socket.
                            client.shutdown(socket.SHUT_RDWR)
                            return
                try:
                    client.sendall(piece)
                except OSError:
                    return

    @staticmethod
    def forward(source, sink):
        try:
            while piece := source.recv(65536):
                sink.sendall(piece)
        except OSError:
            pass
