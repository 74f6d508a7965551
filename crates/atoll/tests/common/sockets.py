"""A WebSocket server that sends everything back, and a server of events. Prints their ports.

/events sends an event, and the next one only when somebody has asked for /events/next: a client that gets both has
got the first while the answer was still open.
"""

import asyncio, os, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import websockets

go = threading.Event()


class Events(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(200)
        if self.path == "/events/next":
            self.send_header("Content-Length", "0")
            self.end_headers()
            return go.set()
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        go.clear()
        for name in (b"first", b"second"):
            event = b"data: %s\n\n" % name
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            if name == b"first" and not go.wait(60):
                return
        self.wfile.write(b"0\r\n\r\n")


async def echo(socket, *_path):
    async for message in socket:
        await socket.send(message)


async def main():
    events = ThreadingHTTPServer(("127.0.0.1", 0), Events)
    threading.Thread(target=events.serve_forever, daemon=True).start()
    async with websockets.serve(echo, "127.0.0.1", 0, max_size=None) as server:
        print(server.sockets[0].getsockname()[1], events.server_port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)


asyncio.run(main())
