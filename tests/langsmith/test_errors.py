"""Each error comes out as the exception that the SDK documents for it. The server allows few sandboxes."""

import os
import subprocess
import time

import pytest
from conftest import endpoint, raw, since
from langsmith.sandbox import (
    QuotaExceededError,
    ResourceCreationError,
    ResourceNameConflictError,
    ResourceNotFoundError,
    ResourceTimeoutError,
    SandboxAuthenticationError,
    SandboxClient,
    SandboxClientError,
    SandboxConnectionError,
    SandboxOperationError,
    ValidationError,
)

pytestmark = [
    since(0, 12),
    pytest.mark.skipif("--sandboxes-max" not in os.environ.get("SERVE_ARGS", ""), reason="needs a server with few sandboxes"),
]


def atoll(*words, **kwargs):
    return subprocess.run([os.environ["ATOLL_BIN"], *words], check=True, capture_output=True, text=True, **kwargs).stdout.strip()


@pytest.fixture
def template(name):
    """Makes a template with these options. Clients can pass its name as the name of a snapshot."""

    def make(*options):
        atoll("template", "create", name, *options)
        return name

    yield make
    atoll("template", "rm", name)


def test_408_not_ready_in_time(client, template):
    slow = template("--image", "host", "--ready-cmd", "false", "--ready-timeout", "10m")
    with pytest.raises(ResourceTimeoutError, match="last status: provisioning"):
        client.create_sandbox(snapshot_name=slow, timeout=1)
    # No client got the sandbox's name, so the server deletes it.
    deadline = time.monotonic() + 60
    while raw("GET", "/v2/sandboxes/boxes")[1]["items"]:
        assert time.monotonic() < deadline, "the sandbox stays"
        time.sleep(0.1)


def test_422_a_field_is_wrong(client, name):
    for field, wrong in {"name": {"name": "Not A Name!"}, "vcpus": {"vcpus": 5000}, "volumes": {}}.items():
        if field == "volumes":
            volume = {"volume": "no-such-volume", "mount_path": "/mnt/x"}
            status, answer = raw("POST", "/v2/sandboxes/boxes", {"volumes": [volume]})
            assert (status, answer["detail"][0]["loc"][-1]) == (422, "volumes")
            continue
        with pytest.raises(ValidationError) as caught:
            client.create_sandbox(**wrong)
        assert caught.value.field == field


def test_422_a_user_that_is_not_there(client):
    if "run_config" in client.create_sandbox.__code__.co_varnames:
        with pytest.raises(ResourceCreationError) as caught:
            box = client.create_sandbox(run_config={"user": "nobody-of-this-name"})
            # The server looks the user up when a command runs.
            try:
                box.run("true")
            except SandboxOperationError as error:
                raise ResourceCreationError(str(error)) from error
            finally:
                client.delete_sandbox(box.name)
        assert "nobody-of-this-name" in str(caught.value)


def test_429_too_many(client):
    made = []
    try:
        with pytest.raises(QuotaExceededError) as caught:
            while True:
                made.append(SandboxClient(max_retries=0).create_sandbox())
        assert caught.value.quota_type == "sandbox_count" and made
    finally:
        for box in made:
            client.delete_sandbox(box.name)


def test_429_the_quota_of_a_project(client, name):
    atoll("project", "create", name, "--max-sandboxes", "1")
    key = atoll("key", "create", "--scope", "manage", "--project", name, "team").split()[-1]
    team = SandboxClient(api_key=key, max_retries=0)
    box = team.create_sandbox()
    try:
        with pytest.raises(QuotaExceededError, match=f"the project '{name}' has 1 of 1 .sandboxes.") as caught:
            team.create_sandbox()
        assert caught.value.quota_type == "sandbox_count"
        # A key without a project does not see the project's sandbox, and the project's key sees only that one.
        stranger = SandboxClient(api_key=atoll("key", "create", "--scope", "manage", "stranger").split()[-1])
        assert box.name not in [other.name for other in stranger.list_sandboxes()]
        with pytest.raises(ResourceNotFoundError):
            stranger.get_sandbox(box.name)
        assert [other.name for other in team.list_sandboxes()] == [box.name]
        assert box.run("echo inside").stdout == "inside\n"
    finally:
        team.delete_sandbox(box.name)


def test_401_and_403(client, box):
    wrong = SandboxClient(api_key="wrong")
    for call in [wrong.list_sandboxes, wrong.create_sandbox, lambda: wrong.delete_sandbox(box.name)]:
        with pytest.raises(SandboxAuthenticationError):
            call()
    assert raw("GET", box.dataplane_url.removeprefix(endpoint()) + "/download?path=/etc/hostname", key="wrong")[0] == 401
    reader = SandboxClient(api_key=atoll("key", "create", "--scope", "read", "reader").split()[-1])
    assert reader.get_sandbox(box.name).id == box.id
    with pytest.raises(SandboxAuthenticationError):
        reader.create_sandbox()
    with pytest.raises(SandboxAuthenticationError):
        reader.stop_sandbox(box.name)
    # The server refuses the WebSocket handshake, and the client does not retry.
    with pytest.raises(SandboxConnectionError):
        reader.get_sandbox(box.name).run("true")


def test_404(client):
    for call in [
        lambda: client.get_sandbox("nobody"),
        lambda: client.get_sandbox_status("nobody"),
        lambda: client.update_sandbox("nobody", new_name="somebody"),
        lambda: client.delete_sandbox("nobody"),
        lambda: client.start_sandbox("nobody"),
        lambda: client.stop_sandbox("nobody"),
        lambda: client.capture_snapshot("nobody", "x"),
        lambda: client.get_snapshot("nobody"),
        lambda: client.delete_snapshot("nobody"),
    ]:
        with pytest.raises(ResourceNotFoundError):
            call()


def test_409(client, box, name):
    other = client.create_sandbox(name=name)
    try:
        with pytest.raises(ResourceNameConflictError):
            client.update_sandbox(box.name, new_name=name)
        with pytest.raises(SandboxClientError, match=name):
            client.create_sandbox(name=name)
    finally:
        client.delete_sandbox(name)
    assert other.name == name


def test_files(client, box):
    with pytest.raises(ResourceNotFoundError) as caught:
        box.read("/tmp/nothing-there")
    assert caught.value.resource_type == "file"
    with pytest.raises(SandboxOperationError, match="is a directory"):
        box.read("/tmp")
    small = client.create_sandbox(fs_capacity_bytes=64 << 20)
    try:
        with pytest.raises(SandboxOperationError, match="(?i)no space|full"):
            small.write("/tmp/large", b"x" * (80 << 20))
        assert small.run("echo goes on").stdout == "goes on\n"
    finally:
        client.delete_sandbox(small.name)


def test_commands(client, box):
    with pytest.raises(SandboxOperationError):
        box.reconnect("no-such-command").result  # noqa: B018
    assert box.run("true", shell="/no/such/shell").exit_code == 127
    for wrong in [{"cwd": "relative"}, {"env": {"=": "x"}}]:
        with pytest.raises(SandboxOperationError):
            box.run("true", **wrong)
    status, answer = raw("POST", box.dataplane_url.removeprefix(endpoint()) + "/execute", {"command": "sleep 9", "timeout": 1})
    assert (status, answer["detail"]["error"]) == (408, "CommandError")


def test_a_sandbox_that_is_gone(client):
    box = client.create_sandbox()
    client.delete_sandbox(box.name)
    for call in [lambda: box.read("/etc/hostname"), lambda: box.write("/tmp/x", b"x")]:
        with pytest.raises(SandboxClientError) as caught:
            call()
        assert not isinstance(caught.value, ResourceNotFoundError)
    with pytest.raises(SandboxConnectionError):
        box.run("true")
