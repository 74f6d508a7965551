"""Code in contexts that keep state, with a small interpreter that speaks the protocol of the real one."""

import asyncio

import pytest
from atoll import CodeFailed, errors

TEMPLATE = "code-interpreter-v1"


@pytest.fixture(scope="module")
def coded(client):
    with client.sandboxes.create(template=TEMPLATE) as sandbox:
        yield sandbox


def test_cells_remember(coded):
    assert coded.code.run("x = 20").text is None
    seen = []
    result = coded.code.run("print('hi')\nx + 1", on_event=seen.append)
    assert (result.text, result.stdout, result.state, result.execution_count) == ("21", "hi\n", "done", 2)
    assert result.ok and result.check() is result and [seen[0].kind, seen[-1].kind] == ["started", "end"]
    shown = coded.code.run("show(png='aGk=', html='<b>', chart={'type': 'bar'}, data={'a': [1]})").results[0]
    assert (shown.png, shown.html, shown.chart, shown.table, shown.main) == (b"hi", "<b>", {"type": "bar"}, {"a": [1]}, False)
    assert sorted(shown.data)[-1] == "text/html" and shown["text/html"] == "<b>" and shown.text is None
    failed = coded.code.run("1/0")
    assert (failed.state, failed.error.name) == ("error", "ZeroDivisionError")
    with pytest.raises(CodeFailed, match="ZeroDivisionError: division by zero"):
        coded.code.run("1/0", check=True)
    assert coded.code.run("import time; time.sleep(1000)", timeout="300ms").state == "timed_out"


def test_contexts(coded):
    context = coded.code.create_context("mine", cwd="/var", env={"A": "a"})
    assert context.run("import os; print(os.getcwd(), os.environ['A'], os.environ['B'])", env={"B": "b"}).stdout == "/var a b\n"
    assert coded.code.create_context("mine", cwd="/var", env={"A": "a"}).id == context.id
    assert "mine" in [one.info.name for one in coded.code.contexts()]
    cell = context.start("print('here'); import time; time.sleep(1000)")
    events = cell.events()
    while next(events).kind != "stdout":
        pass
    again = coded.code.context("mine").cell(cell.id)
    assert again.info().state == "running"
    again.interrupt()
    result = cell.result()
    assert (result.state, result.stdout, result.error.name) == ("interrupted", "here\n", "KeyboardInterrupt")
    assert list(again.events(since=next(cell.events()).number))[-1].data["state"] == "interrupted"
    once = context.run("n = globals().get('n', 0) + 1\nn", idempotency_key="once")
    assert context.run("n = globals().get('n', 0) + 1\nn", idempotency_key="once") == once
    context.restart()
    assert not context.run("n").ok
    context.remove()
    with pytest.raises(errors.NotFound) as missing:
        context.run("1")
    assert missing.value.code == "context_not_found"


def test_where_there_is_no_interpreter(box):
    with pytest.raises(errors.InvalidRequest) as refused:
        box.code.run("1")
    assert refused.value.code == "interpreter_missing" and "code-interpreter-v1" in refused.value.hint


@pytest.fixture
async def acoded(aclient):
    async with await aclient.sandboxes.create(template=TEMPLATE) as sandbox:
        yield sandbox


async def test_asynchronously(acoded):
    one, other = await asyncio.gather(acoded.code.create_context("one"), acoded.code.create_context("other"))
    results = await asyncio.gather(*(context.run(f"x = {n}\nx") for n, context in enumerate((one, other))))
    assert [result.text for result in results] == ["0", "1"]
    seen = []

    async def note(event):
        seen.append(event.kind)

    await one.run("print(x)", on_event=note)
    assert seen[0] == "started" and "stdout" in seen
    cell = await one.start("import time; time.sleep(1000)")
    await cell.interrupt()
    assert (await cell.result()).state == "interrupted"
