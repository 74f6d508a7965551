"""Devboxes from creation to shutdown."""

import threading
import uuid

import pytest
from conftest import VERSION, call, named_shells, native, new_key, raw, until
from runloop_api_client import (
    AsyncRunloop,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    PermissionDeniedError,
    Runloop,
)
from runloop_api_client.sdk import AsyncRunloopSDK


def test_create_execute_output_shutdown(sdk):
    devbox = sdk.devbox.create(name="first", metadata={"a": "1"}, environment_variables={"GREETING": "hello"})
    result = devbox.cmd.exec("echo $GREETING; echo no >&2; exit 3")
    assert (result.stdout(), result.stderr(), result.exit_code) == ("hello\n", "no\n", 3)
    info = devbox.get_info()
    assert info.id.startswith("dbx_") and info.status == "running" and info.name == "first"
    assert info.metadata == {"a": "1"} and info.end_time_ms is None
    assert info.launch_parameters.keep_alive_time_seconds == 3600
    assert devbox.shutdown().status == "shutdown"
    gone = devbox.get_info()
    assert (gone.status, gone.shutdown_reason) == ("shutdown", "api_shutdown")
    assert gone.end_time_ms >= gone.create_time_ms
    assert devbox.shutdown().status == "shutdown"


def test_the_same_sandbox_natively(own):
    sandbox = "sb" + own.id.removeprefix("dbx_")
    assert native("GET", f"/v1/sandboxes/{sandbox}")["labels"] == {"for": "one test"}
    # Both APIs accept both forms of the id.
    assert call("GET", f"/v1/devboxes/{sandbox}")[1]["id"] == own.id
    made = native("POST", "/v1/sandboxes", {})
    try:
        told = call("GET", "/v1/devboxes/dbx_" + made["id"].removeprefix("sb"))[1]
        assert told["status"] == "running" and told["name"]
    finally:
        native("DELETE", f"/v1/sandboxes/{made['id']}")


def test_commands_run_as_the_user_at_home(own):
    assert own.cmd.exec("id -un; pwd").stdout() == "user\n/home/user\n"


def test_list_pages(sdk, client):
    boxes = [sdk.devbox.create(metadata={"n": str(n)}) for n in range(3)]
    try:
        ids = [box.id for box in boxes][::-1]
        page = client.devboxes.list(limit=2)
        assert [box.id for box in page.devboxes] == ids[:2] and page.has_more and page.total_count >= 3
        assert [box.id for box in page.get_next_page().devboxes][0] == ids[2]
        assert [box.id for box in client.devboxes.list(limit=1)][:3] == ids
        assert client.devboxes.list(status="suspended").devboxes == []
        if VERSION >= (2, 0):
            assert client.devboxes.list(include_total_count=False).total_count is None
        with pytest.raises(BadRequestError):
            client.devboxes.list(starting_after="dbx_none")
    finally:
        for box in boxes:
            box.shutdown()


def test_update(client, own):
    changed = client.devboxes.update(own.id, name="new", metadata={"b": "two words"})
    assert (changed.name, changed.metadata) == ("new", {"b": "two words"})
    sandbox = "sb" + own.id.removeprefix("dbx_")
    assert native("GET", f"/v1/sandboxes/{sandbox}")["labels"] == {"b": "two words"}


def test_a_creation_that_is_sent_again_makes_one():
    headers = {"x-request-id": f"test-{uuid.uuid4()}"}
    answers = []
    send = lambda: answers.append(call("POST", "/v1/devboxes", {"name": "once"}, headers=headers)[1]["id"])
    threads = [threading.Thread(target=send) for _ in range(5)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    send()
    assert len(set(answers)) == 1 and len(answers) == 6
    status, body = call("POST", "/v1/devboxes", {"name": "other"}, headers=headers)
    assert status == 400 and "x-request-id" in body["message"]
    # The same request id with another key is another request.
    status, body = call("POST", "/v1/devboxes", {"name": "once"}, headers=headers, key=new_key("manage"))
    assert status == 200 and body["id"] != answers[0]
    for id in {answers[0], body["id"]}:
        assert call("POST", f"/v1/devboxes/{id}/shutdown")[0] == 200


def test_suspend_and_resume(own):
    own.file.write(file_path="kept", contents="on disk")
    own.cmd.exec_async("sleep 600")
    assert own.suspend().status == "suspended"
    assert own.get_info().status == "suspended"
    with pytest.raises(BadRequestError, match="suspended: resume it first"):
        own.cmd.exec("true")
    with pytest.raises(BadRequestError, match="suspended"):
        own.file.read(file_path="kept")
    assert own.get_info().status == "suspended"
    assert own.resume().status == "running"
    assert own.file.read(file_path="kept") == "on disk"
    assert own.cmd.exec("pgrep -x sleep").exit_code == 1


def test_idle_devboxes_suspend(sdk, client):
    idle = {"idle_time_seconds": 1, "on_idle": "suspend"}
    with sdk.devbox.create(launch_parameters={"after_idle": idle}, file_mounts={"/home/user/kept": "x"}) as devbox:
        assert client.devboxes.retrieve(devbox.id).launch_parameters.after_idle.on_idle == "suspend"
        assert devbox.await_suspended().status == "suspended"
        # A resumed devbox would be idle at once, so the test reads its disk from a snapshot.
        snapshot = devbox.snapshot_disk()
        with sdk.devbox.create_from_snapshot(snapshot.id) as other:
            assert other.file.read(file_path="kept") == "x"
        snapshot.delete()


def test_idle_devboxes_shut_down(sdk):
    idle = {"idle_time_seconds": 1, "on_idle": "shutdown"}
    devbox = sdk.devbox.create(launch_parameters={"lifecycle": {"after_idle": idle}})
    gone = until(lambda: (info := devbox.get_info()).status == "shutdown" and info)
    assert gone.shutdown_reason == "idle"


def test_keep_alive(sdk):
    devbox = sdk.devbox.create(launch_parameters={"keep_alive_time_seconds": 600})
    sandbox = "sb" + devbox.id.removeprefix("dbx_")
    before = native("GET", f"/v1/sandboxes/{sandbox}")
    devbox.keep_alive()
    after = native("GET", f"/v1/sandboxes/{sandbox}")
    assert before["expires_at_ms"] < after["expires_at_ms"]
    devbox.shutdown()
    short = sdk.devbox.create(launch_parameters={"keep_alive_time_seconds": 1})
    gone = until(lambda: (info := short.get_info()).status == "shutdown" and info)
    assert gone.shutdown_reason == "keep_alive_timeout"


def test_sizes(sdk):
    size = {"resource_size_request": "CUSTOM_SIZE", "custom_cpu_cores": 0.5, "custom_gb_memory": 1}
    with sdk.devbox.create(launch_parameters=size) as devbox:
        sandbox = native("GET", "/v1/sandboxes/sb" + devbox.id.removeprefix("dbx_"))
        assert sandbox["resources"]["cpu_millis"] == 500 and sandbox["resources"]["memory_bytes"] == 1 << 30
        assert devbox.get_info().launch_parameters.custom_cpu_cores == 0.5


def test_waits():
    made = call("POST", "/v1/devboxes", {})[1]
    path = f"/v1/devboxes/{made['id']}/wait_for_status"
    assert call("POST", path, {"statuses": ["running"], "timeout_seconds": 0.5})[1]["status"] == "running"
    status, headers, _ = raw("POST", path, {"statuses": ["suspended"], "timeout_seconds": 0.2})
    assert status == 408 and headers["x-should-retry"] == "false"
    assert call("POST", path, {"statuses": ["asleep"]})[0] == 400
    assert call("POST", path, {})[0] == 400
    call("POST", f"/v1/devboxes/{made['id']}/shutdown")
    assert call("POST", path, {"statuses": ["shutdown"]})[1]["status"] == "shutdown"


def test_launch_commands_and_mounts(sdk):
    with sdk.devbox.create(
        launch_parameters={"launch_commands": ["cat config > seen", "echo $A >> seen"]},
        environment_variables={"A": "b"},
        file_mounts={"/home/user/config": "text\n"},
        mounts=[{"type": "file_mount", "target": "/home/user/deep/er", "content": "more"}],
    ) as devbox:
        assert devbox.file.read(file_path="seen") == "text\nb\n"
        assert devbox.cmd.exec("cat deep/er; stat -c %U config").stdout() == "moreuser\n"


def test_a_launch_command_that_fails(client):
    made = client.devboxes.create(launch_parameters={"launch_commands": ["echo broken >&2; exit 4"]})
    assert (made.status, made.failure_reason) == ("failure", "execution_failed")
    with pytest.raises(BadRequestError, match="ended with 4: broken"):
        client.devboxes.execute_sync(made.id, command="true")
    with pytest.raises(Exception, match="failure"):
        client.devboxes.await_running(made.id)
    assert client.devboxes.shutdown(made.id).status == "shutdown"


def test_users(sdk):
    root = {"username": "root", "uid": 0}
    with sdk.devbox.create(launch_parameters={"user_parameters": root}) as devbox:
        assert devbox.cmd.exec("id -u; pwd").stdout() == "0\n/root\n"
    dev = {"username": "dev", "uid": 4321}
    with sdk.devbox.create(launch_parameters={"user_parameters": dev, "launch_commands": ["touch mine"]}) as devbox:
        assert devbox.cmd.exec("id -un; id -u; pwd; ls").stdout() == "dev\n4321\n/home/dev\nmine\n"


@pytest.mark.parametrize(
    "asked",
    [
        {"entrypoint": "sleep 1"},
        {"gateways": {"GWS": {"gateway": "a", "secret": "b"}}},
        {"mcp": {"M": {"mcp_config": "a", "secret": "b"}}},
        {"mounts": [{"type": "broker_mount", "axon_id": "x"}]},
        {"launch_parameters": {"architecture": "sparc"}},
        {"launch_parameters": {"required_services": ["db"]}},
        {"launch_parameters": {"resource_size_request": "HUGE"}},
        {"launch_parameters": {"user_parameters": {"username": "x", "uid": 0}}},
        {"code_mounts": [{"repo_owner": "a", "repo_name": "../b"}]},
        {"blueprint_id": "bpt_a", "snapshot_id": "snp_a"},
    ],
)
def test_what_is_not_had_is_refused(client, asked):
    count = client.devboxes.list().total_count
    with pytest.raises(BadRequestError):
        client.devboxes.create(**asked)
    assert client.devboxes.list().total_count == count


def test_errors(client):
    for id in ["dbx_none", "dbx_" + "0" * 20, "x"]:
        with pytest.raises(NotFoundError):
            client.devboxes.retrieve(id)
        with pytest.raises(NotFoundError):
            client.devboxes.execute_sync(id, command="true")
    with pytest.raises(AuthenticationError):
        Runloop(bearer_token="wrong").devboxes.list()
    status, headers, _ = raw("GET", "/v1/nothing")
    assert status == 404 and headers["x-should-retry"] == "false"
    assert raw("PUT", "/v1/devboxes")[0] == 405
    assert raw("POST", "/v1/devboxes", b"{")[0] == 400


def test_other_keys(own):
    reader = Runloop(bearer_token=new_key("read"))
    assert reader.devboxes.retrieve(own.id).id == own.id
    with pytest.raises(PermissionDeniedError):
        reader.devboxes.execute_async(own.id, command="true")
    with pytest.raises(PermissionDeniedError):
        reader.devboxes.shutdown(own.id)
    with pytest.raises(PermissionDeniedError):
        reader.devboxes.create()


async def test_the_same_asynchronously():
    async with AsyncRunloopSDK() as sdk:
        async with await sdk.devbox.create(name="async") as devbox:
            result = await devbox.cmd.exec("echo hello")
            assert (await result.stdout(), result.exit_code) == ("hello\n", 0)
            assert (await devbox.suspend()).status == "suspended"
            assert (await devbox.resume()).status == "running"
        assert (await devbox.get_info()).status == "shutdown"
    plain = AsyncRunloop()
    made = await plain.devboxes.create_and_await_running(name="plain")
    assert made.status == "running"
    await plain.devboxes.shutdown(made.id)


@named_shells
def test_a_shell_keeps_its_state(own):
    shell = own.shell("main") if hasattr(own, "shell") else None
    run = shell.exec if shell else lambda line: own.cmd.exec(line, shell_name="main")
    run("cd /tmp && export A='b c' && f() { echo \"$A in $PWD\"; } && alias g=f")
    assert run("f; g").stdout() == "b c in /tmp\nb c in /tmp\n"
    assert run("mkdir -p \"it's\" && cd \"it's\"; exit 5").exit_code == 5
    assert run("pwd").stdout() == "/tmp/it's\n"
    assert own.cmd.exec("echo ${A-none}; pwd").stdout() == "none\n/home/user\n"
    # A background process does not block the shell.
    run("sleep 300 >/dev/null 2>&1 &")
    assert run("echo next").stdout() == "next\n"
    own.suspend()
    own.resume()
    assert run("f").stdout() == "b c in /tmp/it's\n"
