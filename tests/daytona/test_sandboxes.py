"""Sandboxes: from create to delete, and the answers about them meanwhile."""

import os
import subprocess
import time
import uuid

import pytest
from conftest import call, raw, since, toolbox, until
from daytona import (
    AsyncDaytona,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaConfig,
    DaytonaError,
    DaytonaNotFoundError,
    ListSandboxesQuery,
    Resources,
)


def listed(daytona, **query):
    return list(daytona.list(ListSandboxesQuery(**query)))


def test_create_and_delete(daytona):
    sandbox = daytona.create()
    assert sandbox.state == "started"
    assert sandbox.process.exec("echo hi").result == "hi\n"
    sandbox.delete()
    with pytest.raises(DaytonaNotFoundError):
        daytona.get(sandbox.id)


def test_what_is_given_is_told(daytona):
    name = f"box-{uuid.uuid4().hex[:8]}"
    sandbox = daytona.create(
        CreateSandboxFromSnapshotParams(
            name=name,
            env_vars={"GREETING": "hello"},
            labels={"team": "a b", "wEird key=": "x"},
            auto_stop_interval=30,
            auto_archive_interval=60,
            auto_delete_interval=120,
        )
    )
    try:
        found = daytona.get(name)
        assert (found.id, found.name) == (sandbox.id, name)
        assert found.labels == {"team": "a b", "wEird key=": "x", "code-toolbox-language": "python"}
        assert found.env == {"GREETING": "hello"}
        assert (found.auto_stop_interval, found.auto_archive_interval, found.auto_delete_interval) == (30, 60, 120)
        assert found.process.exec('echo "$GREETING"').result == "hello\n"
        with pytest.raises(DaytonaError) as taken:
            daytona.create(CreateSandboxFromSnapshotParams(name=name))
        assert "name" in str(taken.value)
    finally:
        sandbox.delete()


def test_stop_and_start(own, daytona):
    own.fs.upload_file(b"kept", "/tmp/kept")
    own.stop()
    assert own.state == "stopped"
    assert daytona.get(own.id).state == "stopped"
    own.start()
    assert own.state == "started"
    assert own.fs.download_file("/tmp/kept") == b"kept"


def test_archive(own):
    with pytest.raises(DaytonaError):
        own.archive()
    own.stop()
    own.archive()
    own.refresh_data()
    assert own.state == "archived"
    own.start()
    assert own.state == "started"


@since(0, 220)
def test_pause_keeps_processes(own):
    own.process.exec("nohup sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/pid")
    own.pause()
    assert own.state == "paused"
    own.start()
    assert own.process.exec("kill -0 $(cat /tmp/pid)").exit_code == 0


def test_ephemeral(daytona):
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(ephemeral=True))
    assert sandbox.auto_delete_interval == 0
    sandbox.stop()
    with pytest.raises(DaytonaNotFoundError):
        daytona.get(sandbox.id)


def test_intervals(own, daytona):
    own.set_autostop_interval(0)
    own.set_auto_archive_interval(45)
    own.set_auto_delete_interval(-1)
    found = daytona.get(own.id)
    assert (found.auto_stop_interval, found.auto_archive_interval, found.auto_delete_interval) == (0, 45, -1)
    with pytest.raises(DaytonaError):
        own.set_autostop_interval(-1)


@since(0, 220)
def test_newer_intervals(own, daytona):
    own.set_auto_pause_interval(7)
    own.set_ttl(60)
    found = daytona.get(own.id)
    assert (found.auto_pause_interval, found.auto_stop_interval) == (7, 0)
    assert call("GET", f"/sandbox/{own.id}")[1]["autoDestroyAt"]


def test_labels(own, daytona):
    own.set_labels({"a": "1", "b": "2"})
    assert daytona.get(own.id).labels == {"a": "1", "b": "2"}


def test_listing(daytona):
    mark = uuid.uuid4().hex
    made = [daytona.create(CreateSandboxFromSnapshotParams(labels={"mark": mark, "n": str(n)})) for n in range(3)]
    try:
        if hasattr(ListSandboxesQuery(), "limit"):
            everything = listed(daytona, labels={"mark": mark}, limit=1)
            assert [s.id for s in everything] == [s.id for s in reversed(made)]
        status, page = call("GET", f"/sandbox?limit=2&labels=%7B%22mark%22%3A%22{mark}%22%7D")
        assert (status, len(page["items"])) == (200, 2)
        status, rest = call(
            "GET", f"/sandbox?limit=2&labels=%7B%22mark%22%3A%22{mark}%22%7D&cursor={page['nextCursor']}"
        )
        assert [s["id"] for s in rest["items"]] == [made[0].id] and rest["nextCursor"] is None
        made[1].stop()
        status, stopped = call("GET", f"/sandbox?states=stopped&labels=%7B%22mark%22%3A%22{mark}%22%7D")
        assert [s["id"] for s in stopped["items"]] == [made[1].id]
    finally:
        for sandbox in made:
            sandbox.delete()


def test_resize(own, daytona):
    own.resize(Resources(cpu=1, memory=1))
    found = daytona.get(own.id)
    assert (found.cpu, found.memory) == (1, 1)
    with pytest.raises(DaytonaError) as refused:
        own.resize(Resources(disk=20))
    assert "disk" in str(refused.value)


def test_resources(daytona):
    status, body = call("POST", "/sandbox", {"cpu": 1, "memory": 1, "disk": 2})
    assert (status, body["cpu"], body["memory"], body["disk"]) == (200, 1, 1, 2)
    assert call("DELETE", f"/sandbox/{body['id']}")[0] == 200
    status, body = call("POST", "/sandbox", {"gpu": 1})
    assert status == 400 and "gpu" in body["message"]


def test_network(own):
    own.update_network_settings(network_block_all=True) if hasattr(own, "update_network_settings") else call(
        "POST", f"/sandbox/{own.id}/network-settings", {"networkBlockAll": True}
    )
    status, native = call("GET", f"/sandbox/{own.id}")
    assert (status, native["networkBlockAll"]) == (200, True)
    status, body = call("POST", f"/sandbox/{own.id}/network-settings", {"networkAllowList": "nonsense"})
    assert status == 400 and "networkAllowList" in body["message"]


def at_root(method, path, body=None):
    """A request of the native API."""
    return call(method, path, body, key=os.environ["ATOLL_API_KEY"], root=os.environ["ATOLL_URL"])


def test_network_settings_that_name_nothing_open_nothing(own):
    made = next(s for s in at_root("GET", "/v1/sandboxes")[1]["items"] if s["labels"].get("for") == "one test")

    def native(method, body=None):
        status, told = at_root(method, f"/v1/sandboxes/{made['id']}", body)
        assert status == 200, told
        return told["egress"]["internet"]

    def settings(body):
        assert call("POST", f"/sandbox/{own.id}/network-settings", body)[0] == 200

    usual = native("GET")
    assert native("PATCH", {"egress": {"internet": "off"}}) == "off"
    settings({})
    assert native("GET") == "off"
    # Not blocked means: the server's default network.
    settings({"networkBlockAll": True})
    settings({"networkBlockAll": False})
    assert native("GET") == usual


def test_the_same_sandbox_everywhere(own):
    status, page = at_root("GET", "/v1/sandboxes")
    assert status == 200
    native = [s for s in page["items"] if s["labels"].get("for") == "one test"]
    assert native
    made = native[0]
    status, told = call("GET", f"/sandbox/{made['id']}")
    assert (status, told["id"]) == (200, own.id)


def test_a_sandbox_of_another_api(daytona):
    status, made = at_root("POST", "/v1/sandboxes", {"name": "native"})
    assert status in (200, 201)
    sandbox = daytona.get("native")
    assert sandbox.process.exec("echo here").result == "here\n"
    sandbox.delete()
    assert at_root("GET", f"/v1/sandboxes/{made['id']}")[0] == 404


def test_errors(daytona, own):
    with pytest.raises(DaytonaNotFoundError):
        daytona.get("nothing-of-that-name")
    with pytest.raises(DaytonaNotFoundError):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot="no-such-snapshot"))
    with pytest.raises(DaytonaError) as wrong:
        Daytona(DaytonaConfig(api_key="dtn_wrong", api_url=os.environ["DAYTONA_API_URL"])).create()
    assert type(wrong.value).__name__ in ("DaytonaAuthenticationError", "DaytonaError")
    status, body = call("POST", "/sandbox", {"linkedSandbox": own.id})
    assert (status, body["statusCode"], body["source"], body["path"]) == (501, 501, "DAYTONA_API", "/api/sandbox")
    status, body = call("GET", "/nothing/here")
    assert (status, body["method"]) == (404, "GET")
    status, body = call("POST", "/sandbox", b"{")
    assert status == 400
    status, body = call("POST", f"/{own.id}/computeruse/start", root=toolbox())
    assert (status, "desktop" in body["message"]) == (501, True)


def test_keys_without_rights(daytona):
    name = f"private-{uuid.uuid4().hex[:8]}"
    own = daytona.create(CreateSandboxFromSnapshotParams(name=name))
    subprocess.run([os.environ["ATOLL_BIN"], "access", "set", name, "private"], check=True, capture_output=True)

    def key(scope):
        made = [os.environ["ATOLL_BIN"], "key", "create", f"k-{uuid.uuid4().hex[:8]}", "--scope", scope, "--for", "daytona"]
        return subprocess.run(made, check=True, capture_output=True, text=True).stdout.strip()

    reader, other = key("read"), key("manage")
    for method, path in [
        ("POST", f"/{own.id}/process/execute"),
        ("GET", f"/{own.id}/files?path=/"),
        ("POST", f"/{own.id}/files/bulk-download"),
        ("POST", f"/{own.id}/process/session"),
        ("GET", f"/{own.id}/port"),
    ]:
        assert raw(method, path, {}, key=reader, root=toolbox())[0] in (403, 404), path
        assert raw(method, path, {}, key="", root=toolbox())[0] == 401, path
        assert raw(method, path, {}, key=other, root=toolbox())[0] in (403, 404), path
    for method, path in [
        ("GET", f"/sandbox/{own.id}"),
        ("DELETE", f"/sandbox/{own.id}"),
        ("POST", f"/sandbox/{own.id}/stop"),
        ("PUT", f"/sandbox/{own.id}/labels"),
        ("POST", f"/sandbox/{own.id}/public/true"),
        ("GET", f"/sandbox/{own.id}/ports/80/preview-url"),
        ("GET", f"/sandbox/{own.id}/signing-key"),
    ]:
        assert raw(method, path, {}, key=other)[0] in (403, 404), path
    assert own.id not in [s["id"] for s in call("GET", "/sandbox", key=other)[1]["items"]]
    token = own.get_preview_link(1).token
    assert raw("GET", f"/{own.id}/port?DAYTONA_SANDBOX_AUTH_KEY={token}", key="", root=toolbox())[0] == 200
    own.delete()
    assert raw("GET", f"/{own.id}/port?DAYTONA_SANDBOX_AUTH_KEY={token}", key="", root=toolbox())[0] == 401


def test_home_and_ports(own):
    assert own.get_user_home_dir().startswith("/")
    own.process.exec("nohup python3 -m http.server 8123 >/dev/null 2>&1 &")
    until(lambda: call("GET", f"/{own.id}/port/8123/in-use", root=toolbox())[1]["isInUse"])
    assert 8123 in call("GET", f"/{own.id}/port", root=toolbox())[1]["ports"]
    metrics = call("GET", f"/{own.id}/system/metrics", root=toolbox())[1]
    assert metrics["cpuCount"] >= 1 and metrics["memTotal"] > 0


@since(0, 226)
def test_environment_of_later_commands(own):
    own.update_env({"LATER": "yes"})
    assert own.process.exec("echo $LATER").result == "yes\n"
    own.update_env({}, unset=["LATER"])
    assert own.process.exec("echo [$LATER]").result == "[]\n"


async def test_asynchronously():
    async with AsyncDaytona() as client:
        sandbox = await client.create()
        assert (await client.get(sandbox.id)).id == sandbox.id
        await sandbox.stop()
        await sandbox.delete()
        with pytest.raises(DaytonaNotFoundError):
            await client.get(sandbox.id)


def test_activity(own):
    before = call("GET", f"/sandbox/{own.id}")[1]["lastActivityAt"]
    time.sleep(0.01)
    assert raw("POST", f"/sandbox/{own.id}/last-activity")[0] == 201
    assert call("GET", f"/sandbox/{own.id}")[1]["lastActivityAt"] >= before
