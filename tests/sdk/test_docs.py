"""Every Python example in the SDK's README and page runs, each in a fresh process."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["sdk/python/README.md", "docs/sdk-python.md"]


def examples():
    for page in PAGES:
        text = (ROOT / page).read_text()
        for number, match in enumerate(re.finditer(r"^```python\n(.*?)^```$", text, re.S | re.M), 1):
            line = text[: match.start()].count("\n") + 1
            yield pytest.param(match[1], id=f"{page}:{line}")


@pytest.mark.parametrize("code", list(examples()))
def test_example(code, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_text("a\n")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    # A comment `# → text` after a print is the text that it must print.
    wanted = re.findall(r"# → (.*)$", code, re.M)
    for text in wanted:
        assert text in done.stdout, done.stdout


def test_pages_have_examples():
    assert len(list(examples())) > 12
