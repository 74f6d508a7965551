"""Sessions on standard input and output, with the official SDK."""

import asyncio
import base64
import os

import pytest
from conftest import atoll, call, malformed, native, refused, sandboxes, session, until
from mcp import MCPError

TOOLS = {
    "create_sandbox", "list_sandboxes", "delete_sandbox", "run", "start", "read_output", "stop", "read_file", "write_file",
    "list_files", "expose_port", "snapshot", "rollback", "diff",
}  # fmt: skip


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_session_has_a_sandbox(mode):
    async with session(mode=mode) as client:
        assert client.server_info.name == "atoll"
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == TOOLS
        assert all(tool.output_schema["type"] == "object" and tool.description for tool in tools.values())
        assert tools["read_file"].annotations.read_only_hint and tools["delete_sandbox"].annotations.destructive_hint
        # The session makes no sandbox before a tool needs one.
        assert (await call(client, "list_sandboxes"))["sandboxes"] == []
        ran = await call(client, "run", command="echo out; echo err >&2; pwd; echo $X; exit 3", cwd="/tmp", env={"X": "y z"})
        assert (ran["stdout"], ran["stderr"], ran["exit_code"], ran["reason"]) == ("out\n/tmp\ny z\n", "err\n", 3, "exited")
        assert ran["output_bytes"] == len("out\nerr\n/tmp\ny z\n") and "left_out" not in ran
        [sandbox] = (await call(client, "list_sandboxes"))["sandboxes"]
        assert sandbox["default"] and sandbox["id"] == ran["sandbox"] and sandbox["isolation"] == "container"
        assert sandboxes() == [ran["sandbox"]]
    until(lambda: sandboxes() == [])


async def test_calls_at_once_share_one():
    async with session() as client:
        ran = await asyncio.gather(*(call(client, "run", command=f"echo {n}") for n in range(4)))
        assert len({one["sandbox"] for one in ran}) == 1
        assert [one["stdout"] for one in ran] == ["0\n", "1\n", "2\n", "3\n"]


async def test_long_output():
    async with session() as client:
        ran = await call(client, "run", command="seq 100000")
        left = ran["left_out"]
        assert ran["stdout"].startswith("1\n2\n") and ran["stdout"].endswith("\n99999\n100000\n")
        assert len(ran["stdout"]) < 40_000 and ran["output_bytes"] == 588_895
        page = await call(client, "read_output", exec=ran["exec"], offset=left["from"], max_bytes=1000)
        assert page["next_offset"] == left["from"] + 1000 and not page["done"]
        whole = "".join(f"{n}\n" for n in range(1, 100_001))
        assert page["stdout"] == whole[left["from"] :][:1000]
        binary = await call(client, "run", command="head -c 100 /dev/urandom")
        assert binary["output_bytes"] == 100


async def test_commands_that_go_on():
    async with session() as client:
        started = await call(client, "start", command="echo begun; while sleep 0.1; do :; done")
        page = await call(client, "read_output", exec=started["exec"], wait_seconds=30)
        assert page["stdout"] == "begun\n" and page["state"] == "running" and not page["done"]
        assert (await call(client, "stop", exec=started["exec"]))["state"] == "exited"
        page = await call(client, "read_output", exec=started["exec"], offset=page["next_offset"])
        assert page["done"] and page["reason"] == "killed"
        assert (await call(client, "stop", exec=started["exec"]))["state"] == "exited"
        logs = (await client.list_resources()).resources
        assert f"atoll://{started['sandbox']}/execs/{started['exec']}/log" in [log.uri for log in logs]
        log = await client.read_resource(f"atoll://{started['sandbox']}/execs/{started['exec']}/log")
        assert log.contents[0].text == "begun\n"
        late = await call(client, "run", command="sleep 100", timeout_seconds=1)
        assert late["reason"] == "timed_out"


async def test_progress_and_cancelling():
    async with session() as client:
        seen, heard = [], asyncio.Event()

        async def progress(step, total, message):
            seen.append((step, message))
            heard.set()

        sandbox = (await call(client, "create_sandbox"))["id"]
        running = asyncio.create_task(
            client.call_tool("run", {"command": "echo first; sleep 1000"}, progress_callback=progress)
        )
        await asyncio.wait_for(heard.wait(), 60)
        assert "first" in seen[0][1]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        states = lambda: {one["state"] for one in native("GET", f"/v1/sandboxes/{sandbox}/execs")["items"]}  # noqa: E731
        while states() != {"exited"}:
            await asyncio.sleep(0.05)
        assert (await call(client, "run", command="echo goes on"))["stdout"] == "goes on\n"


async def test_files():
    async with session() as client:
        assert (await call(client, "write_file", path="/tmp/é/a", content="text €\n"))["bytes"] == 9
        read = await call(client, "read_file", path="/tmp/é/a")
        assert (read["content"], read["encoding"]) == ("text €\n", "utf-8") and "next_offset" not in read
        content = os.urandom(1 << 20)
        await call(client, "write_file", path="/tmp/b", content=base64.b64encode(content).decode(), encoding="base64", mode="0755")
        offset, got = 0, b""
        while offset is not None:
            piece = await call(client, "read_file", path="/tmp/b", offset=offset, max_bytes=1 << 30)
            assert piece["encoding"] == "base64"
            got += base64.b64decode(piece["content"])
            offset = piece.get("next_offset")
        assert got == content
        entries = (await call(client, "list_files", path="/tmp"))["entries"]
        assert {"path": "/tmp/b", "kind": "file", "bytes": 1 << 20, "mode": "0755"} in entries
        [sandbox] = sandboxes()
        resource = await client.read_resource(f"atoll://{sandbox}/files/tmp/%C3%A9/a")
        assert resource.contents[0].text == "text €\n"
        for bad in (f"atoll://{sandbox}/files/none", f"atoll://{sandbox}/files/tmp/b", "atoll://other/files/x", "file:///etc/passwd"):
            with pytest.raises(MCPError):
                await client.read_resource(bad)
        assert (await refused(client, "read_file", path="/none"))["code"] == "file_not_found"
        assert (await refused(client, "write_file", path="/tmp/c", content="!", encoding="base64"))["code"] == "invalid_argument"


async def test_snapshots():
    async with session() as client:
        await call(client, "write_file", path="/tmp/kept", content="one")
        taken = await call(client, "snapshot", comment="before")
        await call(client, "write_file", path="/tmp/kept", content="two")
        await call(client, "write_file", path="/tmp/new", content="x")
        changed = await call(client, "diff", **{"from": taken["snapshot"]})
        changes = {change["path"]: change["change"] for change in changed["changes"]}
        assert changes["/tmp/new"] == "added" and "/tmp/kept" in changes
        await call(client, "rollback", to=taken["snapshot"])
        assert (await call(client, "read_file", path="/tmp/kept"))["content"] == "one"
        assert (await refused(client, "read_file", path="/tmp/new"))["code"] == "file_not_found"


async def test_ports():
    async with session() as client:
        exposed = await call(client, "expose_port", port=8000, minutes=5)
        assert exposed["token"] in exposed["link"] and exposed["header"] == "X-Atoll-Token"


async def test_what_the_user_set_holds():
    foreign = atoll("create")
    given = atoll("create", "--name", "given")
    try:
        async with session("--max-sandboxes", "2", "--env", "PRESET=1", "--memory", "256MiB") as client:
            # The session may not use another sandbox of the same key.
            for tool, more in (("run", {"command": "id"}), ("read_file", {"path": "/etc/passwd"}), ("expose_port", {"port": 1})):
                assert (await refused(client, tool, sandbox=foreign, **more))["code"] == "sandbox_not_found"
            assert (await refused(client, "delete_sandbox", sandbox=foreign))["code"] == "sandbox_not_found"
            first = await call(client, "create_sandbox")
            second = await call(client, "create_sandbox", name="second")
            assert first["default"] and not second["default"] and second["name"] == "second"
            assert (await refused(client, "create_sandbox"))["code"] == "limit_exceeded"
            for sandbox in (first["id"], second["id"]):
                assert (await call(client, "run", command="echo $PRESET", sandbox=sandbox))["stdout"] == "1\n"
                assert native("GET", f"/v1/sandboxes/{sandbox}")["resources"]["memory_bytes"] == 256 << 20
            for more in ({"image": "host"}, {"egress": {}}, {"isolation": "container"}):
                await malformed(client, "create_sandbox", more)
            assert len((await call(client, "list_sandboxes"))["sandboxes"]) == 2
            # If the session's sandbox is deleted, one call fails, and the next one makes a new sandbox.
            native("DELETE", f"/v1/sandboxes/{first['id']}")
            gone = await refused(client, "run", command="true")
            assert gone["code"] == "sandbox_not_found" and "makes a new one" in gone["hint"]
            assert (await call(client, "run", command="echo new"))["stdout"] == "new\n"
            await call(client, "delete_sandbox", sandbox=second["id"])
        async with session("--sandbox", "given") as client:
            assert (await call(client, "run", command="hostname"))["exit_code"] == 0
            assert (await refused(client, "delete_sandbox", sandbox="given"))["code"] == "permission_denied"
        assert set(sandboxes()) == {foreign, given}
    finally:
        atoll("rm", foreign, given)


async def test_keep_and_cut():
    async with session("--keep") as client:
        kept = (await call(client, "create_sandbox"))["id"]
    assert sandboxes() == [kept]
    atoll("rm", kept)
    # The client disconnects while a command runs: its sandbox is deleted all the same.
    async with session() as client:
        running = asyncio.create_task(client.call_tool("run", {"command": "sleep 1000"}))
        while not sandboxes():
            await asyncio.sleep(0.05)
    running.cancel()
    until(lambda: sandboxes() == [])


async def test_wrong_calls():
    async with session() as client:
        for arguments in ({}, {"command": 1}, {"command": "id", "user": "root"}):
            await malformed(client, "run", arguments)
        with pytest.raises(MCPError):
            await client.call_tool("none", {})
        assert (await refused(client, "run", command="id", timeout_seconds=0))["code"] == "invalid_argument"
        assert (await refused(client, "run", command="id", cwd="relative"))["code"]
        assert (await refused(client, "read_output", exec="none"))["code"]
        assert (await call(client, "run", command="exit 0"))["exit_code"] == 0
