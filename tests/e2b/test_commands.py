"""Processes: output, input, exit, and finding them again."""

import asyncio
import threading

import pytest
from conftest import VERSION, since, until
from e2b import AsyncSandbox, CommandExitException, Sandbox
from e2b.exceptions import AuthenticationException, InvalidArgumentException, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize


def test_output_and_exit(box):
    run = box.commands.run("echo out; echo err >&2")
    assert (run.stdout, run.stderr, run.exit_code) == ("out\n", "err\n", 0) and not run.error
    with pytest.raises(CommandExitException) as caught:
        box.commands.run("echo before; exit 3")
    assert (caught.value.exit_code, caught.value.stdout, caught.value.error) == (3, "before\n", "exit status 3")
    with pytest.raises(CommandExitException) as caught:
        box.commands.run("no-such-command-at-all")
    assert caught.value.exit_code == 127


def test_large_and_odd_output(box):
    assert len(box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000
    text = "".join(chr(c) for c in (0x24, 0xA2, 0x20AC, 0x10348)) * 20_000
    box.files.write("/tmp/odd", text)
    assert box.commands.run("cat /tmp/odd").stdout == text
    assert box.commands.run("printf '\\377\\376'").stdout == "��"


def test_output_as_it_comes(box):
    seen = []
    handle = box.commands.run("echo one; read line; echo $line", background=True, stdin=True)
    for stdout, _, _ in handle:
        if stdout is not None:
            seen.append(stdout)
            if "one" in stdout:
                box.commands.send_stdin(handle.pid, "two\n")
    assert "".join(seen) == "one\ntwo\n"


def test_where_and_who(box):
    assert box.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    box.files.make_dir("below/home")
    assert box.commands.run("pwd", cwd="below").stdout == "/home/user/below\n"
    assert box.commands.run("pwd", cwd="~/below/home").stdout == "/home/user/below/home\n"
    assert box.commands.run("id -un").stdout == "user\n"
    assert box.commands.run("id -un; pwd", user="root").stdout == "root\n/root\n"
    with pytest.raises(InvalidArgumentException) as caught:
        box.commands.run("true", cwd="/no/such")
    assert "cwd '/no/such' does not exist" in str(caught.value)
    with pytest.raises(AuthenticationException) as caught:
        box.commands.run("true", user="nobody-at-all")
    assert "invalid username: 'nobody-at-all'" in str(caught.value)


def test_input(box):
    cat = box.commands.run("cat", background=True, stdin=True)
    cat.send_stdin("über") if hasattr(cat, "send_stdin") else box.commands.send_stdin(cat.pid, "über")
    box.commands.send_stdin(cat.pid, " und aus")
    box.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "über und aus"
    assert box.commands.run("cat").stdout == "", "without input there is its end"


def test_times(box):
    with pytest.raises(TimeoutException):
        box.commands.run("sleep 1000.5", timeout=1)
    until(lambda: "sleep 1000.5" not in box.commands.run("ps axo args || true").stdout)
    assert box.commands.run("sleep 0.2; echo late", timeout=0).stdout == "late\n"


def test_list_kill_and_ends(box):
    handle = box.commands.run("sleep 1234", background=True, envs={"MINE": "1"}, cwd="/tmp")
    (mine,) = [process for process in box.commands.list() if process.pid == handle.pid]
    assert (mine.cmd, mine.args, mine.cwd) == ("/bin/bash", ["-l", "-c", "sleep 1234"], "/tmp")
    assert mine.envs == {"MINE": "1"}
    assert box.commands.kill(handle.pid) is True
    with pytest.raises(CommandExitException) as caught:
        handle.wait()
    assert (caught.value.exit_code, caught.value.error) == (-1, "signal: killed")
    assert box.commands.kill(handle.pid) is False
    assert handle.pid not in [process.pid for process in box.commands.list()]
    assert box.commands.kill(999_999) is False


def test_connect_misses_nothing(box):
    handle = box.commands.run("echo first; sleep 0.5; echo second; sleep 0.5; echo third", background=True)
    seen = [next(iter(handle))[0]]
    handle.disconnect()
    again = box.commands.connect(handle.pid)
    assert seen == ["first\n"]
    assert again.wait().stdout == "second\nthird\n"


def test_connect_after_the_end(box):
    handle = box.commands.run("echo gone; exit 4", background=True)
    handle.disconnect()
    until(lambda: handle.pid not in [process.pid for process in box.commands.list()])
    with pytest.raises(CommandExitException) as caught:
        box.commands.connect(handle.pid).wait()
    # The server does not repeat output that the old connection had read before the client closed it.
    assert caught.value.exit_code == 4 and caught.value.stdout in ("gone\n", "")


def test_killed_sandbox(own):
    failed = []

    def run():
        try:
            own.commands.run("sleep 100")
        except Exception as error:
            failed.append(str(error))

    running = threading.Thread(target=run)
    running.start()
    until(lambda: own.commands.list())
    own.kill()
    running.join(20)
    # Some older clients say that the sandbox reached its end of life.
    told = ("killed or reached its end of life", "when starting the sandbox")
    assert failed and any(text in failed[0] for text in told), failed


def test_terminal(box):
    output = bytearray()
    terminal = box.pty.create(PtySize(rows=24, cols=80), envs={"FOO": "bar"}, cwd="/tmp", timeout=60)
    # While bash waits for a line to be edited, it may put the terminal back to the size that it knows.
    box.pty.send_stdin(terminal.pid, b"stty size; echo $FOO-$TERM; pwd; touch /tmp/typed; read line; stty size; exit 7\n")
    until(lambda: box.files.exists("/tmp/typed"))
    box.pty.resize(terminal.pid, PtySize(rows=40, cols=100))
    box.pty.send_stdin(terminal.pid, b"\n")
    with pytest.raises(CommandExitException) as caught:
        terminal.wait(on_pty=output.extend)
    text = output.decode()
    assert caught.value.exit_code == 7
    assert "bar-xterm-256color" in text and "/tmp" in text and "40 100" in text
    other = box.pty.create(PtySize(rows=24, cols=80))
    assert box.pty.kill(other.pid) is True and box.pty.kill(other.pid) is False


async def test_asynchronous(abox):
    seen = []
    run = await abox.commands.run("echo a; echo b >&2", on_stdout=seen.append, on_stderr=seen.append)
    assert run.exit_code == 0 and sorted(seen) == ["a\n", "b\n"]
    cat = await abox.commands.run("cat", background=True, stdin=True)
    await abox.commands.send_stdin(cat.pid, "x")
    await abox.commands.close_stdin(cat.pid)
    assert (await cat.wait()).stdout == "x"
    runs = await asyncio.gather(*(abox.commands.run(f"echo {n}") for n in range(20)))
    assert [run.stdout for run in runs] == [f"{n}\n" for n in range(20)]
    sleeping = await abox.commands.run("sleep 100", background=True)
    assert await sleeping.kill() is True


@since(2, 40)
def test_git(box):
    box.commands.run("rm -rf /tmp/repo && git init -q -b main /tmp/repo && cd /tmp/repo && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one")
    assert box.git.status("/tmp/repo").current_branch == "main"
