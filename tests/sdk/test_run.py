"""Commands: exit, output, input, signals."""

import pytest
from atoll import CommandFailed, Gap, Output, errors
from conftest import until


def test_ends_and_streams_are_told_apart(box):
    done = box.run("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code, done.end) == ("out\n", "err\n", 3, "exited")
    assert not done.ok and not done.truncated and done.exec.state == "exited"
    with pytest.raises(CommandFailed) as failed:
        done.check()
    assert failed.value.result is done and failed.value.code == "command_failed" and "err" in str(failed.value)
    assert box.run(["sh", "-c", 'printf "%s|" "$@"', "sh", "a b", "$c"]).stdout == "a b|$c|"
    assert box.run("kill -9 $$").exit_code == 137
    late = box.run("sleep 1000", timeout="300ms")
    assert (late.end, late.exit_code) == ("timed_out", 137)
    assert box.run("echo x; sleep 1000", idle_timeout=0.3).end == "idle_timed_out"
    assert box.run(["no-such-program"]).exit_code == 127
    with pytest.raises(CommandFailed):
        box.run("false", check=True)


def test_where_as_whom_and_with_what(box):
    done = box.run("pwd; echo $A; id -un", cwd="/tmp", env={"A": "ü b"}, user="root")
    assert done.stdout == "/tmp\nü b\nroot\n"
    assert box.run("cat", input="in").stdout == "in"
    assert box.run("wc -c", input=b"\xff" * 3_000_000).stdout.strip() == "3000000"
    # A command that does not read its input causes no error.
    assert box.run("exit 4", input="x" * 2_000_000).exit_code == 4


def test_large_and_binary_output(box):
    done = box.run("head -c 3000000 /dev/zero | tr '\\0' x; printf '\\377\\0'")
    assert len(done.stdout_bytes) == 3_000_002 and done.stdout_bytes.endswith(b"x\xff\x00")
    assert not done.truncated
    cut = box.run("seq 100000", max_output=1000)
    assert cut.truncated and len(cut.stdout_bytes) == 1000 and cut.stdout.endswith("\n100000\n")


def test_output_as_it_comes(box):
    seen = []
    done = box.run("echo a; echo b >&2; sleep 0.2; echo c", on_output=seen.append)
    assert (done.stdout, done.stderr) == ("a\nc\n", "b\n")
    assert all(isinstance(piece, Output) for piece in seen)
    assert [seen[0].offset, seen[-1].next_offset] == [0, 6]


def test_a_process_is_written_to_signalled_and_found_again(box):
    process = box.start(["cat"], stdin=True)
    process.write("one ")
    process.write(b"two\n")
    again = box.exec(process.id)
    assert next(iter(again.output())).text.startswith("one ")
    with pytest.raises(errors.TimedOut) as late:
        again.wait(timeout=0.1)
    assert late.value.retryable
    process.close_stdin()
    assert process.wait().exit_code == 0
    assert again.result().stdout == "one two\n"
    assert b"".join(piece.data for piece in again.output(since=4)) == b"two\n"
    with pytest.raises(errors.Conflict) as closed:
        process.write("more")
    assert closed.value.code in {"exec_ended", "stdin_closed"}

    sleeper = box.start("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done")
    assert next(iter(sleeper.output())).text == "up\n"
    sleeper.signal("TERM")
    assert (sleeper.wait(timeout=30).exit_code, sleeper.result().stdout) == (7, "up\nbye\n")
    endless = box.start("sleep 1000")
    endless.kill()
    assert endless.wait().end == "killed"
    endless.kill()
    ids = [one.id for one in box.execs(state=["exited"])]
    assert {process.id, sleeper.id, endless.id} <= set(ids)


def test_what_the_log_dropped_is_a_gap(box):
    process = box.start("seq 200000", keep_output=65536)
    process.wait()
    pieces = list(process.output())
    assert isinstance(pieces[0], Gap) and pieces[0].start == 0
    at = 0
    for piece in pieces:
        assert (piece.start if isinstance(piece, Gap) else piece.offset) == at
        at = piece.next_offset
    assert at == len("".join(f"{number}\n" for number in range(1, 200001)))
    assert process.result().truncated


def test_without_following_output_ends_where_it_is(box):
    process = box.start("echo now; sleep 1000")
    until(lambda: process.refresh().output_bytes)
    assert [piece.text for piece in process.output(follow=False)] == ["now\n"]
    process.kill()


def test_one_key_one_run(box):
    first = box.start("echo x >> /tmp/once", idempotency_key="job-1")
    second = box.start("echo x >> /tmp/once", idempotency_key="job-1")
    assert first.id == second.id
    first.wait()
    assert box.run("echo x >> /tmp/once", idempotency_key="job-1").exec.id == first.id
    assert box.files.read("/tmp/once") == "x\n"
    with pytest.raises(errors.Conflict) as other:
        box.run("echo y", idempotency_key="job-1")
    assert other.value.code == "idempotency_mismatch" and not other.value.may_have_run


def test_terminals(box):
    with box.terminal(100, 30, env={"PS1": "> "}) as tty:
        # While bash waits for a line to be edited, it may put the terminal back to the size that it knows.
        tty.send("stty size; echo do''ne; read line; stty size; echo aga''in\n")
        shown = tty.read_until("done\r\n", timeout=60)
        assert b"30 100" in shown
        tty.resize(120, 40)
        tty.send("\n")
        assert b"40 120" in tty.read_until("again\r\n", timeout=60)
        # A second client attaches, and reads the output from the beginning.
        with box.exec(tty.process.id).attach() as other:
            assert b"30 100" in other.read_until("done\r\n", timeout=60)
        with pytest.raises(errors.TimedOut):
            while True:
                tty.recv(timeout=0.5)
        tty.send("exit 5\n")
        list(tty)
        assert tty.ended.exit_code == 5 and tty.recv() == b""
    with box.terminal() as tty:
        shell = tty.process
    assert shell.wait(timeout=60).end == "killed"
