"""NeMo Gym: its own sandbox API, over the provider that it finds by its entry point."""

import asyncio

import pytest
from atoll import Atoll
from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxSpec
from nemo_gym.sandbox.providers import SandboxCreateError, SandboxStatus, list_providers
from recipes import recipes

ATOLL = {"atoll": {"idle": "10m"}}


def test_it_is_found():
    assert "atoll" in list_providers()


async def test_the_recipe_of_its_page(capsys):
    [recipe] = recipes("integrations/nemo-gym/README.md")
    exec(compile(recipe, "README.md", "exec"), names := {})
    await names["main"]()
    assert capsys.readouterr().out == "hello you from /work\n\n"


async def test_a_sandbox_from_beginning_to_end(tmp_path):
    spec = SandboxSpec(
        image="host",
        workdir="/work",
        env={"WHO": "gym"},
        files={"/work/sub/given.txt": "given\n"},
        metadata={"task": "one of many"},
        resources={"cpu": 1, "memory_mib": 512, "disk_gib": 2},
        ttl_s=600,
        entrypoint=["sh", "-c", "echo begun > /work/entry; sleep 600"],
    )
    sandbox = await AsyncSandbox(ATOLL, spec).start()
    try:
        assert await sandbox.status() is SandboxStatus.RUNNING
        done = await sandbox.exec("cat sub/given.txt; pwd; echo $WHO $MORE; echo err >&2; exit 3", env={"MORE": "a b"})
        assert (done.stdout, done.stderr, done.return_code, done.error_type) == ("given\n/work\ngym a b\n", "err\n", 3, None)
        assert (await sandbox.exec("id -u; pwd", cwd="/tmp", user=1234)).stdout == "1234\n/tmp\n"
        assert (await sandbox.exec("cat /work/entry")).stdout == "begun\n"
        late = await sandbox.exec("echo begun; sleep 600", timeout_s=1)
        assert (late.stdout, late.error_type) == ("begun\n", "timeout")
        (tmp_path / "up").write_bytes(bytes(range(256)) * 4096)
        await sandbox.upload(tmp_path / "up", "/work/new/dir/up")
        await sandbox.download("/work/new/dir/up", tmp_path / "down/here")
        assert (tmp_path / "down/here").read_bytes() == (tmp_path / "up").read_bytes()
        with pytest.raises(FileNotFoundError):
            await sandbox.download("/nothing", tmp_path / "nothing")
        [listed] = list(Atoll().sandboxes.list(labels={"made-by": "nemo-gym", "task": "one of many"}))
        # Another client deletes the sandbox.
        listed.delete()
        assert await sandbox.status() is SandboxStatus.STOPPED
        assert (await sandbox.exec("true")).error_type == "sandbox"
    finally:
        await sandbox.stop()


def test_the_blocking_form_leaves_nothing():
    with Sandbox(ATOLL, SandboxSpec(image="host")) as sandbox:
        sandbox.start()
        assert sandbox.exec("echo here").stdout == "here\n"
    assert list(Atoll().sandboxes.list(labels={"made-by": "nemo-gym"})) == []


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (SandboxSpec(image="none-such:1"), "none-such"),
        (SandboxSpec(resources={"gpu": 1}), "gpu"),
        (SandboxSpec(provider_options={"what": 1}), "what"),
        (SandboxSpec(entrypoint=["/no/such/program"]), "entrypoint"),
    ],
)
async def test_what_cannot_be_made_says_why_and_leaves_nothing(spec, why):
    with pytest.raises(SandboxCreateError, match=why):
        await AsyncSandbox(ATOLL, spec).start()
    assert list(Atoll().sandboxes.list(labels={"made-by": "nemo-gym"})) == []


async def test_many_at_once():
    async def one(number):
        async with AsyncSandbox(ATOLL, SandboxSpec(image="host")) as sandbox:
            await sandbox.start()
            return (await sandbox.exec(f"echo {number}")).stdout

    assert await asyncio.gather(*map(one, range(8))) == [f"{number}\n" for number in range(8)]
