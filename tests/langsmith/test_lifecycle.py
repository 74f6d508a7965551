"""Stopping, waking and starting sandboxes, also automatically."""

import time

import pytest
from conftest import VERSION, native, raw, since
from langsmith.sandbox import AsyncSandboxClient, ResourceNotFoundError, SandboxClientError


@pytest.fixture
def own(client):
    """A sandbox for one test alone."""
    box = client.create_sandbox()
    yield box
    try:
        client.delete_sandbox(box.id)
    except ResourceNotFoundError:
        pass


def state(client, box):
    return client.get_sandbox_status(box.name).status


def until(what, check, seconds=60):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_files_stay_processes_end(client, own):
    own.write("/home/user/file", b"kept")
    own.run("setsid sleep 1000 >/dev/null 2>&1 & echo")
    client.stop_sandbox(own.name)
    stopped = client.get_sandbox(own.name)
    assert (stopped.status, state(client, own)) == ("stopped", "stopped")
    # Clients keep the old object, so the address must stay.
    assert stopped.dataplane_url == own.dataplane_url
    assert raw("GET", f"/v2/sandboxes/boxes/{own.name}")[1]["stopped_at"]
    client.stop_sandbox(own.name)
    assert own.name in [item["name"] for item in raw("GET", "/v2/sandboxes/boxes?status=stopped")[1]["items"]]
    assert raw("GET", "/v2/sandboxes/boxes?status=ready&name_contains=" + own.name)[1]["items"] == []
    started = client.start_sandbox(own.name)
    assert started.status == "ready" and raw("GET", f"/v2/sandboxes/boxes/{own.name}")[1]["stopped_at"] is None
    assert own.read("/home/user/file") == b"kept"
    assert own.run("pgrep -x sleep").stdout == ""
    client.start_sandbox(own.name)


@pytest.mark.parametrize("use", ["run", "read", "write", "async"])
def test_any_use_wakes_it(client, own, use):
    own.write("/home/user/file", b"kept")
    client.stop_sandbox(own.name)
    if use == "run":
        assert own.run("cat /home/user/file").stdout == "kept"
    elif use == "read":
        assert own.read("/home/user/file") == b"kept"
    elif use == "write":
        own.write("/home/user/other", b"new")
    else:
        run_asynchronously(own.name)
    assert state(client, own) == "ready"


def run_asynchronously(name):
    import asyncio

    async def many():
        async with AsyncSandboxClient() as client:
            box = await client.get_sandbox(name)
            return await asyncio.gather(*(box.run("cat /home/user/file") for _ in range(5)))

    assert [result.stdout for result in asyncio.run(many())] == ["kept"] * 5


@since(0, 13)
def test_searches_and_stats_wake_it(client, own):
    own.write("/srv/own/file", b"kept")
    for use in [
        lambda: own.stat("/srv/own/file").size_bytes == 4,
        lambda: len(own.glob("*", path="/srv/own").matches) == 1,
        lambda: len(own.grep("kept", path="/srv/own").matches) == 1,
    ]:
        client.stop_sandbox(own.name)
        assert use() and state(client, own) == "ready"


def test_a_tunnel_wakes_it(client, own):
    client.stop_sandbox(own.name)
    with own.tunnel(8000, local_port=0 if VERSION < (0, 11) else 18765):
        until("the handshake wakes it", lambda: state(client, own) == "ready")


def test_a_stop_ends_what_runs_even_what_does_not_want_to(client, own):
    handle = own.run("trap '' TERM; echo begun; while :; do sleep 0.2; done", wait=False, timeout=600)
    chunks = iter(handle)
    assert next(chunks).data == "begun\n"
    # The client waits for ten seconds.
    client.stop_sandbox(own.name)
    until("it stops", lambda: state(client, own) == "stopped")
    # The command has ended, and a client that reads it gets its end or an error.
    try:
        assert handle.result.exit_code != 0
    except SandboxClientError as error:
        assert "stopped" in str(error)
    assert own.run("echo again").stdout == "again\n"


def test_a_finished_command_can_be_read_while_it_is_stopped(client, own):
    handle = own.run("echo done", wait=False)
    assert handle.result.stdout == "done\n"
    client.stop_sandbox(own.name)
    assert own.reconnect(handle.command_id).result.stdout == "done\n"


@since(0, 15)
def test_memory_that_is_preserved(client):
    box = client.create_sandbox(preserve_memory_on_stop=True)
    try:
        assert box.preserve_memory_on_stop
        box.run("setsid bash -c 'n=0; while :; do n=$((n+1)); echo $n > /tmp/n; sleep 0.05; done' >/dev/null 2>&1 & echo $! > /tmp/pid")
        pid = box.run("pgrep -f 'while :' | head -1").stdout
        client.stop_sandbox(box.name)
        assert state(client, box) == "stopped"
        # The process goes on where it was.
        assert box.run("pgrep -f 'while :' | head -1").stdout == pid
        first = int(box.run("cat /tmp/n").stdout or 0)
        until("it counts on", lambda: int(box.run("cat /tmp/n").stdout or 0) > first)
    finally:
        client.delete_sandbox(box.name)


def test_times_are_the_engines(client):
    status, made = raw("POST", "/v2/sandboxes/boxes", {"idle_ttl_seconds": 120, "delete_after_stop_seconds": 600})
    assert status == 201
    try:
        box = native("GET", f"/v1/sandboxes/{made['name']}")
        assert (box["idle_timeout_ms"], box["on_idle"], box["delete_paused_after_ms"]) == (120_000, "hibernate", 600_000)
        raw("PATCH", f"/v2/sandboxes/boxes/{made['name']}", {"idle_ttl_seconds": 0, "delete_after_stop_seconds": 0})
        box = native("GET", f"/v1/sandboxes/{made['name']}")
        assert box["idle_timeout_ms"] is None and "delete_paused_after_ms" not in box
        for wrong in [{"idle_ttl_seconds": 61}, {"delete_after_stop_seconds": 1}]:
            assert raw("PATCH", f"/v2/sandboxes/boxes/{made['name']}", wrong)[0] == 422
    finally:
        client.delete_sandbox(made["name"])
    # The defaults: ten minutes, fourteen days.
    status, made = raw("POST", "/v2/sandboxes/boxes", {})
    assert (made["idle_ttl_seconds"], made["delete_after_stop_seconds"]) == (600, 14 * 24 * 3600)
    client.delete_sandbox(made["name"])


def test_it_stops_by_itself_and_is_deleted(client, own):
    own.write("/home/user/file", b"kept")
    # The protocol's shortest time is a minute; the native API has no such bound.
    native("PATCH", f"/v1/sandboxes/{own.name}", {"idle_timeout_ms": 300})
    # A running command counts as use.
    assert own.run("sleep 1; echo there").stdout == "there\n"
    until("it stops", lambda: state(client, own) == "stopped")
    assert own.run("cat /home/user/file").stdout == "kept"
    native("PATCH", f"/v1/sandboxes/{own.name}", {"delete_paused_after_ms": 300})

    def gone():
        try:
            return state(client, own) is None
        except ResourceNotFoundError:
            return True

    until("it is deleted", gone)
    with pytest.raises(SandboxClientError) as caught:
        own.read("/home/user/file")
    assert not isinstance(caught.value, ResourceNotFoundError), "a sandbox that is gone is no missing file"


def test_capture_while_stopped(client, own, name):
    own.write("/home/user/file", b"kept")
    client.stop_sandbox(own.name)
    snapshot = client.capture_snapshot(own.name, name)
    try:
        with client.sandbox(snapshot_id=snapshot.id) as copy:
            assert copy.read("/home/user/file") == b"kept"
    finally:
        client.delete_snapshot(snapshot.id)


def test_what_cannot_be_stopped_or_started(client):
    for call in [client.stop_sandbox, client.start_sandbox]:
        with pytest.raises(ResourceNotFoundError):
            call("nobody")


async def test_the_asynchronous_client(name):
    async with AsyncSandboxClient() as client:
        box = await client.create_sandbox(name=name)
        try:
            await client.stop_sandbox(name)
            assert (await client.get_sandbox_status(name)).status == "stopped"
            assert (await client.start_sandbox(name)).status == "ready"
            assert (await client.wait_for_sandbox(name)).status == "ready"
        finally:
            await client.delete_sandbox(box.name)
