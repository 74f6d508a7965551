"""A TCP proxy that cuts connections at random places, in requests and in answers."""

import random
import socket
import struct
import threading
from urllib.parse import urlsplit


class Cutter:
    """Listens on loopback and forwards connections to `url`. Cuts `cuts` connections, each after a random number of
    bytes in one direction, then cuts no more. Every second cut is a reset."""

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
            server = socket.create_connection(self.target)
            # The number counts the bytes of one direction: requests are short, answers long.
            back = self.random.random() < 0.7
            left = [self.random.randint(self.least, self.most)] if back else [self.random.randint(1, 600)]
            for source, sink, counted in ((server, client, back), (client, server, not back)):
                threading.Thread(target=self.pump, args=(source, sink, client, left if counted else None), daemon=True).start()

    def pump(self, source, sink, client, left):
        """Forwards bytes until the source ends, or until this connection is cut."""
        while True:
            try:
                data = source.recv(65536)
                if not data:
                    break
                if left is not None and len(data) >= left[0] and self.take():
                    sink.sendall(data[: left[0]])
                    if self.cut % 2:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                sink.sendall(data)
                if left is not None:
                    left[0] -= min(len(data), left[0] - 1)
            except OSError:
                break
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        if left is not None:
            for end in (source, sink):
                end.close()

    def take(self):
        with self.lock:
            if self.cuts_left == 0:
                return False
            self.cuts_left -= 1
            self.cut += 1
            return True

    def close(self):
        self.listener.close()


if __name__ == "__main__":
    # For tests in other languages: prints its address, then, for each line of input, the number of cuts so far.
    import sys

    url, cuts, least, most, seed = sys.argv[1], *map(int, sys.argv[2:6])
    cutter = Cutter(url, cuts, least, most, seed)
    print(cutter.url, flush=True)
    for _ in sys.stdin:
        print(cutter.cut, flush=True)
