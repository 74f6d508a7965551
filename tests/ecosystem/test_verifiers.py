"""Prime Intellect's verifiers: its runtime for E2B, which rollouts of an environment run in."""

import asyncio
import os

import httpx
import pytest
from recipes import recipes


@pytest.fixture
async def runtime():
    [recipe] = recipes("docs/frameworks.md", "verifiers")
    exec(compile(recipe, "frameworks.md", "exec"), names := {})
    from verifiers.v1.runtimes.e2b import E2BRuntime

    runtime = E2BRuntime(names["config"].model_copy(update={"image": "host"}))
    await runtime.start()
    yield runtime
    await runtime.stop()


async def test_a_rollout_s_runtime(runtime):
    await runtime.write("sub/a.txt", b"one\x00\xff\n")
    assert await runtime.read("sub/a.txt") == b"one\x00\xff\n"
    ran = await runtime.run(["sh", "-c", "pwd; id -un; echo $GIVEN; echo err >&2; exit 3"], {"GIVEN": "a b"})
    assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "/app\nroot\na b\n", "err\n")
    program = await runtime.run_program(["sh", "-c", "cat sub/a.txt | wc -c; exit 4"], {})
    assert (program.exit_code, program.stdout) == (4, "6\n")


async def test_a_process_whose_output_is_bytes(runtime):
    process = await runtime.open_process(["sh", "-c", "head -c 4; printf '\\377\\000'; sleep 600"], {})
    await process.write(b"ab\xfe\n")
    got = b""
    async for chunk in process.stdout:
        got += chunk
        if got.endswith(b"\xff\x00"):
            break
    assert got == b"ab\xfe\n\xff\x00"
    assert await process.poll() is None
    await process.kill()
    assert await asyncio.wait_for(process.wait(), 30) != 0


async def test_a_server_inside_has_an_address_and_answers(runtime):
    await runtime.write("index.html", b"from inside")
    await runtime.run_background(["python3", "-m", "http.server", "8000"], {}, "/tmp/log")
    assert (await runtime.expose(8000)).startswith(f"https://8000-{runtime.info.id}.")
    # Ports by host name need a domain. This reaches the same port by headers.
    named = {"E2b-Sandbox-Id": runtime.info.id, "E2b-Sandbox-Port": "8000"}
    async with httpx.AsyncClient() as client:
        for _ in range(100):
            answer = await client.get(os.environ["E2B_SANDBOX_URL"], headers=named)
            if answer.status_code == 200:
                break
            await asyncio.sleep(0.1)
    assert answer.text == "from inside"


async def test_the_network_policy_of_a_rollout():
    from e2b import AsyncSandbox
    from verifiers.v1.runtimes.e2b import E2BConfig, E2BRuntime

    runtime = E2BRuntime(E2BConfig(image="host", allow=["example.com"], block=[]))
    await runtime.start()
    try:
        await runtime.prepare_execution([])
        network = (await AsyncSandbox.get_info(runtime.info.id)).network
        assert (network["allow_out"], network["deny_out"]) == (["example.com"], ["0.0.0.0/0"])
    finally:
        await runtime.stop()


async def test_a_runtime_that_is_stopped_leaves_no_sandbox():
    from e2b import AsyncSandbox
    from verifiers.v1.runtimes.e2b import E2BConfig, E2BRuntime

    runtime = E2BRuntime(E2BConfig(image="host"))
    await runtime.start()
    await runtime.stop()
    assert await AsyncSandbox.list().next_items() == []
