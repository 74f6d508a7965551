"""Runs Python that is sent to it, one piece after the other, and keeps what each leaves: the interpreter of a context.

Requests are lines of JSON on the standard input: {"id", "code", "envs"}. What happens is told in lines of JSON on what
was the standard output; the code's own output, and that of its children, comes through pipes and is told as such.
"""

import builtins
import json
import linecache
import os
import sys
import threading
import traceback

CHUNK = 32768
requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
lock = threading.Lock()
current = None


def tell(**frame):
    with lock:
        answers.write(json.dumps({"id": current, **frame}) + "\n")
        answers.flush()


class Stream:
    """One of the standard streams: a pipe that a thread reads."""

    def __init__(self, kind, fd):
        self.kind = kind
        reading, writing = os.pipe()
        os.dup2(writing, fd)
        os.close(writing)
        self.reading = reading
        self.mark = b""
        self.passed = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        held = b""
        while True:
            data = held + os.read(self.reading, CHUNK)
            held = b""
            if self.mark and self.mark in data:
                before, data = data.split(self.mark, 1)
                self.text(before)
                self.mark = b""
                self.passed.set()
            # The first bytes of a mark or of a character wait for the rest of it.
            if self.mark:
                for size in range(min(len(self.mark) - 1, len(data)), 0, -1):
                    if data.endswith(self.mark[:size]):
                        data, held = data[:-size], data[-size:]
                        break
            if not held:
                for size in range(1, min(4, len(data)) + 1):
                    byte = data[-size]
                    if byte >= 0xC0:
                        if size < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4):
                            data, held = data[:-size], data[-size:]
                        break
                    if byte < 0x80:
                        break
            self.text(data)

    def text(self, data):
        if data:
            tell(type=self.kind, text=data.decode("utf-8", "replace"))

    def drain(self, fd):
        """Waits until everything that was written so far is told."""
        self.passed.clear()
        mark = b"\x00" + os.urandom(16) + b"\x00"
        self.mark = mark
        os.write(fd, mark)
        self.passed.wait(5)


def execute(code, scope):
    linecache.cache["<code>"] = (len(code), None, code.splitlines(True), "<code>")
    exec(compile(code, "<code>", "exec"), scope)


def main():
    global current
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out, err = Stream("stdout", 1), Stream("stderr", 2)
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
    scope = {"__name__": "__main__", "__builtins__": builtins}
    while True:
        try:
            line = requests.readline()
        except KeyboardInterrupt:
            continue
        if not line:
            return
        request = json.loads(line)
        current = request["id"]
        before = dict(os.environ)
        os.environ.update(request.get("envs") or {})
        try:
            try:
                execute(request["code"], scope)
            except BaseException as error:
                trace = error.__traceback__
                while trace and trace.tb_frame.f_code.co_filename != "<code>":
                    trace = trace.tb_next
                text = "".join(traceback.format_exception(type(error), error, trace))
                failure = {"name": type(error).__name__, "value": str(error), "traceback": text}
            else:
                failure = None
            for name in [name for name in os.environ if name not in before]:
                if name in (request.get("envs") or {}):
                    del os.environ[name]
            os.environ.update({name: before[name] for name in request.get("envs") or {} if name in before})
            for stream, fd, own in ((sys.stdout, 1, out), (sys.stderr, 2, err)):
                try:
                    stream.flush()
                except (OSError, ValueError):
                    pass
                own.drain(fd)
            if failure:
                tell(type="error", **failure)
        except KeyboardInterrupt:
            pass
        tell(type="done")


main()
