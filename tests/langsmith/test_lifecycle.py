"""Stopping, waking and starting sandboxes, also automatically."""

import threading

import pytest
from conftest import VERSION, native, raw, since, until
from langsmith.sandbox import AsyncSandboxClient, ResourceNotFoundError, SandboxClientError, SandboxOperationError


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
    # The client is told why the command has ended.
    with pytest.raises(SandboxOperationError, match="the sandbox was stopped under the command"):
        handle.result
    assert own.run("echo again").stdout == "again\n"


def test_a_stop_is_told_though_the_command_ends_with_a_code(client, own):
    """Without that, a code of 143 looks as if the command had been ended by something else."""
    for command in ["echo begun; exec sleep 600", "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done"]:
        handle = own.run(command, wait=False, timeout=600)
        assert next(iter(handle)).data == "begun\n"
        client.stop_sandbox(own.name)
        with pytest.raises(SandboxOperationError, match="the sandbox was stopped under the command, which ended with code"):
            handle.result


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


@since(0, 15)
@pytest.mark.parametrize("transport", ["websocket", "events"])
def test_a_client_is_told_of_a_stop_that_preserves_memory(client, monkeypatch, transport):
    """It neither waits for ever nor comes back by itself, which would wake the sandbox. The command goes on when the
    sandbox does, and a client that attaches to it misses nothing."""
    if transport == "events":
        monkeypatch.setenv("LANGSMITH_EXPERIMENTAL_FEATURES", "sandbox_sse_exec")
    box = client.create_sandbox(preserve_memory_on_stop=True)
    try:
        command = "for i in 1 2 3 4 5; do echo $i; while [ ! -e /tmp/go ]; do sleep 0.05; done; done; exit 3"
        handle = box.run(command, wait=False, timeout=600)
        seen, errors = [], []

        def read():
            try:
                seen.extend(chunk.data for chunk in handle)
            except SandboxOperationError as error:
                errors.append(str(error))

        # A client that waits for ever does not hold the test up.
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        until("it begins", lambda: handle.last_stdout_offset == 2)
        client.stop_sandbox(box.name)
        reading.join(timeout=60)
        assert not reading.is_alive(), "it waits for ever"
        assert "stopped with its memory" in errors[0] and seen == ["1\n"]
        assert state(client, box) == "stopped"
        again = box.reconnect(handle.command_id, stdout_offset=handle.last_stdout_offset)
        box.write("/tmp/go", b"")
        rest = again.result
        assert (rest.stdout, rest.exit_code) == ("2\n3\n4\n5\n", 3)
        assert state(client, box) == "ready"
    finally:
        client.delete_sandbox(box.name)


@since(0, 15)
def test_a_request_is_told_of_a_stop_that_preserves_memory(client):
    """The transport that has one answer for a command: without its client the command ends when the sandbox goes on."""
    box = client.create_sandbox(preserve_memory_on_stop=True)
    try:
        path = box.dataplane_url[box.dataplane_url.index("/v2/") :]
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(raw("POST", path + "/execute", {"command": "touch /tmp/begun; sleep 600", "timeout": 900}))
        )
        asking.start()
        until("it begins", lambda: box.run("test -e /tmp/begun").exit_code == 0)
        client.stop_sandbox(box.name)
        asking.join()
        [(status, answer)] = answers
        assert (status, answer["detail"]["error"]) == (410, "CommandError") and "stopped" in answer["detail"]["message"]
        assert state(client, box) == "stopped"
        until("it ends", lambda: box.run("pgrep -x sleep").exit_code != 0)
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
