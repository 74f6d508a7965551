"""Claims of docs/e2b.md that no other test checks, with the newest SDK."""

import base64
import datetime
import hashlib
import json
import os
import socket
import subprocess
import time
import traceback
import urllib.parse
import uuid

import pytest
from conftest import call, data_plane, raw, until
from e2b import BuildException, CommandExitException, RateLimitException, Sandbox, SandboxException, SandboxQuery, Template, wait_for_port


def native(method, path, body=None):
    key = {"Authorization": f"Bearer {os.environ['ATOLL_API_KEY']}"}
    return call(method, path, body, root=os.environ["ATOLL_URL"], headers=key)


def name():
    return f"e2b-test-{uuid.uuid4().hex[:8]}"


def test_lists_by_template(own):
    def listed(template):
        return own.sandbox_id in [item.sandbox_id for item in Sandbox.list(query=SandboxQuery(template=template)).next_items()]

    assert listed("base") and listed(own.get_info().template_id) and not listed("another")


def test_a_resume_without_memory(own):
    own.files.write("kept", "kept")
    running = own.commands.run("sleep 1000", background=True)
    own.pause()
    own.connect(on_resume="reboot")
    assert own.files.read("kept") == "kept"
    assert running.pid not in [process.pid for process in own.commands.list()]


def test_what_a_snapshot_is_good_for(own):
    own.files.write("state", "kept")
    own.commands.run("sleep 1000", background=True)
    # In containers a snapshot has only the files, in every mode.
    snapshot = own.create_snapshot(name(), mode="full").snapshot_id
    with Sandbox.create(snapshot, timeout=60) as child:
        assert child.files.read("state") == "kept" and child.commands.list() == []
    # A template can be built on the snapshot, and stays when the snapshot is deleted.
    built = name()
    Template.build(Template().from_template(snapshot).run_cmd("cat state > seen"), built)
    assert Sandbox.delete_snapshot(snapshot)
    with Sandbox.create(built, timeout=60) as child:
        assert (child.files.read("state"), child.files.read("seen")) == ("kept", "kept")
    assert call("DELETE", f"/templates/{built}")[0] == 204


def test_forks_begin_with_the_files(own):
    own.files.write("state", "parent")
    own.commands.run("sleep 1000", background=True)
    for child in own.fork(count=2):
        assert child.files.read("state") == "parent" and child.commands.list() == []
        child.kill()


def test_the_log_tells_begin_and_end(own):
    own.commands.run("true")
    logs = call("GET", f"/v2/sandboxes/{own.sandbox_id}/logs?direction=forward")[1]["logs"]
    assert [entry["message"] for entry in logs] == ["process started", "process ended"]


def test_public_ports_are_an_access(own):
    path = f"/v1/sandboxes/{own.sandbox_id}/access"
    [access] = native("GET", path)[1]["items"]
    assert access["all_ports"] and access["public"]
    own.commands.run("cd /tmp && exec python3 -m http.server 8127", background=True)
    until(lambda: data_plane(own.sandbox_id, "GET", "/", port=8127)[0] == 200)
    assert native("DELETE", f"{path}/{access['id']}")[0] == 204
    assert data_plane(own.sandbox_id, "GET", "/", port=8127)[0] == 403


ECHO = """
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 8128))
while True:
    one, _ = server.accept()
    asked = b""
    while b"\\r\\n\\r\\n" not in asked:
        asked += one.recv(65536) or b"\\r\\n\\r\\n"
    headers = dict(line.lower().split(": ", 1) for line in asked.decode().split("\\r\\n")[1:] if ": " in line)
    key = next((line.split(": ", 1)[1] for line in asked.decode().split("\\r\\n") if line.lower().startswith("sec-websocket-key")), "")
    said = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    one.sendall(f"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: {said}\\r\\n\\r\\n".encode())
    while piece := one.recv(65536):
        one.sendall(piece)
"""


def test_a_websocket_to_a_port(own):
    own.files.write("/tmp/echo.py", ECHO)
    own.commands.run("exec python3 /tmp/echo.py", background=True)
    until(lambda: own.commands.run("grep -c ':1FC0 ' /proc/net/tcp || true").stdout.strip() != "0")
    at = urllib.parse.urlsplit(os.environ["ATOLL_URL"])
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET /chat HTTP/1.1\r\nHost: {at.netloc}\r\nE2b-Sandbox-Id: {own.sandbox_id}\r\nE2b-Sandbox-Port: 8128\r\n"
        f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        connection.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(65536) or pytest.fail(f"it ended after {answer!r}")
        assert answer.startswith(b"HTTP/1.1 101 ")
        right = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        assert right in answer
        frame = b"\x81\x85\x01\x02\x03\x04" + bytes(a ^ b for a, b in zip(b"hello", b"\x01\x02\x03\x04\x01"))
        connection.sendall(frame)
        back = b""
        while len(back) < len(frame):
            back += connection.recv(65536) or pytest.fail(f"it ended after {back!r}")
        assert back == frame


def test_start_and_ready_commands():
    first, second = name(), name()
    serve = "cd /tmp && echo $WHAT > up && exec python3 -m http.server 8126"
    template = Template().from_template("base").set_envs({"WHAT": "started"}).set_start_cmd(serve, wait_for_port(8126))
    Template.build(template, first)
    assert Template.exists(first) and not Template.exists(name())
    # A template that is built on another one has its files, environment and start command.
    Template.build(Template().from_template(first).run_cmd("echo $WHAT > /tmp/seen"), second)
    with Sandbox.create(second, timeout=60) as box:
        assert data_plane(box.sandbox_id, "GET", "/up", port=8126)[::2] == (200, b"started\n")
        assert box.files.read("/tmp/seen") == "started\n"
    for template in (first, second):
        assert call("DELETE", f"/templates/{template}")[0] == 204
        assert not Template.exists(template)


def test_what_does_not_start_fails_the_build():
    broken = name()
    base = lambda: Template().from_template("base")
    lines = []
    for template, why in [
        (base().set_start_cmd("echo no such thing >&2; exit 3", "false"), "ended with code 3.*no such thing"),
        # A start command that fails fails the build, even if the ready command succeeds.
        (base().set_start_cmd("./none", "sleep 1"), "ended with code 127.*none: No such file"),
    ]:
        with pytest.raises(BuildException, match=f"(?s){why}") as caught:
            Template.build(template, broken, on_build_logs=lambda entry: lines.append(entry.message))
        # The exception points to the line that the client treats as the end of the build.
        assert any("set_start_cmd" in (entry.line or "") for entry in traceback.extract_tb(caught.value.__traceback__))
        assert not Template.exists(broken), "there is no version of it"
    assert any(line.startswith("[finalize] START") for line in lines)
    # A start command may also end with success; its output is in the log.
    lines.clear()
    once = base().set_start_cmd("echo done once; touch /tmp/done", "test -e /tmp/done")
    Template.build(once, broken, on_build_logs=lambda entry: lines.append(entry.message))
    assert "done once" in lines
    assert call("DELETE", f"/templates/{broken}")[0] == 204


def test_a_sandbox_that_does_not_start():
    # Other clients of the server can make a template without a trial of its start command.
    broken = name()
    recipe = {"name": broken, "image": "host", "start": "echo why >&2; exit 3", "ready": {"command": "false"}}
    status, answer = native("POST", "/v1/templates", recipe)
    assert status == 201, answer
    status, answer = call("POST", "/v2/sandboxes", {"templateID": broken, "timeout": 60})
    assert (status, answer["code"], answer["error_code"]) == (400, 400, "start_failed")
    assert "ended with code 3" in answer["message"] and "why" in answer["message"]
    with pytest.raises(SandboxException, match="ended with code 3"):
        Sandbox.create(broken, timeout=60)
    assert call("DELETE", f"/templates/{broken}")[0] == 204


def test_tags_counted_and_grouped():
    wanted = name()
    build = lambda reference: Template.build(Template().from_template("base").run_cmd("true"), reference)
    build(f"{wanted}:b")
    build(f"{wanted}:a")
    path = f"/templates/{wanted}/tags"
    assert call("GET", f"{path}/count") == (200, {"total": 3})
    for tag, there in [("a", True), ("A", True), ("default", True), ("c", False)]:
        assert call("GET", f"{path}/exists?tag={tag}") == (200, {"exists": there, "normalizedTag": tag.lower()})
    assert call("GET", f"{path}/exists?tag=%3Abad")[0] == 400 and call("GET", f"{path}/exists")[0] == 400
    groups = lambda query: call("GET", f"{path}/groups?{query}")[1]
    names = lambda query: [group["tag"] for group in groups(query)["tags"]]
    assert names("sort=name_asc") == ["a", "b", "default"] and names("sort=name_desc") == ["default", "b", "a"]
    assert names("search=A") in (["a", "default"], ["default", "a"])
    first = groups("sort=name_asc&tagsLimit=2")
    assert [group["tag"] for group in first["tags"]] == ["a", "b"] and first["nextCursor"] == "b"
    rest = groups("sort=name_asc&tagsLimit=2&tagsCursor=b")
    assert [group["tag"] for group in rest["tags"]] == ["default"] and rest["nextCursor"] is None
    for wrong in ["sort=up", "tagsLimit=0", "tagsCursor=none"]:
        assert call("GET", f"{path}/groups?{wrong}")[0] == 400, wrong
    assigned = call("GET", f"{path}/b/assignments")[1]["data"]
    assert [one["buildId"] for one in assigned] == [tag.build_id for tag in Template.get_tags(wanted) if tag.tag == "b"]
    # A template's builds are its versions.
    builds = call("GET", f"/templates/{wanted}")[1]["builds"]
    assert len(builds) == 2 and builds[1]["buildID"] == assigned[0]["buildId"]
    status, headers, _ = raw("GET", f"/templates/{wanted}?limit=1")
    assert (status, headers["x-next-token"]) == (200, builds[0]["buildID"])
    status, headers, text = raw("GET", f"/templates/{wanted}?limit=1&nextToken={builds[0]['buildID']}")
    assert [build["buildID"] for build in json.loads(text)["builds"]] == [builds[1]["buildID"]]
    assert not headers.get("x-next-token")
    # The server keeps the builds that a tag named before, and lists the newest first, also in pages.
    Template.assign_tags(f"{wanted}:a", "b")
    Template.assign_tags(f"{wanted}:b", ["b", "c"])
    (older, newer) = (builds[1]["buildID"], builds[0]["buildID"])
    assigned = call("GET", f"{path}/b/assignments")[1]["data"]
    assert [one["buildId"] for one in assigned] == [newer, newer, older]
    assert [one["assignedAt"] for one in assigned] == sorted((one["assignedAt"] for one in assigned), reverse=True)
    assert len({one["assignmentId"] for one in assigned}) == 3
    first = call("GET", f"{path}/b/assignments?limit=2")[1]
    assert (first["data"], first["nextCursor"]) == (assigned[:2], assigned[1]["assignmentId"])
    rest = call("GET", f"{path}/b/assignments?limit=2&cursor={first['nextCursor']}")[1]
    assert rest == {"data": assigned[2:], "nextCursor": None}
    for wrong in ["limit=0", "cursor=none"]:
        assert call("GET", f"{path}/b/assignments?{wrong}")[0] == 400, wrong
    (group,) = [group for group in groups("assignmentLimit=2")["tags"] if group["tag"] == "b"]
    assert group == {"tag": "b", "assignments": assigned[:2], "hasMore": True}
    (group,) = [group for group in groups("")["tags"] if group["tag"] == "b"]
    assert group == {"tag": "b", "assignments": assigned, "hasMore": False}
    now = {tag.tag: (tag.build_id, tag.created_at.timestamp()) for tag in Template.get_tags(wanted)}
    assert now["b"][0] == now["c"][0] == newer and abs(now["b"][1] - now["c"][1]) < 1
    # Removing a tag removes the history of its builds.
    Template.remove_tags(wanted, ["b"])
    assert call("GET", f"{path}/b/assignments")[1] == {"data": [], "nextCursor": None}
    Template.assign_tags(f"{wanted}:c", "b")
    assert [one["buildId"] for one in call("GET", f"{path}/b/assignments")[1]["data"]] == [newer]
    assert call("DELETE", f"/templates/{wanted}")[0] == 204
    for what in ("count", "exists?tag=a", "groups", "a/assignments"):
        assert call("GET", f"{path}/{what}")[0] == 404, what


def test_templates_in_pages():
    made = sorted(name() for _ in range(3))
    for one in made:
        assert native("POST", "/v1/templates", {"name": one, "image": "host"})[0] == 201
    found, token = [], ""
    while token is not None:
        status, headers, text = raw("GET", f"/v2/templates?limit=2&nextToken={token}")
        assert status == 200 and len(json.loads(text)) <= 2
        found += [item["names"][0] for item in json.loads(text)]
        token = headers.get("x-next-token")
    assert [one for one in found if one in made] == made and len(found) == len(set(found))
    assert call("GET", "/v2/templates?nextToken=none")[0] == 400
    for one in made:
        assert call("DELETE", f"/templates/{one}")[0] == 204


def test_snapshots_in_pages(own):
    taken = [own.create_snapshot().snapshot_id for _ in range(3)]
    pages = own.list_snapshots(limit=2)
    first = [one.snapshot_id for one in pages.next_items()]
    assert first == taken[:0:-1] and pages.has_next
    assert [one.snapshot_id for one in pages.next_items()] == taken[:1] and not pages.has_next
    for one in taken:
        assert Sandbox.delete_snapshot(one)
    assert call("GET", "/snapshots?limit=0")[0] == 400
    for none in ("none", "x" * 200, "%3A", "a%3Ab%3Ac"):
        assert call("GET", f"/snapshots?name={none}") == (200, []), "nothing has a name that cannot be one"


def test_which_part_of_a_log(own):
    own.commands.run("true")
    with pytest.raises(CommandExitException):
        own.commands.run("exit 9")
    path = f"/v2/sandboxes/{own.sandbox_id}/logs"
    ask = lambda query: call("GET", f"{path}?{query}")[1]["logs"]
    whole = ask("direction=forward")
    assert ask("") == whole[::-1], "the newest come first"
    assert [entry["fields"].get("exit_code") for entry in ask("level=warn")] == ["9"]
    assert len(ask("search=exit%209")) == 2 and ask("search=nothing%20of%20it") == []
    assert len(ask("limit=1")) == 1
    last = int(1000 * datetime.datetime.fromisoformat(whole[-1]["timestamp"].replace("Z", "+00:00")).timestamp())
    assert ask(f"direction=forward&cursor={last + 1}") == [] and len(ask(f"cursor={last}")) == len(whole)
    for wrong in ["direction=up", "level=loud", "limit=1001", "limit=-1", "limit=x", "cursor=x", f"search={'x' * 257}"]:
        status, answer = call("GET", f"{path}?{wrong}")
        assert (status, answer["code"]) == (400, 400), wrong


def test_metrics_of_a_time(own):
    now = int(time.time())
    assert until(lambda: own.get_metrics())
    path = f"/sandboxes/{own.sandbox_id}/metrics"
    within = call("GET", f"{path}?start={now - 60}&end={now + 600}")[1]
    assert within and all(now - 60 <= point["timestampUnix"] <= now + 600 for point in within)
    assert call("GET", f"{path}?end={now - 60}") == (200, []) and call("GET", f"{path}?start={now + 600}") == (200, [])
    assert call("GET", f"{path}?start=2&end=1")[0] == 400 and call("GET", f"{path}?start=x")[0] == 400


def test_what_is_private_is_built_on_by_its_own_only(own):
    made = subprocess.run(
        [os.environ["ATOLL_BIN"], "key", "create", name(), "--scope", "manage", "--for", "e2b"],
        capture_output=True, text=True, check=True,
    )
    stranger = made.stdout.strip()
    own.files.write("state", "a secret")
    snapshot = own.create_snapshot(name()).snapshot_id
    assert native("PUT", f"/v1/sandboxes/{own.sandbox_id}/sharing", {"visibility": "private"})[0] < 300
    base = Template()
    for template in (base.from_template(snapshot), base.from_image(f"snapshot://{snapshot}")):
        with pytest.raises(BuildException, match="not found|no snapshot"):
            Template.build(template.run_cmd("cat state"), name(), api_key=stranger)
    assert Sandbox.delete_snapshot(snapshot)


def test_watchers_have_a_share(own):
    own.files.make_dir("watched")
    watchers = [own.files.watch_dir("watched") for _ in range(64)]
    with pytest.raises(RateLimitException, match="64 watchers already"):
        own.files.watch_dir("watched")
    watchers.pop().stop()
    watchers.append(own.files.watch_dir("watched"))
    own.files.write("watched/file", "x")
    assert all(len(watcher.get_new_events()) == 3 for watcher in watchers)
    for watcher in watchers:
        watcher.stop()


def test_what_is_refused():
    aws = Template().from_aws_registry("1.dkr.ecr.eu-west-1.amazonaws.com/a:b", "key", "secret", "eu-west-1")
    with pytest.raises(BuildException, match="400.*aws ecr get-login-password"):
        Template.build(aws, name())
    with pytest.raises(SandboxException, match="400: iam"):
        Sandbox.create(iam={"tokens": {"aws": {"audience": "x", "token_type": "jwt"}}})
    with pytest.raises(SandboxException, match="400: network.dnsServers"):
        Sandbox.create(network={"dns_servers": ["9.9.9.9"]})
    with pytest.raises(SandboxException, match="400: network.egressProxy"):
        Sandbox.create(network={"egress_proxy": {"address": "socks5://proxy.example.com:1080"}})
    with Sandbox.create(timeout=60) as box:
        for part in ({"dnsServers": ["9.9.9.9"]}, {"egressProxy": {"address": "socks5://h:1080"}}, {"allowOut": ["10.0.0.1"]}):
            status, answer = call("PUT", f"/sandboxes/{box.sandbox_id}/network", part)
            assert (status, answer["code"]) == (400, 400) and answer["message"], part
    with pytest.raises(SandboxException, match="404: template 'mcp-gateway' not found"):
        Sandbox.create(mcp={"exa": {}})
    with pytest.raises(SandboxException, match="MCP gateway"):
        Sandbox.create("base", mcp={"exa": {}}, timeout=60)
    status, headers, _ = raw("GET", "/sandboxes/none")
    assert (status, headers["should-retry"]) == (404, "false")
