"""Commands and programs that run to their end."""

import pytest
from conftest import call, toolbox
from daytona import CodeRunParams, DaytonaError

try:
    from daytona import DaytonaTimeoutError
except ImportError:  # an older client
    DaytonaTimeoutError = DaytonaError


def test_a_command_and_its_output(box):
    result = box.process.exec("echo out; echo err >&2; exit 3")
    assert result.exit_code == 3
    assert result.result == "out\nerr\n"


def test_directory_and_environment(box):
    result = box.process.exec('pwd; echo "$A"', cwd="/tmp", env={"A": "b c"})
    assert result.result == "/tmp\nb c\n"


def test_a_directory_that_is_not_there(box):
    result = box.process.exec("pwd", cwd="/nowhere")
    assert result.exit_code == -1
    assert "/nowhere" in result.result


def test_it_is_bash(box):
    assert box.process.exec("[[ a == a ]] && echo $BASH_VERSION").exit_code == 0


def test_a_command_that_takes_too_long(box):
    with pytest.raises(DaytonaTimeoutError):
        box.process.exec("sleep 60", timeout=1)
    status, body = call(
        "POST", f"/{box.id}/process/execute", {"command": "sleep 60", "timeout": 1}, root=toolbox()
    )
    assert (status, body["code"], body["source"]) == (408, "PROCESS_EXECUTION_TIMEOUT", "DAYTONA_DAEMON")


def test_an_empty_command_is_refused(box):
    status, body = call("POST", f"/{box.id}/process/execute", {"command": " "}, root=toolbox())
    assert (status, body["statusCode"]) == (400, 400)


def test_much_output(box):
    result = box.process.exec("head -c 3000000 /dev/zero | tr '\\0' x")
    assert len(result.result) == 3_000_000


def test_a_long_command(box):
    text = "x" * 300_000
    assert box.process.exec(f"echo {text} | wc -c").result.strip() == "300001"


def test_python(box):
    result = box.process.code_run("import sys\nprint('hello', 6 * 7)\nprint('err', file=sys.stderr)\nsys.exit(4)")
    assert result.exit_code == 4
    assert result.result == "hello 42\nerr\n"


def test_python_with_arguments_and_environment(box):
    result = box.process.code_run(
        "import os, sys\nprint(sys.argv[1:], os.environ['A'])", params=CodeRunParams(argv=["1", "two"], env={"A": "b"})
    )
    assert result.result == "['1', 'two'] b\n"


def test_python_that_takes_too_long(box):
    # Here the SDK passes on the exception of its generated client.
    request = {"code": "import time; time.sleep(60)", "language": "python", "timeout": 1}
    status, body = call("POST", f"/{box.id}/process/code-run", request, root=toolbox())
    assert (status, body["code"]) == (408, "PROCESS_EXECUTION_TIMEOUT")


def test_javascript(box):
    request = {"code": "console.log('js', process.argv.slice(2))", "language": "javascript", "argv": ["a"]}
    status, body = call("POST", f"/{box.id}/process/code-run", request, root=toolbox())
    assert (status, body["exitCode"]) == (200, 0)
    assert body["result"] == "js [ 'a' ]\n"


def test_a_language_that_is_none(box):
    status, _ = call("POST", f"/{box.id}/process/code-run", {"code": "1", "language": "cobol"}, root=toolbox())
    assert status == 400


async def test_asynchronously(abox):
    result = await abox.process.exec("echo hello")
    assert (result.exit_code, result.result) == (0, "hello\n")
