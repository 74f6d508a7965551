"""Another key may do nothing with a devbox that is not its own, on any route, by either form of the id."""

from conftest import call, native, new_key, raw


def routes(id, execution, snapshot):
    box = f"/v1/devboxes/{id}"
    run = f"{box}/executions/{execution}"
    yield from [("GET", box), ("GET", f"{box}/logs"), ("GET", f"{box}/usage"), ("GET", run)]
    yield from [("GET", f"{run}/stream_{stream}_updates") for stream in ("stdout", "stderr")]
    for action in [
        "", "/wait_for_status", "/suspend", "/resume", "/keep_alive", "/execute", "/execute_async", "/execute_sync",
        "/read_file_contents", "/download_file", "/write_file_contents", "/upload_file", "/snapshot_disk",
        "/snapshot_disk_async", "/enable_tunnel", "/remove_tunnel", "/create_ssh_key", "/shutdown",
    ]:
        yield "POST", box + action
    for action in ["/wait_for_status", "/kill", "/send_std_in"]:
        yield "POST", run + action
    yield "GET", f"/v1/devboxes/disk_snapshots/{snapshot}/status"
    yield "POST", f"/v1/devboxes/disk_snapshots/{snapshot}"
    yield "POST", f"/v1/devboxes/disk_snapshots/{snapshot}/delete"


BODY = (
    b'{"statuses": ["running"], "command": "touch /tmp/seen", "file_path": "/etc/hostname", '
    b'"contents": "x", "text": "x", "name": "x"}'
)
FORM = b'--x\r\nContent-Disposition: form-data; name="path"\r\n\r\na\r\n--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nb\r\n--x--\r\n'


def test_a_private_devbox(own):
    execution = own.cmd.exec_async("sleep 600").execution_id
    snapshot = own.snapshot_disk().id
    sandbox = "sb" + own.id.removeprefix("dbx_")
    native("PUT", f"/v1/sandboxes/{sandbox}/sharing", {"visibility": "private"})
    stranger = new_key("manage")
    for id in (own.id, sandbox):
        for method, path in routes(id, execution, snapshot):
            form = path.endswith("/upload_file")
            headers = {"Content-Type": "multipart/form-data; boundary=x"} if form else {}
            body = None if method == "GET" else FORM if form else BODY
            status, _, text = raw(method, path, body, key=stranger, headers=headers)
            assert status == 404, (method, path, status, text)
    assert own.id not in [box["id"] for box in call("GET", "/v1/devboxes?limit=5000", key=stranger)[1]["devboxes"]]
    listed = call("GET", "/v1/devboxes/disk_snapshots?limit=5000", key=stranger)[1]["snapshots"]
    assert snapshot not in [item["id"] for item in listed]
    assert call("POST", "/v1/devboxes", {"snapshot_id": snapshot}, key=stranger)[0] == 404
    # The requests changed nothing, and the other key learns nothing of the devbox after its end either.
    assert own.cmd.exec("ls /tmp/seen").exit_code != 0 and own.get_info().name != "x"
    assert call("GET", f"/v1/devboxes/{own.id}/executions/{execution}")[1]["status"] == "running"
    own.shutdown()
    assert call("GET", f"/v1/devboxes/{own.id}", key=stranger)[0] == 404
    assert call("POST", f"/v1/devboxes/{own.id}/shutdown", {}, key=stranger)[0] == 404
    call("POST", f"/v1/devboxes/disk_snapshots/{snapshot}/delete", {})


def test_keys_that_may_only_look(own):
    reader = new_key("read")
    for method, path in routes(own.id, "exec_none", "snp_none"):
        looks = method == "GET" or path.endswith(("/wait_for_status", "/read_file_contents", "/download_file"))
        if not looks:
            status, _, text = raw(method, path, BODY, key=reader)
            assert status == 403, (method, path, status, text)
