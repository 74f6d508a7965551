"""The asynchronous client: the same calls, and several at once."""

import asyncio

import pytest
from atoll import errors


async def test_commands_at_once(abox):
    done = await asyncio.gather(*(abox.run(f"sleep 0.1; echo {number}") for number in range(20)))
    assert [one.stdout for one in done] == [f"{number}\n" for number in range(20)]


async def test_processes_and_output(abox):
    process = await abox.start("cat; exit 3", stdin=True)
    await process.write("a")
    pieces = []

    async def read():
        async for piece in process.output():
            pieces.append(piece.text)

    reading = asyncio.create_task(read())
    await process.write("b")
    await process.close_stdin()
    await reading
    assert "".join(pieces) == "ab" and (await process.wait()).exit_code == 3
    seen = []

    async def note(piece):
        seen.append(piece.text)

    assert (await abox.run("echo x", on_output=note)).stdout == "x\n" and seen == ["x\n"]


async def test_giving_up_leaves_the_command_alone(abox):
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(abox.run("sleep 1; echo late > /late", idempotency_key="slow"), 0.2)
    assert (await abox.run("sleep 1; echo late > /late", idempotency_key="slow")).ok
    assert await abox.files.read("/late") == "late\n"


async def test_files_terminal_listing(aclient, abox, tmp_path):
    async def pieces():
        yield b"a"
        yield b"b"

    await abox.files.write("/f", pieces())
    assert [piece async for piece in abox.files.stream("/f")] == [b"ab"]
    (tmp_path / "x").write_text("x")
    await abox.files.upload(tmp_path, "/up")
    await abox.files.download("/up", tmp_path / "down")
    assert (tmp_path / "down" / "up" / "x").read_text() == "x"
    async with await abox.terminal() as tty:
        await tty.send("echo do''ne; exit\n")
        assert b"done" in await tty.read_until("done\r\n", timeout=60)
    assert abox.id in [one.id async for one in aclient.sandboxes.list()]
    with pytest.raises(errors.NotFound):
        await abox.files.read("/none")
