"""Creating, finding, changing and ending sandboxes."""

import datetime
import time
import uuid

import pytest
from conftest import VERSION, call, containers_only, raw, since, until
from e2b import Sandbox, SandboxQuery, SandboxState
from e2b.exceptions import AuthenticationException, NotFoundException, SandboxException


def test_create_run_kill():
    sandbox = Sandbox.create()
    assert sandbox.commands.run("echo hi").stdout == "hi\n"
    assert sandbox.is_running()
    assert sandbox.kill() is True
    assert sandbox.is_running() is False
    assert sandbox.kill() is False


def test_what_is_said_about_it(own):
    info = own.get_info()
    assert info.sandbox_id == own.sandbox_id and info.metadata == {"for": "one test"}
    assert info.name == "base" and info.state == SandboxState.RUNNING
    assert info.cpu_count >= 1 and info.memory_mb > 0 and info.envd_version
    left = info.end_at - datetime.datetime.now(datetime.timezone.utc)
    assert 200 < left.total_seconds() <= 300


def test_connect_and_timeouts(own):
    own.set_timeout(600)
    end = own.get_info().end_at
    other = Sandbox.connect(own.sandbox_id, timeout=60)
    assert abs((other.get_info().end_at - end).total_seconds()) < 1, "connecting shortens nothing"
    own.set_timeout(60)
    assert own.get_info().end_at < end
    other = Sandbox.connect(own.sandbox_id, timeout=500)
    assert (other.get_info().end_at - end).total_seconds() > -110
    assert other.commands.run("echo same > /tmp/f; cat /tmp/f").stdout == "same\n"
    assert own.files.read("/tmp/f") == "same\n"


def test_the_end_comes():
    sandbox = Sandbox.create(timeout=2)
    until(lambda: not sandbox.is_running())
    with pytest.raises(NotFoundException):
        sandbox.get_info()
    with pytest.raises(Exception) as caught:
        sandbox.commands.run("true")
    assert "not found" in str(caught.value) or "timeout" in str(caught.value)


def test_environment_of_a_sandbox():
    sandbox = Sandbox.create(envs={"A": "all", "B": "all"})
    try:
        run = sandbox.commands.run('echo "$A $B $C"', envs={"B": "mine", "C": "x y"})
        assert run.stdout == "all mine x y\n"
        assert sandbox.commands.run("echo $HOME $USER $PWD").stdout == "/home/user user /home/user\n"
    finally:
        sandbox.kill()


def test_lists_filters_and_pages():
    mark = uuid.uuid4().hex
    odd = {"mark": mark, "ö & = %20": "a b,c/ü%"}
    made = [Sandbox.create(timeout=120, metadata=odd if n == 0 else {"mark": mark}) for n in range(3)]
    ids = [sandbox.sandbox_id for sandbox in made]
    try:
        def listed(limit=100, **query):
            pages = Sandbox.list(query=SandboxQuery(**query), limit=limit)
            found = []
            while pages.has_next:
                page = pages.next_items()
                assert len(page) <= limit
                found += [item.sandbox_id for item in page]
            return found

        assert listed(metadata={"mark": mark}) == ids[::-1]
        assert listed(metadata={"mark": mark}, limit=1) == ids[::-1]
        assert listed(metadata={"mark": mark}, limit=3) == ids[::-1]
        assert listed(metadata=odd) == ids[:1]
        assert listed(metadata={"mark": mark, "other": "x"}) == []
        assert listed(metadata={"mark": mark}, state=[SandboxState.PAUSED]) == []
        (made[1].pause if VERSION >= (2, 40) else made[1].beta_pause)()
        assert listed(metadata={"mark": mark}, state=[SandboxState.PAUSED]) == ids[1:2]
        assert listed(metadata={"mark": mark}, state=[SandboxState.RUNNING]) == [ids[2], ids[0]]
        both = [SandboxState.RUNNING, SandboxState.PAUSED]
        assert listed(metadata={"mark": mark}, state=both, limit=2) == ids[::-1]
        status, items = call("GET", f"/v2/sandboxes?order=asc&metadata=mark%3D{mark}")
        assert status == 200 and [item["sandboxID"] for item in items] == ids
        status, headers, _ = raw("GET", f"/v2/sandboxes?metadata=mark%3D{mark}&limit=3")
        assert status == 200 and not headers.get("x-next-token"), "a full last page has no token"
        since_time = made[1].get_info().started_at.astimezone(datetime.timezone.utc).isoformat().replace("+00:00", "Z")
        status, items = call("GET", f"/v2/sandboxes?startedAfter={since_time}&metadata=mark%3D{mark}")
        assert [item["sandboxID"] for item in items] == [ids[2], ids[1]]
    finally:
        for sandbox in made:
            sandbox.kill()


def test_errors_have_bodies():
    for method, path, body, expected in [
        ("GET", "/no/such/route", None, 404),
        ("PATCH", "/sandboxes", {}, 405),
        ("GET", "/sandboxes/nope", None, 404),
        ("DELETE", "/sandboxes/sb000000000000000000ab", None, 404),
        ("POST", "/sandboxes/nope/pause", {}, 404),
        ("POST", "/v2/sandboxes", {"templateID": "no-such-template"}, 404),
        ("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 0}, 400),
        ("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 10**12}, 400),
        ("POST", "/v2/sandboxes", {}, 400),
        ("POST", "/v2/sandboxes", b"{", 400),
        ("POST", "/v2/sandboxes", {"templateID": "base", "autoPauseMemory": False}, 400),
        ("POST", "/v2/sandboxes", {"templateID": "base", "volumeMounts": [{"name": "none", "path": "/v"}]}, 400),
        ("GET", "/v2/sandboxes?limit=0", None, 400),
        ("GET", "/v2/sandboxes?state=dead", None, 400),
        ("GET", "/templates/aliases/ns%2Fno-such%3Atag", None, 404),
    ]:
        status, answer = call(method, path, body)
        assert (status, answer["code"]) == (expected, expected), (method, path, answer)
        assert answer["message"]
    status, answer = call("GET", "/v2/sandboxes", key="e2b_" + "0" * 40)
    assert status == 401 and answer["code"] == 401
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 40)


def test_creations_of_both_generations_and_once():
    key = uuid.uuid4().hex + "-x"
    body = {"templateID": "base", "timeout": 60}
    status, first = call("POST", "/v2/sandboxes", body, headers={"Idempotency-Key": key})
    assert status == 201 and first["envdAccessToken"] and first["clientID"] and first["envdVersion"]
    assert call("POST", "/v2/sandboxes", {**body, "unknown": 1}, headers={"Idempotency-Key": key}) == (201, first)
    status, answer = call("POST", "/v2/sandboxes", {**body, "timeout": 61}, headers={"Idempotency-Key": key})
    assert (status, answer["error_code"]) == (409, "idempotency_request_mismatch")
    status, old = call("POST", "/sandboxes", {"templateID": "base", "secure": True})
    assert status == 201
    info = call("GET", f"/sandboxes/{old['sandboxID']}")[1]
    lives = [datetime.datetime.fromisoformat(info[at].replace("Z", "+00:00")) for at in ("startedAt", "endAt")]
    assert 14 <= (lives[1] - lives[0]).total_seconds() <= 16
    status, again = call("POST", f"/v2/sandboxes/{first['sandboxID']}/connect")
    assert (status, again["envdAccessToken"]) == (200, first["envdAccessToken"])
    assert call("POST", f"/sandboxes/{first['sandboxID']}/refreshes", {"duration": 100})[0] == 204
    for made in (first, old):
        assert call("DELETE", f"/sandboxes/{made['sandboxID']}")[0] == 204
        assert call("DELETE", f"/sandboxes/{made['sandboxID']}")[0] == 404


@containers_only
def test_pause_keeps_what_runs(own):
    command = own.commands.run("while :; do date +%s%N > /tmp/new; mv /tmp/new /tmp/tick; sleep 0.05; done", background=True)
    until(lambda: own.files.exists("/tmp/tick") and own.files.read("/tmp/tick"))
    pause = own.pause if VERSION >= (2, 40) else own.beta_pause
    pause()
    assert own.is_running() is False
    assert own.get_info().state == SandboxState.PAUSED
    status, _ = call("POST", f"/sandboxes/{own.sandbox_id}/pause", {})
    assert status == 409
    with pytest.raises(NotFoundException):
        own.set_timeout(10)
    token = own._envd_access_token if hasattr(own, "_envd_access_token") else None
    again = Sandbox.connect(own.sandbox_id, timeout=120)
    if token:
        assert again._envd_access_token == token
    assert again.is_running() and again.get_info().state == SandboxState.RUNNING
    pids = [process.pid for process in again.commands.list()]
    assert command.pid in pids
    before = again.files.read("/tmp/tick")
    until(lambda: again.files.read("/tmp/tick") not in ("", before))
    assert again.commands.kill(command.pid)


def test_pause_of_the_files_alone(own):
    own.files.write("kept", "kept")
    running = own.commands.run("sleep 1000", background=True)
    assert call("POST", f"/sandboxes/{own.sandbox_id}/pause", {"memory": False})[0] == 204
    assert call("GET", f"/sandboxes/{own.sandbox_id}")[1]["pauseMode"] == "filesystem"
    assert call("POST", f"/v2/sandboxes/{own.sandbox_id}/connect", {"timeout": 100})[0] == 201
    assert own.files.read("kept") == "kept"
    assert running.pid not in [process.pid for process in own.commands.list()]


def test_a_paused_end_and_traffic_that_wakes():
    body = {"templateID": "base", "timeout": 1, "autoPause": True, "autoResume": {"enabled": True}}
    status, made = call("POST", "/v2/sandboxes", body)
    assert status == 201
    path = f"/sandboxes/{made['sandboxID']}"
    try:
        until(lambda: call("GET", path)[1]["state"] == "paused")
        time.sleep(1.5)
        assert call("GET", path)[1]["lifecycle"] == {"autoResume": True, "onTimeout": "pause"}
        assert Sandbox.connect(made["sandboxID"]).commands.run("echo up").stdout == "up\n"
        assert call("POST", path + "/timeout", {"timeout": 0})[0] == 204
        until(lambda: call("GET", path)[1]["state"] == "paused")
        from conftest import data_plane

        token = {"X-Access-Token": made["envdAccessToken"]}
        assert data_plane(made["sandboxID"], "GET", "/health", headers=token)[0] == 204
        assert call("GET", path)[1]["state"] == "running"
    finally:
        assert call("DELETE", path)[0] == 204


def test_snapshots(own):
    own.files.write("state", "one")
    status, named = call("POST", f"/sandboxes/{own.sandbox_id}/snapshots", {"name": "e2b-test_snap"})
    assert status == 201 and named["snapshotID"] == "e2b-test_snap:default" and named["names"]
    status, unnamed = call("POST", f"/sandboxes/{own.sandbox_id}/snapshots", {})
    assert status == 201 and ":" in unnamed["snapshotID"]
    own.files.write("state", "two")
    for made in (named, unnamed):
        child = Sandbox.create(template=made["snapshotID"], timeout=60)
        assert child.files.read("state") == "one"
        child.kill()
    status, listed = call("GET", f"/snapshots?sandboxID={own.sandbox_id}&limit=10")
    assert [item["snapshotID"] for item in listed] == [unnamed["snapshotID"], named["snapshotID"]]
    for made in (named, unnamed):
        path = "/templates/" + made["snapshotID"].replace(":", "%3A")
        assert call("DELETE", path)[0] == 204
        assert call("DELETE", path)[0] == 404


def test_forks(own):
    own.files.write("state", "parent")
    status, made = call("POST", f"/sandboxes/{own.sandbox_id}/fork", {"count": 2, "timeout": 60})
    assert status == 201 and len(made) == 2
    children = [Sandbox.connect(item["sandbox"]["sandboxID"]) for item in made]
    for number, child in enumerate(children):
        assert child.files.read("state") == "parent"
        child.files.write("state", str(number))
    assert own.files.read("state") == "parent"
    assert len({item["sandbox"]["envdAccessToken"] for item in made}) == 2
    for child in children:
        child.kill()


def test_metrics_and_logs(own):
    own.commands.run("echo in the log; false || true")
    points = until(lambda: own.get_metrics())
    assert points[0].mem_total > 0 and points[0].disk_total > 0 and points[0].cpu_count >= 1
    status, answer = call("GET", f"/sandboxes/metrics?sandbox_ids={own.sandbox_id}")
    assert status == 200 and own.sandbox_id in answer["sandboxes"]
    status, logs = call("GET", f"/sandboxes/{own.sandbox_id}/logs")
    assert status == 200 and any("process started" in entry["message"] for entry in logs["logEntries"])
    assert logs["logs"][0]["line"]
    status, logs = call("GET", f"/v2/sandboxes/{own.sandbox_id}/logs?limit=1&direction=forward")
    assert status == 200 and len(logs["logs"]) == 1


def test_networks_that_can_be_had_and_others():
    create = lambda network, **more: call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60, "network": network, **more})
    for network in [
        {"allowOut": ["example.com"]},
        {"denyOut": ["example.com"]},
        {"allowOut": ["10.0.0.0/8"]},
        {"egressProxy": {"address": "socks5://h:1080"}},
        {"httpsPorts": [0]},
    ]:
        status, answer = create(network)
        assert status == 400 and answer["message"], network
    network = {"allowOut": ["1.1.1.1", "example.com"], "denyOut": ["0.0.0.0/0"]}
    status, made = create(network, allow_internet_access=True)
    assert status == 201
    path = f"/sandboxes/{made['sandboxID']}"
    info = call("GET", path)[1]
    assert info["network"] == network and info["allowInternetAccess"] is True
    assert call("PUT", path + "/network", {"denyOut": ["8.8.8.8"]})[0] == 204
    assert call("GET", path)[1]["network"] == {"denyOut": ["8.8.8.8"]}
    call("DELETE", path)
