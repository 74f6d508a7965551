"""The OpenAI Agents SDK: an agent whose model is a script, with real sandboxes of each client that it may use."""

import asyncio
import io
import json
import pathlib
import signal
import sys

import pytest
from agents import RunConfig, Runner
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import File
from agents.sandbox.errors import InvalidManifestPathError, WorkspaceArchiveWriteError
from agents.testing import ScriptedModel, assistant_message, function_call
from openai_agents_clients import CLIENTS, client_of, root_of
from recipes import recipes

HERE = pathlib.Path(__file__).resolve().parent


def call(name, number, **arguments):
    return function_call(name, arguments, call_id=f"call-{number}")


def patch(number, text):
    from openai.types.responses import ResponseCustomToolCall

    return ResponseCustomToolCall(call_id=f"call-{number}", input=text, name="apply_patch", type="custom_tool_call")


def outputs(model):
    """The outputs of the tools that the model got, by call."""
    said = {}
    for item in model.last_call.input:
        if item.get("type") in {"function_call_output", "custom_tool_call_output"}:
            said[item["call_id"]] = item["output"]
    return [said[f"call-{number}"] for number in range(len(said))]


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_agent_runs_writes_and_waits(name):
    patched = "*** Begin Patch\n*** Update File: task.txt\n@@\n-one\n+ONE\n*** End Patch\n"
    model = ScriptedModel(
        [
            [call("exec_command", 0, cmd="cat task.txt && id -u && echo to-stderr >&2; exit 7")],
            [patch(1, patched)],
            [call("exec_command", 2, cmd="cat task.txt; mkdir -p out && echo 'six * 7 = '$((6*7)) > out/answer; cat out/*")],
            [assistant_message("done")],
        ]
    )
    client, options = client_of(name)
    manifest = Manifest(root=root_of(name), entries={"task.txt": File(content=b"one\ntwo\n")})
    agent = SandboxAgent(name="worker", model=model, instructions="work", capabilities=[Shell(), Filesystem()])
    config = RunConfig(
        sandbox=SandboxRunConfig(client=client, options=options, manifest=manifest), tracing_disabled=True
    )
    result = await Runner.run(agent, "do it", run_config=config)
    assert result.final_output == "done"
    model.assert_complete()
    first, second, third = outputs(model)
    assert "one\ntwo\n" in first and "to-stderr" in first and "exited with code 7" in first, first
    assert "Done" in second or "task.txt" in second, second
    assert "ONE\ntwo\nsix * 7 = 42" in third, third


@pytest.mark.parametrize("name", CLIENTS)
async def test_killed_and_resumed(name, tmp_path):
    """A client that is killed with -9 leaves its sandbox, and another process goes on in it."""
    saved = tmp_path / "state.json"
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "openai_agents_killed.py"), name, str(saved), stdout=asyncio.subprocess.PIPE
    )
    line = await asyncio.wait_for(child.stdout.readline(), 120)
    assert line == b"saved\n"
    child.send_signal(signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL

    client, _ = client_of(name)
    state = client.deserialize_session_state(json.loads(saved.read_text()))
    model = ScriptedModel([[call("exec_command", 0, cmd="cat kept; cat /tmp/beside")], [assistant_message("resumed")]])
    agent = SandboxAgent(name="worker", model=model, instructions="work", capabilities=[Shell()])
    config = RunConfig(sandbox=SandboxRunConfig(client=client, session_state=state), tracing_disabled=True)
    result = await Runner.run(agent, "go on", run_config=config)
    assert result.final_output == "resumed"
    [only] = outputs(model)
    # The file outside the workspace shows that it is the same sandbox, and not a new one made from a copy.
    assert "before the kill" in only and "the same machine" in only, only


async def test_long_commands_terminals_files_and_snapshots():
    """Further features of Atoll's own client, each called by the SDK's interface, as its tools do."""
    from agents.sandbox.errors import ExecTimeoutError, PtySessionNotFoundError, WorkspaceReadNotFoundError

    client, options = client_of("atoll")
    async with client:
        session = await client.create(manifest=Manifest(environment={"value": {"GIVEN": "here"}}), options=options)
        async with session:
            done = await session.exec("echo $GIVEN; id -un; pwd", user="user")
            assert done.stdout == b"here\nuser\n/workspace\n", done.stderr
            with pytest.raises(ExecTimeoutError):
                await session.exec("sleep 1000", timeout=1)
            going = await session.pty_exec_start("stty -echo; read line; echo got $line; exit 3", tty=True, yield_time_s=0.25)
            assert going.process_id is not None and going.exit_code is None
            over = await session.pty_write_stdin(session_id=going.process_id, chars="typed\n", yield_time_s=30)
            assert b"got typed" in going.output + over.output and over.exit_code == 3 and over.process_id is None
            with pytest.raises(PtySessionNotFoundError):
                await session.pty_write_stdin(session_id=going.process_id, chars="")
            await session.write(pathlib.Path("deep/a.bin"), io.BytesIO(b"\xff\x00" * 1000))
            assert (await session.read(pathlib.Path("deep/a.bin"))).read() == b"\xff\x00" * 1000
            assert await session.read_bounded(pathlib.Path("deep/a.bin"), max_bytes=3) == b"\xff\x00\xff"
            with pytest.raises(WorkspaceReadNotFoundError):
                await session.read(pathlib.Path("absent"))
            with pytest.raises(InvalidManifestPathError):
                await session.read(pathlib.Path("/etc/passwd"))
            await session.exec("ln -s /etc/passwd leads-out")
            with pytest.raises(InvalidManifestPathError):
                await session.read(pathlib.Path("leads-out"))
            with pytest.raises(WorkspaceArchiveWriteError):
                await session.mkdir("none/below")
            with pytest.raises(WorkspaceArchiveWriteError):
                await session.mkdir("deep/a.bin")
            for user in [None, "root"]:
                await session.mkdir(f"own-{user}", user=user)
                await session.mkdir(f"own-{user}", user=user)
                await session.mkdir(f"{user}/a/b", parents=True, user=user)
                await session.mkdir(f"{user}/a/b", parents=True, user=user)
            assert (await session.exec("ls -d none own-* */a/b")).stdout.split() == [b"None/a/b", b"own-None", b"own-root", b"root/a/b"]
            archive = await session.persist_workspace()
            await session.exec("rm -rf deep")
            await session.exec("rm leads-out")
        again = await client.create(manifest=Manifest(), options=options)
        async with again:
            with pytest.raises(WorkspaceArchiveWriteError):
                await again.hydrate_workspace(archive)  # its link leads out


def test_the_readmes_example(capsys):
    [code] = recipes("integrations/openai-agents/README.md")
    exec(compile(code, "README.md", "exec"), {})
    assert "hello" in capsys.readouterr().out


async def test_the_pages_example():
    [code] = recipes("docs/frameworks.md", "OpenAI Agents SDK")
    exec(compile(code, "frameworks.md", "exec"), names := {})
    sandbox = names["sandbox"]
    session = await sandbox.client.create(manifest=sandbox.manifest, options=sandbox.options)
    async with session:
        assert (await session.exec("pwd")).stdout == b"/home/user/workspace\n"
