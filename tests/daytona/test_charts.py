"""Charts that a program shows, with matplotlib in the sandbox."""

import base64
import io
import os
import tarfile

import pytest
from daytona import BarChart, BoxAndWhiskerChart, CompositeChart, CreateSandboxFromSnapshotParams, Daytona, LineChart, PieChart, ScatterChart

LIBRARY = os.path.join(os.getcwd(), "charts")
pytestmark = pytest.mark.skipif("py-newest" not in os.getcwd(), reason="one library is enough for all clients")


@pytest.fixture(scope="module")
def drawer():
    """A sandbox with matplotlib."""
    sandbox = Daytona().create(CreateSandboxFromSnapshotParams(env_vars={"PYTHONPATH": "/tmp/charts"}))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        tar.add(LIBRARY, "charts")
    sandbox.fs.upload_file(packed.getvalue(), "/tmp/charts.tar.gz")
    assert sandbox.process.exec("tar -C /tmp -xzf /tmp/charts.tar.gz").exit_code == 0
    yield sandbox
    sandbox.delete()


def drawn(sandbox, code):
    done = sandbox.process.code_run("import matplotlib.pyplot as plt\n" + code)
    assert done.exit_code == 0, done.result
    return done.artifacts.charts


def test_lines(drawer):
    (chart,) = drawn(
        drawer,
        "plt.plot([1, 2, 3], [4, 5, 6], label='grows')\nplt.title('T')\nplt.xlabel('x')\nplt.ylabel('y')\n"
        "plt.yscale('log')\nplt.show()\n",
    )
    assert isinstance(chart, LineChart)
    assert (chart.title, chart.x_label, chart.y_label, chart.x_scale, chart.y_scale) == ("T", "x", "y", "linear", "log")
    assert (chart.elements[0].label, chart.elements[0].points) == ("grows", [[1, 4], [2, 5], [3, 6]])
    assert 1.0 in chart.x_ticks and len(chart.x_ticks) == len(chart.x_tick_labels)
    assert base64.b64decode(chart.png).startswith(b"\x89PNG")


def test_the_other_kinds(drawer):
    scatter, bar, pie, box, both = drawn(
        drawer,
        "plt.scatter([1, 2], [3, 4])\nplt.show()\n"
        "plt.bar(['a', 'b'], [3, 4.5], label='g')\nplt.show()\n"
        "plt.pie([1, 3], labels=['p', 'q'])\nplt.show()\n"
        "plt.boxplot([[1, 2, 3, 10]])\nplt.show()\n"
        "figure, (one, other) = plt.subplots(1, 2)\nfigure.suptitle('both')\none.plot([1, 2])\nother.bar(['z'], [1])\nplt.show()\n",
    )
    assert isinstance(scatter, ScatterChart) and scatter.elements[0].points == [[1, 3], [2, 4]]
    assert isinstance(bar, BarChart)
    assert [(bar.label, bar.value, bar.group) for bar in bar.elements] == [("a", "3", "g"), ("b", "4.5", "g")]
    assert isinstance(pie, PieChart) and [(one.label, one.angle) for one in pie.elements] == [("p", 90), ("q", 270)]
    assert isinstance(box, BoxAndWhiskerChart)
    assert (box.elements[0].min, box.elements[0].median, box.elements[0].outliers) == (1, 2.5, [10])
    assert isinstance(both, CompositeChart) and both.title == "both"
    assert [one.type for one in both.elements] == ["line", "bar"]


def test_the_program_is_as_without(drawer):
    done = drawer.process.code_run(
        "from __future__ import annotations\nimport sys\nprint(sys.argv[1:], __name__)\n"
        "def show():\n    raise ValueError('no')\nshow()\n",
    )
    assert done.exit_code == 1 and done.artifacts.charts == []
    lines = done.result.splitlines()
    assert lines[0] == "[] __main__"
    assert lines[1:] == [
        "Traceback (most recent call last):",
        '  File "<stdin>", line 6, in <module>',
        '  File "<stdin>", line 5, in show',
        "ValueError: no",
    ]
    broken = drawer.process.code_run("x = = 1  # show(")
    assert broken.exit_code == 1 and "SyntaxError" in broken.result and 'File "<stdin>", line 1' in broken.result
    assert drawer.process.code_run("import sys; sys.exit(7)  # show()").exit_code == 7


def test_what_is_no_chart_is_left_out(drawer):
    done = drawer.process.code_run(
        "import os\nos.write(3, b'no chart\\n[1]\\n{\"type\":\"unknown\"}\\n{\"ty')\nprint('said')  # show()\n"
    )
    assert done.result == "said\n"
    assert [chart.type for chart in done.artifacts.charts] == ["unknown"]
