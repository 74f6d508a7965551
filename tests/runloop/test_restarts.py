"""Guarantees when the server is killed and started again. These tests have a server of their own."""

import pathlib
import sys
import uuid

import pytest
from conftest import call, until

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from own_server import OwnServer  # noqa: E402


@pytest.fixture
def server(monkeypatch):
    with OwnServer("runloop") as server:
        monkeypatch.setenv("RUNLOOP_BASE_URL", server.url + "/runloop")
        monkeypatch.setenv("RUNLOOP_API_KEY", server.key)
        yield server


def test_a_creation_whose_answer_was_lost_makes_one(server):
    headers = {"x-request-id": f"test-{uuid.uuid4()}"}
    body = {
        "name": "once",
        "tunnel": {"auth_mode": "open"},
        "file_mounts": {"/tmp/mounted": "content"},
        "launch_parameters": {"keep_alive_time_seconds": 600, "launch_commands": ["echo launched >>/tmp/launched"]},
    }
    status, made = call("POST", "/v1/devboxes", body, headers=headers)
    assert status == 200 and made["status"] == "running", made
    server.kill_and_start()
    status, again = call("POST", "/v1/devboxes", body, headers=headers)
    assert (status, again["id"], again["status"]) == (200, made["id"], "running"), again
    assert call("GET", "/v1/devboxes")[1]["total_count"] == 1
    run = call("POST", f"/v1/devboxes/{made['id']}/execute_sync", {"command": "cat /tmp/launched /tmp/mounted"})[1]
    assert run["stdout"] == "launched\ncontent"
    # The server still refuses another request with the same id, and says why.
    status, other = call("POST", "/v1/devboxes", {**body, "name": "another"}, headers=headers)
    assert status == 400 and "x-request-id" in other["message"]
    call("POST", f"/v1/devboxes/{made['id']}/shutdown", {})


def test_other_creations_are_done_once_too(server):
    box = call("POST", "/v1/devboxes", {"name": "source"})[1]
    made = [
        ("/v1/network-policies", {"name": "once", "allow_all": True}),
        ("/v1/gateway-configs", {"name": "once", "endpoint": "https://a.com", "auth_mechanism": {"type": "bearer"}}),
        ("/v1/secrets", {"name": "ONCE", "value": "value", "hosts": ["a.com"]}),
        ("/v1/objects", {"name": "once", "content_type": "text"}),
        ("/v1/blueprints", {"name": "once", "dockerfile": "FROM host"}),
        (f"/v1/devboxes/{box['id']}/snapshot_disk", {"name": "once"}),
    ]
    made = [(path, body, {"x-request-id": f"test-{uuid.uuid4()}"}) for path, body in made]
    first = [call("POST", path, body, headers=headers) for path, body, headers in made]
    assert [status for status, _ in first] == [200] * len(made), [told for status, told in first if status != 200]
    server.kill_and_start()
    assert [call("POST", path, body, headers=headers) for path, body, headers in made] == first
    for path, body, headers in made:
        assert call("POST", path, {**body, "name": "other"}, headers=headers)[0] == 400
    lists = ("network-policies", "gateway-configs", "objects", "blueprints", "devboxes/disk_snapshots")
    for one in lists:
        listed = call("GET", f"/v1/{one}")[1]
        items = next(value for value in listed.values() if isinstance(value, list))
        assert len(items) == 1, (one, listed)
    call("POST", f"/v1/devboxes/{box['id']}/shutdown", {})


@pytest.mark.parametrize("point", ["runloop.promised", "runloop.made"])
def test_killed_before_the_answer(server, point):
    """The server is killed before it answers: after it recorded the object that it will make, or after it made it."""
    box = call("POST", "/v1/devboxes", {"name": "source"})[1]
    snapshots, blueprints = "devboxes/disk_snapshots", "blueprints"
    made = [
        ("network-policies", "/v1/network-policies", {"name": "once", "allow_all": True}),
        ("gateway-configs", "/v1/gateway-configs", {"name": "once", "endpoint": "https://a.com", "auth_mechanism": {"type": "bearer"}}),
        ("agents", "/v1/agents", {"name": "once", "version": "1", "source": {"type": "npm", "npm": {"package_name": "a"}}}),
        ("secrets", "/v1/secrets", {"name": "ONCE", "value": "value", "hosts": ["a.com"]}),
        ("objects", "/v1/objects", {"name": "once", "content_type": "text"}),
        (blueprints, "/v1/blueprints", {"name": "once", "dockerfile": "FROM host"}),
        (snapshots, f"/v1/devboxes/{box['id']}/snapshot_disk", {"name": "once"}),
        (snapshots, f"/v1/devboxes/{box['id']}/snapshot_disk_async", {"name": "twice"}),
    ]
    for plural, path, body in made:
        headers = {"x-request-id": f"test-{uuid.uuid4()}"}
        server.kill_and_start(f"{point}=kill")
        with pytest.raises(OSError):
            call("POST", path, body, headers=headers)
        server.process.wait()
        server.start()
        # The server refuses another request with the same id, even though it has no answer stored for that id.
        status, told = call("POST", path, {**body, "name": "other"}, headers=headers)
        assert status == 400 and "x-request-id" in told["message"], told
        status, told = call("POST", path, body, headers=headers)
        assert status == 200, told
        assert call("POST", path, body, headers=headers) == (200, told)

        def only():
            listed = call("GET", f"/v1/{plural}")[1]
            items = next(value for value in listed.values() if isinstance(value, list))
            # A build that broke off with its server starts again. The broken one is still listed, as failed.
            return [item["id"] for item in items if item.get("name") == body["name"] and item.get("status") != "failed"]

        until(lambda: only() == [told["id"]])
    call("POST", f"/v1/devboxes/{box['id']}/shutdown", {})


def test_a_snapshot_that_breaks_off_is_told(server):
    server.kill_and_start("engine.snapshot.journalled=sleep(60000)")
    box = call("POST", "/v1/devboxes", {"name": "source"})[1]
    begun = call("POST", f"/v1/devboxes/{box['id']}/snapshot_disk_async", {"name": "n"}, headers={"x-request-id": f"test-{uuid.uuid4()}"})[1]
    assert call("GET", f"/v1/devboxes/disk_snapshots/{begun['id']}/status")[1]["status"] == "in_progress"
    server.kill_and_start()
    status, told = call("GET", f"/v1/devboxes/disk_snapshots/{begun['id']}/status")
    assert (status, told["status"], told["snapshot"]["id"]) == (200, "error", begun["id"]) and "anew" in told["error_message"]
    call("POST", f"/v1/devboxes/{box['id']}/shutdown", {})


def test_policies_and_gateways_are_there(server):
    policy = call("POST", "/v1/network-policies", {"name": "kept", "allowed_hostnames": ["a.com"]})[1]
    endpoint = {"name": "kept", "endpoint": "https://a.com", "auth_mechanism": {"type": "bearer"}}
    gateway = call("POST", "/v1/gateway-configs", endpoint)[1]
    server.kill_and_start()
    assert call("GET", f"/v1/network-policies/{policy['id']}") == (200, policy)
    assert call("GET", f"/v1/gateway-configs/{gateway['id']}") == (200, gateway)


def test_what_ended_is_known(server):
    made = call("POST", "/v1/devboxes", {"name": "over"})[1]
    ended = call("POST", f"/v1/devboxes/{made['id']}/shutdown", {})[1]
    server.kill_and_start()
    status, told = call("GET", f"/v1/devboxes/{made['id']}")
    assert (status, told["status"], told["name"], told["shutdown_reason"]) == (200, "shutdown", "over", "api_shutdown")
    assert told["end_time_ms"] == ended["end_time_ms"]
