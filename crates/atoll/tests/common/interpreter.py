"""Speaks the protocol of a code interpreter, with kernels that know Python and little else: python3 interpreter.py [foreign].

A kernel is a child that is sent code and says events. `foreign`: without what only our own images can.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KERNEL = r'''
import ast, io, json, os, signal, sys, traceback
out = os.fdopen(os.dup(1), "wb", 0)
def raw(line): out.write(line if isinstance(line, bytes) else line.encode() + b"\n")
def say(**event): raw(json.dumps(event))
class Stream(io.TextIOBase):
    def __init__(self, kind): self.kind = kind
    def write(self, text): say(type=self.kind, text=text, timestamp=""); return len(text)
sys.stdout, sys.stderr = Stream("stdout"), Stream("stderr")
def show(**fields): say(type="result", is_main_result=False, **fields)
names = {"raw": raw, "show": show}
count = 0
running = False
def stop(*_):
    # Once for each cell: an interruption must not meet another one that is being told of.
    global running
    if running:
        running = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, stop)
for line in sys.__stdin__:
    told = json.loads(line); count += 1
    before = dict(os.environ); os.environ.update(told["env_vars"])
    say(type="number_of_executions", execution_count=count)
    try:
        running = True
        tree = ast.parse(told["code"])
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            if value is not None: say(type="result", is_main_result=True, text=repr(value))
        running = False
    except BaseException as error:
        running = False
        say(type="error", name=type(error).__name__, value=str(error), traceback=traceback.format_exc())
    os.environ.clear(); os.environ.update(before)
    say(type="end_of_execution")
'''


class Context:
    def __init__(self, language, cwd):
        self.view = {"id": str(uuid.uuid4()), "language": language, "cwd": cwd}
        self.turn = threading.Lock()
        self.start()

    def start(self):
        self.kernel = subprocess.Popen(
            [sys.executable, "-u", "-c", KERNEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self.view["cwd"]
        )

    def end(self):
        self.kernel.kill()
        self.kernel.wait()

    def interrupt(self):
        self.kernel.send_signal(signal.SIGINT)


CONTEXTS = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments):
        pass

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def context(self, id):
        if id not in CONTEXTS:
            self.answer(404, b"Context " + id.encode() + b" not found")
        return CONTEXTS.get(id)

    def do_DELETE(self):
        context = self.context(self.path.split("/")[2])
        if context:
            del CONTEXTS[context.view["id"]]
            context.end()
            self.answer(204)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        told = json.loads(body) if body else {}
        parts = self.path.split("/")
        if self.path == "/execute":
            self.execute(told)
        elif self.path == "/contexts":
            if told["language"] not in ("python", "py"):
                return self.answer(400, b"Unknown language")
            context = Context("python", told.get("cwd", "/tmp"))
            CONTEXTS[context.view["id"]] = context
            self.answer(200, json.dumps(context.view).encode())
        elif parts[3] == "interrupt" and "foreign" in sys.argv:
            self.answer(404)
        elif context := self.context(parts[2]):
            if parts[3] == "interrupt":
                context.interrupt()
            else:
                context.end()
                context.start()
            self.answer(204)

    def execute(self, told):
        context = self.context(told["context_id"])
        if context is None:
            return
        with context.turn:
            if self.is_gone():
                return
            kernel = context.kernel
            kernel.stdin.write(json.dumps(told).encode() + b"\n")
            kernel.stdin.flush()
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.chunk(b'{"type": "keepalive"}\n')
            self.relay(context, kernel)

    def is_gone(self):
        """Whether the client has closed the connection."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        return bool(ready) and not self.connection.recv(1, socket.MSG_PEEK)

    def relay(self, context, kernel):
        """Passes on what a kernel says of a cell. One whose client goes is interrupted."""
        here, partial, last = True, b"", b'"end_of_execution"'
        while True:
            ready, _, _ = select.select([kernel.stdout] + [self.connection] * here, [], [], 1)
            here = here and not self.is_gone()
            if not here:
                context.interrupt()
            if kernel.stdout not in ready:
                continue
            piece = os.read(kernel.stdout.fileno(), 1 << 16)
            partial = (partial + piece)[-1000:] if last not in piece else piece
            ended = not piece or last in partial
            if here:
                try:
                    self.chunk(piece or b'{"type": "unexpected_end_of_execution"}\n')
                    if ended:
                        self.chunk(b"")
                except OSError:
                    here = False
            if ended:
                self.close_connection = True
                return

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 49999), Handler).serve_forever()
