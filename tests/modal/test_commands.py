"""Commands: output, input, exit."""

import asyncio
import concurrent.futures

import modal
import pytest
from conftest import before, run, since


def test_large_output(box):
    code, output = run(box, "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x")
    assert (code, len(output)) == (0, 3_000_000)


def test_bytes(box):
    process = box.exec("printf", r"\377\000x", text=False)
    assert process.stdout.read() == b"\xff\x00x"


def test_lines_as_they_come(box):
    process = box.exec("sh", "-c", "echo one; read go; echo two", bufsize=1)
    lines = iter(process.stdout)
    assert next(lines) == "one\n"
    process.stdin.write(b"go\n")
    process.stdin.write_eof()
    process.stdin.drain()
    assert list(lines) == ["two\n"]
    assert process.wait() == 0


def test_input_in_pieces(box):
    process = box.exec("wc", "-c")
    for _ in range(5):
        process.stdin.write(b"x" * 100_000)
        process.stdin.drain()
    process.stdin.write_eof()
    process.stdin.drain()
    assert process.stdout.read().strip() == "500000"


def test_poll(box):
    process = box.exec("sh", "-c", "read go; exit 5")
    assert process.poll() is None
    process.stdin.write_eof()
    process.stdin.drain()
    assert process.wait() == 5


def test_signals_and_missing_programs(box):
    assert run(box, "sh", "-c", "kill -9 $$")[0] == 137
    missing = box.exec("no-such-program")
    assert (missing.stdout.read(), missing.stderr.read()) == ("", "exec: no-such-program: executable file not found\n")
    assert missing.wait() == 127
    assert run(box, "/etc/passwd")[0] == 126
    assert box.exec("/etc/passwd").stderr.read() == "exec: /etc/passwd: cannot be executed\n"


def test_timeout(box):
    process = box.exec("sleep", "60", timeout=1)
    assert process.wait() == -1


def test_terminal(box):
    process = box.exec("sh", "-c", "test -t 1 && echo terminal", pty=True)
    assert process.stdout.read().strip() == "terminal"


def test_at_once(box):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: run(box, "echo", str(n)), range(16)))
    assert answers == [(0, f"{n}\n") for n in range(16)]


async def test_asynchronous(app):
    sandbox = await modal.Sandbox.create.aio(app=app, timeout=60)
    process = await sandbox.exec.aio("echo", "later")
    assert await process.stdout.read.aio() == "later\n"
    await sandbox.terminate.aio()


def test_a_gone_sandbox(make):
    sandbox = make()
    run(sandbox, "true")
    sandbox.terminate()
    with pytest.raises((modal.exception.NotFoundError, modal.exception.ConflictError, modal.exception.ClientClosed)):
        sandbox.exec("true")
