# Sends one request to the code interpreter of this sandbox, and writes the answer as lines of JSON.
#
# It runs as an exec: the server that started it keeps its output, also when no client reads it or the client goes away.
# An environment variable has the request, the arguments are the code. The protocol is the one of E2B's code interpreter
# (HTTP on port 49999), so any image whose interpreter speaks that will do. Its exit codes are told apart in
# `core::code`.
import fcntl
import http.client
import json
import os
import select
import signal
import socket
import sys
import time

OK, FAILED, INTERRUPTED, TIMED_OUT, MISSING, REFUSED, BROKEN = 0, 40, 41, 42, 43, 44, 45
# How often a cell that is to end is interrupted before its interpreter is left to it, and the pause between.
TRIES = 5
AGAIN_SECONDS = 2
# The pause before another look at a process whose end cannot be waited for, and how soon a signal is seen in the others.
PAUSE_SECONDS = 0.02
LOOK_SECONDS = 0.1
# How far apart cells come to the interpreter that have waited for long.
APART_SECONDS = 5
# Of the flags of a process: it is a thread of the kernel (`include/linux/sched.h`).
PF_KTHREAD = 0x00200000
# An interpreter that has not answered a question about contexts by then will not: a kernel may take a minute to start.
ANSWER_SECONDS = 90
REQUEST = json.loads(os.environ["ATOLL_INTERPRETER"])


class End(Exception):
    """The request has come to its end."""

    def __init__(self, code, **said):
        super().__init__(code)
        self.code, self.said = code, said


def say(**event):
    sys.stdout.buffer.write(json.dumps(event).encode() + b"\n")
    sys.stdout.buffer.flush()


class Cell:
    """What the handler of signals has to know of the cell that runs."""

    def __init__(self):
        self.kernel = self.socket = self.why = None
        self.begun = False
        self.tries = 0

    def stop(self, number, _frame):
        """A signal: the cell is to end."""
        self.why = self.why or (TIMED_OUT if number == signal.SIGALRM else INTERRUPTED)
        self.tries += 1
        if self.begun and self.tries <= TRIES and self.interrupted():
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        elif self.socket is not None:
            # The interpreter interrupts a cell whose client closes the connection, and forgets one that has not begun.
            try:
                self.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def interrupted(self):
        """Whether the interpreter interrupts when it is asked to; then what the cell says of that is still read."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", REQUEST["port"], timeout=AGAIN_SECONDS)
            connection.request("POST", "/contexts/%s/interrupt" % self.kernel)
            return connection.getresponse().status == 204
        except (OSError, http.client.HTTPException):
            return False


CELL = Cell()


def connect(timeout=None):
    """A connection to the interpreter, which may be starting."""
    until = time.monotonic() + REQUEST["patience_ms"] / 1000
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", REQUEST["port"], timeout=timeout)
        try:
            connection.connect()
            return connection
        except OSError:
            if time.monotonic() >= until or CELL.why is not None:
                raise End(MISSING) from None
            time.sleep(0.1)


def ask(method, path, body=None):
    """Asks about contexts; gives the status and the text of the answer."""
    connection = connect(ANSWER_SECONDS)
    payload = None if body is None else json.dumps(body).encode()
    connection.request(method, path, payload, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read(1 << 20).decode(errors="replace")
    connection.close()
    return answer.status, text


def refused(status, text):
    """The interpreter does not do what it was asked for."""
    return End(REFUSED if status < 500 else BROKEN, text=text[:2000])


class Kernel:
    """Which of the interpreter's contexts this context is: kept in a file, so that it is found again."""

    def __init__(self):
        folder = "/tmp/.atoll-contexts-%d" % os.getuid()
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        about = os.lstat(folder)
        if about.st_uid != os.getuid() or about.st_mode & 0o170077 != 0o040000:
            raise End(BROKEN, text="%s is not a directory of this user alone" % folder)
        self.file = open(os.path.join(folder, REQUEST["context"]), "a+")

    def find(self):
        """The kernel's name, which is made if there is none. Who comes at the same time waits."""
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            self.file.seek(0)
            return self.file.read(200) or self.write(self.make())
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)

    def forget(self, name):
        """The interpreter does not know it any more."""
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.file.seek(0)
        if self.file.read(200) == name:
            self.write("")
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def write(self, name):
        self.file.truncate(0)
        self.file.write(name)
        self.file.flush()
        return name

    def drop(self):
        """Who removes the same context at the same time may have been faster."""
        try:
            os.unlink(self.file.name)
        except FileNotFoundError:
            pass

    def make(self):
        language, cwd = REQUEST["language"], REQUEST.get("cwd")
        body = {"language": language} if cwd is None else {"language": language, "cwd": cwd}
        status, text = ask("POST", "/contexts", body)
        if status not in (200, 201):
            raise refused(status, text)
        name = json.loads(text)["id"]
        if not isinstance(name, str) or not name.replace("-", "").replace("_", "").isalnum() or len(name) > 100:
            raise End(BROKEN, text="the interpreter gave a context no name")
        return name


def create():
    kernel = Kernel()
    try:
        kernel.find()
    except BaseException:
        kernel.drop()
        raise


def restart():
    kernel = Kernel()
    name = kernel.find()
    status, text = ask("POST", "/contexts/%s/restart" % name)
    if status == 404:
        kernel.forget(name)
        kernel.find()
    elif status >= 300:
        raise refused(status, text)


def remove():
    kernel = Kernel()
    kernel.file.seek(0)
    name = kernel.file.read(200)
    if name:
        status, text = ask("DELETE", "/contexts/%s" % name)
        if status >= 300 and status != 404:
            raise refused(status, text)
    kernel.drop()


def client(pid):
    """When a process began, its number, and whether it is the client of a cell of this context; nothing if it will not be."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/%d/environ" % pid, "rb") as file:
            entries = file.read(1 << 20).split(b"\0")
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            has_arguments = file.read(1) != b""
        found = [entry for entry in entries if entry.startswith(b"ATOLL_INTERPRETER=")]
        told = json.loads(found[0].partition(b"=")[2]) if found else None
        state, flags, born = fields[0], int(fields[6]), int(fields[19])
    except (OSError, ValueError, IndexError):
        # It has ended, or is none of this user's.
        return None
    if isinstance(told, dict) and (told.get("do"), told.get("context")) == ("run", REQUEST["context"]):
        return born, pid, True
    # A process that has not got its arguments yet may become an interpreter. Kernel threads and processes that ended
    # have none.
    return None if has_arguments or state in b"ZX" or flags & PF_KTHREAD else (born, pid, False)


def wait_turn():
    """Waits for the end of the cells before this one, whose clients were started first.

    An interpreter has a turn of its own, but cells that come to it at the same time may change places. Those that have waited
    for long come to it all the same, one after the other: what they wait for may be code that pretends to be a client.
    """
    own, until = client(os.getpid()), None
    while own is not None and CELL.why is None:
        others = [client(int(name)) for name in os.listdir("/proc") if name.isdigit()]
        before = [other for other in others if other is not None and other[:2] < own[:2]]
        if until is None:
            until = time.monotonic() + REQUEST["patience_ms"] / 1000 + ANSWER_SECONDS + len(before) * APART_SECONDS
        if not before or time.monotonic() >= until:
            return
        last = max(before)
        if last[2]:
            wait_end(last, until)
        else:
            time.sleep(PAUSE_SECONDS)


def wait_end(other, until):
    """Waits for the end of a client, a signal, or a moment."""
    try:
        process = os.pidfd_open(other[1])
    except (OSError, AttributeError):
        # It has ended, or this system or Python knows no such thing.
        time.sleep(PAUSE_SECONDS)
        return
    try:
        while CELL.why is None and client(other[1]) == other and time.monotonic() < until:
            if select.select([process], [], [], LOOK_SECONDS)[0]:
                return
    finally:
        os.close(process)


def begin(kernel, code):
    """The answer in which a cell tells what it does."""
    wait_turn()
    for is_last in (False, True):
        CELL.kernel = kernel.find()
        body = {"code": code, "context_id": CELL.kernel, "env_vars": REQUEST["env"]}
        connection = connect()
        CELL.socket = connection.sock
        if CELL.why is not None:
            raise End(CELL.why)
        connection.request("POST", "/execute", json.dumps(body).encode(), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status == 200:
            CELL.begun = True
            return answer
        text = answer.read(1 << 20).decode(errors="replace")
        if answer.status != 404 or is_last:
            raise refused(answer.status, text)
        # The interpreter was started anew: so is the context, without its content.
        kernel.forget(CELL.kernel)
        say(type="reset")


def run():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, CELL.stop)
    if REQUEST.get("timeout_ms"):
        signal.setitimer(signal.ITIMER_REAL, REQUEST["timeout_ms"] / 1000)
    relay(Kernel(), "".join(sys.argv[1:]))


def relay(kernel, code):
    """Writes what a cell tells, to its end."""
    count, failed, ended = None, False, False
    try:
        for line in begin(kernel, code):
            try:
                event = json.loads(line)
                kind = event["type"]
            except (ValueError, TypeError, KeyError, RecursionError):
                # The server, which reads this line, reports that it is malformed.
                kind = None
            if kind == "keepalive":
                continue
            if kind in ("end_of_execution", "unexpected_end_of_execution"):
                ended = kind == "end_of_execution"
                break
            if kind == "number_of_executions":
                count = event.get("execution_count")
            failed = failed or kind == "error"
            sys.stdout.buffer.write(line if line.endswith(b"\n") else line + b"\n")
            sys.stdout.buffer.flush()
    except (OSError, http.client.HTTPException):
        # The interpreter broke off, or was left.
        pass
    if CELL.why is not None and (failed or not ended):
        if CELL.begun and not failed:
            say(type="error", name="KeyboardInterrupt", value="", traceback="")
        raise End(CELL.why, execution_count=count)
    if not ended:
        raise End(BROKEN, execution_count=count, text="" if failed else "the interpreter broke off")
    raise End(FAILED if failed else OK, execution_count=count)


try:
    {"create": create, "restart": restart, "remove": remove, "run": run}[REQUEST["do"]]()
    code = OK
    say(type="end")
except End as end:
    code = CELL.why if CELL.why is not None and end.code == MISSING else end.code
    say(type="end", **end.said)
except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
    code = BROKEN
    say(type="end", text="%s: %s" % (type(error).__name__, error))
# The request has ended, whichever it was. Nothing more may be written, not even by the handler of a
# signal that comes now.
sys.stdout.buffer.flush()
os._exit(code)
