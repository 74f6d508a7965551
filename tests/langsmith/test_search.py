"""Finding files and lines."""

import pytest
from conftest import since
from langsmith.sandbox import ResourceNotFoundError

pytestmark = since(0, 13)


@pytest.fixture(scope="module")
def tree(box):
    box.run(
        "mkdir -p /tmp/tree/src/deep /tmp/tree/docs && cd /tmp/tree && "
        "printf 'import os\\nTODO: (a|b)* x\\n' > src/one.py && printf 'TODO: (a|b)* y' > src/deep/two.py && "
        "printf 'TODO: (a|b)*\\n' > docs/note.txt && touch .hidden && printf 'TODO\\0' > src/binary.py"
    )
    return box


def test_glob(tree):
    result = tree.glob("**/*.py", "/tmp/tree")
    assert sorted(match.path for match in result) == [
        "/tmp/tree/src/binary.py",
        "/tmp/tree/src/deep/two.py",
        "/tmp/tree/src/one.py",
    ]
    assert not result.truncated
    one = next(match for match in result if match.path.endswith("one.py"))
    assert (one.is_dir, one.size_bytes) == (False, 25) and one.modified_at
    assert [match.path for match in tree.glob("src/*", "/tmp/tree") if match.is_dir] == ["/tmp/tree/src/deep"]
    assert len(tree.glob("src/[op]*.p?", "/tmp/tree")) == 1


def test_ls(tree):
    assert sorted(match.path for match in tree.ls("/tmp/tree")) == [
        "/tmp/tree/.hidden",
        "/tmp/tree/docs",
        "/tmp/tree/src",
    ]
    cut = tree.ls("/tmp/tree", limit=2)
    assert len(cut) == 2 and cut.truncated


def test_more_entries_than_come_unasked(tree):
    """The clients name no number unless their user does: then 1,000 come, and the answer says that there are more."""
    tree.run("mkdir /tmp/many && cd /tmp/many && touch $(seq 1001)")
    cut = tree.ls("/tmp/many")
    assert len(cut) == 1000 and cut.truncated
    whole = tree.ls("/tmp/many", limit=100_000)
    assert len(whole) == 1001 and not whole.truncated


def test_grep(tree):
    result = tree.grep("(a|b)*", "/tmp/tree")
    assert [(match.path, match.line, match.text) for match in result] == [
        ("/tmp/tree/docs/note.txt", 1, "TODO: (a|b)*"),
        ("/tmp/tree/src/one.py", 2, "TODO: (a|b)* x"),
        ("/tmp/tree/src/deep/two.py", 1, "TODO: (a|b)* y"),
    ]
    assert [match.path for match in tree.grep("TODO", "/tmp/tree", glob="*.py")] == [
        "/tmp/tree/src/one.py",
        "/tmp/tree/src/deep/two.py",
    ]
    assert [match.path for match in tree.grep("TODO", "/tmp/tree", glob="src/*.py")] == ["/tmp/tree/src/one.py"]
    cut = tree.grep("TODO", "/tmp/tree", limit=1)
    assert len(cut) == 1 and cut.truncated
    assert len(tree.grep("nothing like it", "/tmp/tree")) == 0


def test_the_whole_root_ends(tree):
    assert tree.glob("etc/passwd", "/").matches[0].path == "/etc/passwd"
    assert tree.grep("no-such-text-anywhere", "/proc").truncated is False


def test_errors(tree):
    for search in [lambda: tree.glob("*", "/nowhere"), lambda: tree.grep("x", "/nowhere")]:
        with pytest.raises(ResourceNotFoundError):
            search()
