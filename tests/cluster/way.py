"""A TCP relay to a server, for tests that hold or choose its connections."""

import socket
import threading


class Way:
    """Listens on loopback. Each client is `served` by a thread of its own, until the way is closed."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()


def join(client, server):
    """Passes bytes on in both directions until one side ends."""
    threading.Thread(target=copy, args=(server, client), daemon=True).start()
    copy(client, server)


def copy(source, target):
    try:
        while piece := source.recv(65536):
            target.sendall(piece)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
