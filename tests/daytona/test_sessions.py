"""Sessions: state that one command leaves to the next, and state that no command can break."""

import uuid

import pytest
from conftest import call, toolbox, until
from daytona import DaytonaError, DaytonaNotFoundError, SessionExecuteRequest


@pytest.fixture
def session(box):
    name = f"s-{uuid.uuid4()}"
    box.process.create_session(name)
    yield name
    box.process.delete_session(name)


def run(box, session, command, **more):
    return box.process.execute_session_command(session, SessionExecuteRequest(command=command, **more))


def test_state_goes_on(box, session):
    run(box, session, 'cd /var; A="one \'two\' $((1 + 2))"; export B=2; f() { echo "f $A $1"; }; shopt -s expand_aliases; alias hi="echo hey"')
    run(box, session, "shopt -s nullglob; umask 077; arr=(1 '2 3')")
    done = run(box, session, 'pwd; f x; sh -c "echo $B"; umask; echo "${arr[1]}"; shopt -q nullglob && echo set; hi')
    assert done.exit_code == 0
    assert done.stdout.split("\n") == ["/var", "f one 'two' 3 x", "2", "0077", "2 3", "set", "hey", ""]


def test_streams_are_told_apart(box, session):
    done = run(box, session, "echo out; echo err >&2; exit 7")
    assert (done.exit_code, done.stdout, done.stderr) == (7, "out\n", "err\n")
    # Two pipes have no order between them.
    assert sorted(done.output.split()) == ["err", "out"]
    logs = box.process.get_session_command_logs(session, done.cmd_id)
    assert (logs.stdout, logs.stderr) == ("out\n", "err\n")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 3", 3),
        ("set -e; false; echo never", 1),
        ("cat <<EOF\nno end", 0),
        ("echo 'no end", None),
        ("exec sh -c 'exit 5'", 5),
        ("kill -9 $$", 137),
        ("set -u; echo $nothing", None),
        ("trap 'echo bye' EXIT; cd /", 0),
    ],
)
def test_nothing_breaks_a_session(box, session, command, code):
    run(box, session, "cd /usr")
    done = run(box, session, command)
    assert done.exit_code == code if code is not None else done.exit_code != 0
    assert run(box, session, "set +eu; echo goes on").stdout == "goes on\n"


def test_state_is_kept_when_a_command_ends_its_shell(box, session):
    run(box, session, "cd /usr; A=1; exit 2")
    assert run(box, session, "pwd; echo $A").stdout == "/usr\n1\n"


def test_asynchronous_commands(box, session):
    started = run(box, session, "sleep 0.2; echo done; exit 4", run_async=True)
    assert started.exit_code is None
    until(lambda: box.process.get_session_command(session, started.cmd_id).exit_code == 4)
    assert box.process.get_session_command_logs(session, started.cmd_id).stdout == "done\n"


def test_a_server_does_not_block_its_session(box, session):
    run(box, session, "exec sleep 300", run_async=True)
    assert run(box, session, "echo here").stdout == "here\n"


def test_a_process_in_the_background_does_not_hold_its_command(box, session):
    done = run(box, session, "(sleep 300; echo never) & echo here")
    assert done.stdout == "here\n"
    assert run(box, session, "echo next").stdout == "next\n"


def test_input(box, session):
    started = run(box, session, "read a; read b; echo $a-$b", run_async=True)
    box.process.send_session_command_input(session, started.cmd_id, "one")
    box.process.send_session_command_input(session, started.cmd_id, "two\n")
    until(lambda: box.process.get_session_command(session, started.cmd_id).exit_code == 0)
    assert "one-two\n" in box.process.get_session_command_logs(session, started.cmd_id).stdout
    with pytest.raises(DaytonaError) as over:
        box.process.send_session_command_input(session, started.cmd_id, "three")
    assert getattr(over.value, "status_code", 410) == 410


async def test_logs_as_they_come(box, session):
    command = "for i in 1 2 3; do echo out$i; echo err$i >&2; sleep 0.1; done; printf '\\001\\002ü'"
    started = run(box, session, command, run_async=True)
    out, err = [], []
    await box.process.get_session_command_logs_async(session, started.cmd_id, out.append, err.append)
    assert "".join(out) == "out1\nout2\nout3\n\x01\x02ü"
    assert "".join(err) == "err1\nerr2\nerr3\n"


def test_listing(box, session):
    done = run(box, session, "true")
    assert [(c.id, c.command, c.exit_code) for c in box.process.get_session(session).commands] == [
        (done.cmd_id, "true", 0)
    ]
    assert session in [s.session_id for s in box.process.list_sessions()]


def test_what_is_not_there(box, session):
    with pytest.raises(DaytonaNotFoundError):
        box.process.get_session("none")
    with pytest.raises(DaytonaNotFoundError):
        box.process.get_session_command(session, "0" * 32)
    status, body = call("POST", f"/{box.id}/process/session", {"sessionId": session}, root=toolbox())
    assert (status, body["message"]) == (409, "session already exists")
    box.process.create_session("other")
    done = run(box, "other", "true")
    with pytest.raises(DaytonaNotFoundError):
        box.process.get_session_command(session, done.cmd_id)
    box.process.delete_session("other")
    with pytest.raises(DaytonaNotFoundError):
        run(box, "other", "true")


def test_deleting_ends_what_runs(box):
    box.process.create_session("doomed")
    started = run(box, "doomed", "touch /tmp/began; sleep 300; touch /tmp/survived", run_async=True)
    until(lambda: box.process.exec("test -e /tmp/began").exit_code == 0)
    box.process.delete_session("doomed")
    assert box.process.exec("pgrep -f '[s]leep 300; touch' || echo none").result.strip().endswith("none")
    with pytest.raises(DaytonaNotFoundError):
        box.process.get_session("doomed")
    assert started.cmd_id


def test_a_long_command(box, session):
    assert run(box, session, f"A={'x' * 300_000}; echo ${{#A}}").stdout == "300000\n"


def test_names_are_anything(box):
    for name in ["../../etc", "a b/ü", "%2e", "x" * 120]:
        box.process.create_session(name)
        assert name in [s.session_id for s in box.process.list_sessions()]
    for name in ["a b", "x" * 120]:
        if name in [s.session_id for s in box.process.list_sessions()]:
            box.process.delete_session(name)
    status, _ = call("POST", f"/{box.id}/process/session", {"sessionId": "x" * 121}, root=toolbox())
    assert status == 400
