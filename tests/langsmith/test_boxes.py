"""Sandboxes: creating, finding, changing, deleting, and the errors."""

import http.client
import json
import os
import select
import subprocess
import urllib.parse

import pytest
from conftest import containers_only, endpoint, native, raw, since, until
from langsmith.sandbox import (
    AsyncSandboxClient,
    QuotaExceededError,
    ResourceCreationError,
    ResourceNameConflictError,
    ResourceNotFoundError,
    SandboxAuthenticationError,
    SandboxClient,
    ValidationError,
)


def test_create_run_delete(client):
    with client.sandbox() as box:
        result = box.run("echo hi; echo no >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == ("hi\n", "no\n", 3)
        assert box.name.startswith("sb-")
        assert client.get_sandbox(box.name).id == box.id
        assert client.get_sandbox(box.id).name == box.name
    with pytest.raises(ResourceNotFoundError):
        client.get_sandbox(box.name)


async def test_async_client():
    async with AsyncSandboxClient() as client:
        async with await client.sandbox() as box:
            result = await box.run("echo hi")
            assert result.stdout == "hi\n"
            await box.write("/tmp/a", b"bytes")
            assert await box.read("/tmp/a") == b"bytes"


def test_both_paths_and_both_ways_to_present_the_key(client, name):
    key = os.environ["LANGSMITH_API_KEY"]
    for base in ["/v2/sandboxes", "/api/v2/sandboxes", "//v2/sandboxes", "//api/v2/sandboxes"]:
        status, answer = raw("GET", base + "/boxes")
        assert status == 200 and answer["sandboxes"] == answer["items"]
    assert raw("GET", "/v2/sandboxes/boxes", key=f"Bearer {key}", header="Authorization")[0] == 200
    for base in ["/v2/sandboxes", "/api/v2/sandboxes", "/v2/sandboxes/"]:
        with SandboxClient(api_endpoint=endpoint() + base, api_key=key) as other:
            with other.sandbox() as box:
                assert box.run("true").exit_code == 0


@containers_only
def test_a_client_that_gives_up_a_creation_leaves_nothing(name):
    """Its sandbox takes long to be ready. The client hangs up when the sandbox is there and the answer is not."""
    template = "slow-" + name
    atoll = [os.environ["ATOLL_BIN"], "template"]
    start = "sleep 5; exec python3 -m http.server 9000 --bind 127.0.0.1"
    subprocess.run([*atoll, "create", template, "--image", "host", "--start-cmd", start, "--ready-port", "9000"], check=True)
    url = urllib.parse.urlsplit(endpoint())
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    try:
        body = json.dumps({"name": name, "snapshot_name": template, "timeout": 120})
        headers = {"X-Api-Key": os.environ["LANGSMITH_API_KEY"], "Content-Type": "application/json"}
        connection.request("POST", url.path + "/v2/sandboxes/boxes", body, headers)
        there = lambda: name in [box.get("name") for box in native("GET", "/v1/sandboxes")["items"]]  # noqa: E731
        until("it is being made", there)
        assert select.select([connection.sock], [], [], 0)[0] == [], "it was answered too early for this test"
        connection.close()
        until("it is gone", lambda: not there())
    finally:
        connection.close()
        subprocess.run([*atoll, "rm", template], check=True)


def test_fields_come_back(client, name):
    status, made = raw(
        "POST",
        "/v2/sandboxes/boxes",
        {
            "name": name,
            "wait_for_ready": True,
            "timeout": 30,
            "vcpus": 1,
            "mem_bytes": 512 << 20,
            "fs_capacity_bytes": 1 << 30,
            "idle_ttl_seconds": 7200,
            "delete_after_stop_seconds": 86400,
            "labels": {"thread": name},
            "env_vars": {"A": "1"},
            "run_config": {"user": "root", "work_dir": "/workspace", "env_vars": {"B": "2"}},
            "tag_value_ids": ["t"],
            "_internal_runtime": "v2",
        },
    )
    assert status == 201
    try:
        assert made["name"] == name and made["status"] == "ready"
        assert made["dataplane_url"].startswith(endpoint()) and not made["dataplane_url"].endswith("/")
        assert (made["vcpus"], made["mem_bytes"], made["fs_capacity_bytes"]) == (1, 512 << 20, 1 << 30)
        assert (made["idle_ttl_seconds"], made["delete_after_stop_seconds"]) == (7200, 86400)
        assert made["labels"] == {"thread": name}
        assert made["run_config"] == {"user": "root", "work_dir": "/workspace", "env_vars": {"A": "1", "B": "2"}}
        box = client.get_sandbox(name)
        assert box.run('echo "$A$B $PWD $(id -un)"').stdout == "12 /workspace root\n"
        assert client.get_sandbox_status(name).status == "ready"
        # A client finds a thread's sandbox by its label, here with the parameters of the generated clients.
        for query in [f"label=thread={name}", f"label=thread&name_contains={name.upper()}", f"name_contains={name[2:]}"]:
            assert [item["name"] for item in raw("GET", f"/v2/sandboxes/boxes?{query}")[1]["items"]] == [name]
    finally:
        client.delete_sandbox(name)


def test_pages(client):
    made = [client.create_sandbox().name for _ in range(3)]
    try:
        listed = [box.name for box in client.list_sandboxes()]
        assert set(made) <= set(listed)
        seen, cursor = [], ""
        while cursor is not None:
            page = raw("GET", f"/v2/sandboxes/boxes?limit=2&cursor={cursor}" if cursor else "/v2/sandboxes/boxes?limit=2")[1]
            assert len(page["items"]) <= 2
            seen += [item["name"] for item in page["items"]]
            cursor = page["next_cursor"]
        assert seen == listed
    finally:
        for one in made:
            client.delete_sandbox(one)


def test_update(client, name):
    box = client.create_sandbox()
    try:
        renamed = client.update_sandbox(box.name, new_name=name)
        assert (renamed.name, renamed.id) == (name, box.id)
        # The old object still works: the address of its data plane has the id.
        assert box.run("echo on").stdout == "on\n"
        with pytest.raises(ResourceNotFoundError):
            client.get_sandbox(box.name)
        other = client.create_sandbox()
        try:
            with pytest.raises(ResourceNameConflictError):
                client.update_sandbox(other.name, new_name=name)
        finally:
            client.delete_sandbox(other.name)
        status, answer = raw("PATCH", f"/v2/sandboxes/boxes/{name}", {"run_config": {"env_vars": {"A": "1", "B": "1"}}})
        assert (status, answer["run_config"]) == (200, {"env_vars": {"A": "1", "B": "1"}})
        assert box.run('echo "$A$B"').stdout == "11\n"
        raw("PATCH", f"/v2/sandboxes/boxes/{name}", {"run_config": {"env_vars": {"A": "2"}}})
        assert box.run('echo "$A$B"').stdout == "2\n"
        assert client.update_sandbox(name, idle_ttl_seconds=120).name == name
        assert raw("GET", f"/v2/sandboxes/boxes/{name}")[1]["idle_ttl_seconds"] == 120
    finally:
        client.delete_sandbox(box.id)


def test_errors_of_the_control_plane(client, name):
    with pytest.raises(ResourceNotFoundError):
        client.get_sandbox("nobody")
    with pytest.raises(ResourceNotFoundError):
        client.delete_sandbox("nobody")
    with pytest.raises(SandboxAuthenticationError):
        SandboxClient(api_key="wrong").list_sandboxes()
    with pytest.raises(ValidationError) as caught:
        client.create_sandbox(name="Not A Name!")
    assert caught.value.field == "name"
    with pytest.raises(ValidationError):
        client.create_sandbox(mem_bytes=1)
    box = client.create_sandbox(name=name)
    try:
        from langsmith.sandbox import SandboxClientError

        with pytest.raises(SandboxClientError, match=name):
            client.create_sandbox(name=name)
    finally:
        client.delete_sandbox(name)
    assert raw("GET", "/v2/sandboxes/nothing/of/the/kind")[0] == 404
    assert raw("PUT", "/v2/sandboxes/boxes")[0] == 405
    assert raw("POST", "/v2/sandboxes/boxes", [1, 2])[0] == 422


def test_tracing_that_follows_the_variable_costs_nothing():
    assert raw("GET", "/info")[0] == 200
    assert raw("POST", "/runs", {"id": "x"})[0] == 202
    assert raw("POST", "/api/v1/runs/multipart", {"id": "x"})[0] == 202
    assert raw("PATCH", "/runs/x", {})[0] == 202


def test_two_clients_on_one_sandbox(client):
    with client.sandbox() as box:
        with SandboxClient() as second:
            same = second.get_sandbox(box.name)
            handles = [one.run("sleep 0.3; echo done", wait=False) for one in (box, same)]
            assert [handle.result.stdout for handle in handles] == ["done\n"] * 2
            box.write("/tmp/shared", "from one")
            assert same.read("/tmp/shared") == b"from one"


def test_proxy_config_is_shown_without_its_secrets(client, name):
    rule = {"name": "github", "match_hosts": ["github.com"], "headers": [{"name": "Authorization", "type": "opaque", "value": "Basic sesame"}]}
    with client.sandbox(name=name):
        status, answer = raw("PATCH", f"/v2/sandboxes/boxes/{name}", {"proxy_config": {"rules": [rule]}})
        assert status == 200 and answer["proxy_config"]["rules"][0]["headers"][0]["is_set"] is True
        assert "sesame" not in json.dumps(answer) and "sesame" not in json.dumps(raw("GET", f"/v2/sandboxes/boxes/{name}")[1])


def test_start_of_one_that_runs(client):
    with client.sandbox() as box:
        assert client.start_sandbox(box.name).status == "ready"


@containers_only
def test_volumes(client, name):
    native("POST", "/v1/volumes", {"name": name, "size_bytes": 64 << 20})
    try:
        mount = {"volume": name, "mount_path": "/srv/data"}
        made = [raw("POST", "/v2/sandboxes/boxes", {"volumes": [mount]})[1], raw("POST", "/v2/sandboxes/boxes", {"volumes": [{**mount, "read_only": True}]})[1]]
        try:
            assert made[1]["volumes"] == [{**mount, "read_only": True}]
            one, two = (client.get_sandbox(box["name"]) for box in made)
            one.write("/srv/data/note", b"shared")
            assert two.read("/srv/data/note") == b"shared"
            assert two.run("echo x > /srv/data/other").exit_code != 0
        finally:
            for box in made:
                client.delete_sandbox(box["name"])
    finally:
        native("DELETE", f"/v1/volumes/{name}")
    status, answer = raw("POST", "/v2/sandboxes/boxes", {"mount_config": {"mounts": [{"id": "a", "type": "s3", "mount_path": "/mnt"}]}})
    assert (status, answer["detail"][0]["loc"][-1]) == (422, "mount_config")


def test_what_one_sandbox_for_each_thread_needs(client, name):
    """Get or create a sandbox by a label, from two clients at once: both find the existing one."""
    assert raw("GET", f"/v2/sandboxes/boxes?label=thread={name}")[1]["items"] == []
    made = raw("POST", "/v2/sandboxes/boxes", {"labels": {"thread": name}})[1]
    try:
        for key in [f"thread={name}", "thread"]:
            found = raw("GET", f"/v2/sandboxes/boxes?label={key}")[1]["items"]
            assert made["id"] in [box["id"] for box in found]
        # The sandbox keeps its labels over a stop.
        client.stop_sandbox(made["name"])
        assert [box["status"] for box in raw("GET", f"/v2/sandboxes/boxes?label=thread={name}")[1]["items"]] == ["stopped"]
    finally:
        client.delete_sandbox(made["name"])
