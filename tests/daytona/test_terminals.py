"""Terminals and the interpreter, which use WebSockets."""

import time
import uuid

import pytest
from conftest import call, since, toolbox, until
from daytona import DaytonaError, DaytonaNotFoundError

try:
    from daytona import DaytonaTimeoutError
except ImportError:  # an older client
    DaytonaTimeoutError = DaytonaError
try:
    from daytona.common.pty import PtySize
except ImportError:
    from daytona import PtySize


@since(0, 220)
def test_a_terminal(box):
    name = f"pty-{uuid.uuid4()}"
    handle = box.process.create_pty_session(id=name, cwd="/tmp", envs={"A": "b c"}, pty_size=PtySize(rows=30, cols=100))
    shown = b""
    try:
        handle.wait_for_connection()
        info = box.process.get_pty_session_info(name)
        assert (info.id, info.active, info.cols, info.rows, info.cwd) == (name, True, 100, 30, "/tmp")
        assert name in [session.id for session in box.process.list_pty_sessions()]
        # While bash waits for a line to be edited, it may put the terminal back to the size that it knows.
        handle.send_input("touch /tmp/typed; read line; stty size; echo [$A] $((6 * 7)); pwd; exit 5\n")
        until(lambda: box.process.exec("test -e /tmp/typed").exit_code == 0)
        resized = handle.resize(PtySize(rows=40, cols=120))
        assert (resized.cols, resized.rows) == (120, 40)
        assert box.process.get_pty_session_info(name).cols == 120
        handle.send_input("\n")
        for data in handle:
            shown += data
    finally:
        handle.disconnect()
    assert b"40 120" in shown and b"[b c] 42" in shown and b"/tmp" in shown
    assert handle.exit_code == 5
    with pytest.raises(DaytonaNotFoundError):
        box.process.get_pty_session_info(name)


@since(0, 220)
def test_a_terminal_is_found_again(box):
    name = f"pty-{uuid.uuid4()}"
    first = box.process.create_pty_session(id=name)
    first.wait_for_connection()
    first.send_input("echo mar''ked\n")
    first.disconnect()
    again = box.process.connect_pty_session(name)
    again.wait_for_connection()
    again.send_input("exit\n")
    assert b"marked" in b"".join(again)
    again.disconnect()


@since(0, 220)
def test_one_name_is_one_terminal(box):
    name = f"pty-{uuid.uuid4()}"
    first = box.process.create_pty_session(id=name)
    first.wait_for_connection()
    with pytest.raises(DaytonaError):
        box.process.create_pty_session(id=name).wait_for_connection()
    first.kill()
    first.disconnect()
    with pytest.raises(DaytonaNotFoundError):
        box.process.kill_pty_session(name)


def test_a_terminal_without_a_socket(box):
    name = f"pty-{uuid.uuid4()}"
    status, made = call("POST", f"/{box.id}/process/pty", {"id": name, "cols": 90, "rows": 20}, root=toolbox())
    assert (status, made) == (201, {"sessionId": name})
    assert call("POST", f"/{box.id}/process/pty", {"id": name}, root=toolbox())[0] == 409
    status, info = call("POST", f"/{box.id}/process/pty/{name}/resize", {"cols": 70, "rows": 10}, root=toolbox())
    assert (status, info["cols"]) == (200, 70)
    assert call("DELETE", f"/{box.id}/process/pty/{name}", root=toolbox())[0] == 200
    assert call("GET", f"/{box.id}/process/pty/{name}", root=toolbox())[0] == 404


def interpreter(box):
    return box.code_interpreter


@since(0, 200)
def test_state_of_the_interpreter(box):
    interpreter(box).run_code("import os\nx = 20\ndef f(n):\n    return n + x\n")
    done = interpreter(box).run_code("print(f(22)); import sys; print('err', file=sys.stderr)")
    assert (done.stdout, done.stderr, done.error) == ("42\n", "err\n", None)


@since(0, 200)
def test_errors_of_the_interpreter(box):
    done = interpreter(box).run_code("print('before')\nraise ValueError('no')")
    assert done.stdout == "before\n"
    assert (done.error.name, done.error.value) == ("ValueError", "no")
    assert "raise ValueError('no')" in done.error.traceback and "interpreter.py" not in done.error.traceback
    assert interpreter(box).run_code("def f(:").error.name == "SyntaxError"
    assert interpreter(box).run_code("print('goes on')").stdout == "goes on\n"


@since(0, 200)
def test_contexts_are_apart(box):
    one = interpreter(box).create_context(cwd="/tmp")
    two = interpreter(box).create_context()
    interpreter(box).run_code("y = 1", context=one)
    assert interpreter(box).run_code("import os; print(y, os.getcwd())", context=one).stdout == "1 /tmp\n"
    assert interpreter(box).run_code("print(y)", context=two).error.name == "NameError"
    assert {one.id, two.id} <= {context.id for context in interpreter(box).list_contexts()}
    interpreter(box).delete_context(one)
    assert one.id not in {context.id for context in interpreter(box).list_contexts()}
    interpreter(box).delete_context(two)


@since(0, 200)
def test_output_as_it_comes(box):
    seen = []
    interpreter(box).run_code(
        "import subprocess, time\nfor i in range(3):\n    print(i); time.sleep(0.1)\nsubprocess.run(['echo', 'child'])\nprint('ü' * 70000)",
        on_stdout=lambda message: seen.append(message.output),
    )
    text = "".join(seen)
    assert text.startswith("0\n1\n2\nchild\n") and text.endswith("ü" * 70000 + "\n")
    assert len(seen) > 3


@since(0, 200)
def test_code_that_takes_too_long(box):
    interpreter(box).run_code("kept = 'kept'")
    began = time.monotonic()
    with pytest.raises(DaytonaTimeoutError):
        interpreter(box).run_code("import time\nwhile True: time.sleep(1)", timeout=1)
    assert time.monotonic() > began
    assert interpreter(box).run_code("print(kept)").stdout == "kept\n"


@since(0, 200)
def test_variables_of_one_piece_of_code(box):
    run = interpreter(box).run_code
    assert run("import os; print(os.environ['ONCE'])", envs={"ONCE": "1"}).stdout == "1\n"
    assert run("print(os.environ.get('ONCE'))").stdout == "None\n"


@since(0, 200)
def test_what_ends_the_interpreter(box):
    context = interpreter(box).create_context()
    done = interpreter(box).run_code("import os; os._exit(3)", context=context)
    assert done.error is not None
    until(lambda: context.id not in {one.id for one in interpreter(box).list_contexts()})
