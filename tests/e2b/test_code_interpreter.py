"""E2B's code interpreter SDK, synchronous and asynchronous, against the template that `atoll template build-defaults` makes."""

import asyncio
import base64

import pytest
from e2b import NotFoundException, SandboxException
from e2b_code_interpreter import AsyncSandbox, Sandbox


@pytest.fixture(scope="module")
def box():
    """A sandbox that the module's tests share. Each test that changes state uses its own contexts."""
    sandbox = Sandbox.create(timeout=900)
    yield sandbox
    sandbox.kill()


def text(execution):
    """The value of a cell that did not fail."""
    assert execution.error is None, execution.error
    return execution.text


def test_state_stays_and_cells_are_counted(box):
    context = box.create_code_context()
    first = box.run_code("x = 20\nx + 1", context=context)
    assert text(first) == "21" and first.execution_count == 1
    second = box.run_code("x + 22", context=context)
    assert text(second) == "42" and second.execution_count == 2
    assert text(box.run_code("'quotes go'", context=context)) == "quotes go"


def test_contexts_are_apart_and_in_their_directories(box):
    assert {"python"} <= {context.language for context in box.list_code_contexts()}
    one, two = box.create_code_context(), box.create_code_context(cwd="/tmp")
    assert (one.cwd, two.cwd) == ("/home/user", "/tmp")
    box.run_code("mine = 1", context=one)
    assert box.run_code("mine", context=two).error.name == "NameError"
    assert text(box.run_code("import os; os.getcwd()", context=two)) == "/tmp"
    assert {one.id, two.id} <= {context.id for context in box.list_code_contexts()}
    box.restart_code_context(one)
    assert box.run_code("mine", context=one).error.name == "NameError"
    box.remove_code_context(one)
    assert one.id not in {context.id for context in box.list_code_contexts()}
    with pytest.raises(NotFoundException):
        box.run_code("1", context=one)
    with pytest.raises(SandboxException, match="no directory"):
        box.create_code_context(cwd="/not/there")


def test_output_streams_and_is_whole(box):
    stdout, stderr, results = [], [], []
    code = "import sys, time\nprint('one 🐚'); sys.stdout.flush(); time.sleep(0.2)\nprint('two'); print('bad', file=sys.stderr)\n7"
    execution = box.run_code(
        code,
        on_stdout=lambda message: stdout.append(message.line),
        on_stderr=lambda message: stderr.append(message.line),
        on_result=lambda result: results.append(result.text),
    )
    assert "".join(stdout) == "".join(execution.logs.stdout) == "one 🐚\ntwo\n" and len(stdout) >= 2
    assert "".join(stderr) == "bad\n" and results == ["7"]
    lines = box.run_code("for i in range(20000): print(i)")
    assert "".join(lines.logs.stdout) == "".join(f"{i}\n" for i in range(20000))


def test_errors_have_a_traceback(box):
    errors = []
    execution = box.run_code("def f():\n    return 1 / 0\nf()", on_error=errors.append)
    error = execution.error
    assert error.name == "ZeroDivisionError" and error.value == "division by zero"
    assert "return" in error.traceback and [error.name for error in errors] == ["ZeroDivisionError"]
    assert box.run_code("def (").error.name == "SyntaxError"


def test_kinds_of_results(box):
    code = """
from IPython.display import HTML, JSON, Javascript, Latex, Markdown, SVG, display
for value in (HTML('<b>h</b>'), Markdown('**m**'), Latex('$x$'), SVG('<svg xmlns="http://www.w3.org/2000/svg"></svg>'),
              JSON({'a': [1]}), Javascript('1')):
    display(value)
display({'application/x-own': 'mine', 'text/plain': 'own'}, raw=True)
'last'
"""
    execution = box.run_code(code)
    assert execution.error is None
    html, markdown, latex, svg, json, javascript, own, last = execution.results
    assert html.html == "<b>h</b>" and markdown.markdown == "**m**" and latex.latex == "$x$"
    assert svg.svg.startswith("<svg") and json.json == {"a": [1]} and javascript.javascript == "1"
    assert own.extra == {"application/x-own": "mine"}
    assert last.is_main_result and not html.is_main_result and execution.text == "last"


def test_figures_are_pictures_and_data(box):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6], label='line')\nplt.title('t')\nplt.show()"
    execution = box.run_code(code)
    assert execution.error is None
    (result,) = execution.results
    assert base64.b64decode(result.png).startswith(b"\x89PNG")
    assert result.chart.type == "line" and result.chart.title == "t"
    assert [list(point) for point in result.chart.elements[0].points] == [[1, 4], [2, 5], [3, 6]]


def test_tables_are_data(box):
    code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y'], 'c': pd.to_datetime(['2026-01-01', '2026-01-02'])})"
    execution = box.run_code(code)
    assert execution.error is None
    (result,) = execution.results
    assert result.data == {"a": [1, 2], "b": ["x", "y"], "c": ["2026-01-01T00:00:00", "2026-01-02T00:00:00"]}
    assert "<table" in result.html and "2026-01-01" in result.text


def test_environment_of_a_cell_is_of_that_cell(box):
    read = "import os; (os.environ.get('MINE'), os.environ['HOME'])"
    assert text(box.run_code(read, envs={"MINE": "1", "HOME": "/elsewhere"})) == "('1', '/elsewhere')"
    assert text(box.run_code(read)) == "(None, '/home/user')"


def test_a_client_that_goes_interrupts_its_cell(box):
    context = box.create_code_context()
    assert text(box.run_code("kept = 5; kept", context=context)) == "5"
    with pytest.raises(Exception, match="(?i)time"):
        box.run_code("import time\nwhile True: time.sleep(0.05)", context=context, timeout=2)
    # The kernel is the same, and still has its variables.
    assert text(box.run_code("kept + 1", context=context, timeout=60)) == "6"


def test_a_kernel_that_dies_says_so_and_comes_back(box):
    context = box.create_code_context()
    died = box.run_code("import os; os._exit(3)", context=context)
    assert died.error is not None and died.error.name == "KernelDied"
    assert text(box.run_code("1 + 1", context=context)) == "2"


def test_a_restart_ends_what_runs(box):
    context = box.create_code_context()
    # The cell's output shows that it runs; then the client's thread restarts the kernel.
    restart = lambda _: box.restart_code_context(context)
    ended = box.run_code("print('runs', flush=True)\nwhile True: pass", context=context, envs={"A": "1"}, on_stdout=restart)
    assert ended.error.name == "KernelDied" and "restarted" in ended.error.value
    assert text(box.run_code("import os; os.environ.get('A')", context=context)) in (None, "None", "")


def test_bash(box):
    context = box.create_code_context(language="bash", cwd="/tmp")
    box.run_code("kept=5", context=context)
    execution = box.run_code('echo "$kept $PWD $MINE"', context=context, envs={"MINE": "it's"})
    assert "".join(execution.logs.stdout).strip() == "5 /tmp it's"
    execution = box.run_code('echo "<${MINE-none}>"', context=context)
    assert "".join(execution.logs.stdout).strip() == "<none>"


@pytest.mark.parametrize("language", ["js", "ts"])
def test_scripts(box, language):
    if "javascript" not in {context.language for context in box.list_code_contexts()}:
        pytest.skip("the image has no npm, and so no kernel")
    context = box.create_code_context(language=language)
    execution = box.run_code("const x = 20; console.log(process.env.MINE); x + 1", context=context, envs={"MINE": "1"})
    assert text(execution) == "21" and "".join(execution.logs.stdout) == "1\n"
    assert text(box.run_code("await Promise.resolve(x + 22)", context=context)) == "42"
    error = box.run_code("throw new TypeError('no')", context=context).error
    assert (error.name, error.value) == ("TypeError", "no")


def test_scripts_lose_no_output(box):
    if "javascript" not in {context.language for context in box.list_code_contexts()}:
        pytest.skip("the image has no npm, and so no kernel")
    context = box.create_code_context(language="js")
    # The kernel reports the end of a cell before all of its output. None may be lost, or be given to the next cell.
    for i in range(60):
        execution = box.run_code(f"console.log('out {i}'); console.error('err {i}'); {i}", context=context)
        assert (execution.text, execution.execution_count) == (str(i), i + 1)
        assert ("".join(execution.logs.stdout), "".join(execution.logs.stderr)) == (f"out {i}\n", f"err {i}\n")
    # A cell that replaces `console.log` does not break the next cells.
    assert text(box.run_code("console.log = () => {}; 5", context=context)) == "5"
    assert text(box.run_code("console.log(1); 6", context=context)) == "6"


def test_what_is_not_there_is_refused_with_its_name(box):
    with pytest.raises(SandboxException, match="cobol"):
        box.run_code("1", language="cobol")
    with pytest.raises(SandboxException, match="java is not installed"):
        box.run_code("1", language="java")


def test_packages_can_be_installed_for_what_runs_already(box):
    assert text(box.run_code("import sys; sys.prefix")) == "/opt/code-interpreter/venv"
    assert box.commands.run("test -w /opt/code-interpreter/venv/lib && whoami").stdout.strip() == "user"


@pytest.mark.asyncio
async def test_asynchronous_contexts_run_side_by_side():
    sandbox = await AsyncSandbox.create(timeout=600)
    try:
        one, two = await asyncio.gather(sandbox.create_code_context(), sandbox.create_code_context())
        # Each cell waits for a file of the other: neither could end if they ran one after the other.
        meet = "import os, time\nopen('/tmp/{}', 'w').close()\nend = time.monotonic() + 60\n"
        meet += "while not os.path.exists('/tmp/{}') and time.monotonic() < end: time.sleep(0.05)\nos.path.exists('/tmp/{}')"
        runs = (
            sandbox.run_code(meet.format("a", "b", "b"), context=one),
            sandbox.run_code(meet.format("b", "a", "a"), context=two),
        )
        assert [run.text for run in await asyncio.gather(*runs)] == ["True", "True"]
        # Cells of one context run one after the other.
        await asyncio.gather(*(sandbox.run_code("n = globals().get('n', 0) + 1", context=one) for _ in range(5)))
        assert (await sandbox.run_code("n", context=one)).text == "5"
    finally:
        await sandbox.kill()


def test_pictures_of_pillow(box):
    make = "from PIL import Image\nimage = Image.new('RGB', (8, 4), 'red')\n"
    for show in ("image.show()", "image.save('/tmp/red.png')", "display(image)", "image", "image.save('/tmp/red.jpg')"):
        results = box.run_code(make + show).results
        assert len(results) == 1 and base64.b64decode(results[0].png).startswith(b"\x89PNG"), show
