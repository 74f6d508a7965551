"""Tunnels, logs, usage, and features that the server does not have."""

import os
import threading
import urllib.error
import urllib.request

import pytest
from conftest import call, new_key, until
from runloop_api_client import BadRequestError

SERVER = "cd /tmp && mkdir -p www && cd www && echo served > index.html && exec python3 -m http.server 8080"


def get(key, port=8080, token=None, domain="localhost"):
    """A request to a tunnel, by its host name."""
    headers = {"Host": f"{port}-{key}.tunnel.{domain}"}
    if token:
        headers["X-Runloop-Tunnel-Authorization"] = f"Bearer {token}"
    try:
        with urllib.request.urlopen(urllib.request.Request(os.environ["ATOLL_URL"], headers=headers), timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def serve(devbox):
    devbox.cmd.exec_async(SERVER)
    assert devbox.cmd.exec("for n in $(seq 200); do curl -fs localhost:8080 && exit; sleep 0.1; done").stdout() == "served\n"


def test_an_open_tunnel(own):
    serve(own)
    key = own.id.replace("dbx_", "sb")
    assert get(key)[0] == 404
    tunnel = own.net.enable_tunnel()
    assert tunnel.auth_mode == "open" and tunnel.auth_token is None
    assert get(tunnel.tunnel_key) == (200, "served\n")
    assert get(tunnel.tunnel_key, port=9)[0] == 502
    assert own.get_info().tunnel.tunnel_key == tunnel.tunnel_key
    assert f"8080-{tunnel.tunnel_key}.tunnel." in own.get_tunnel_url(8080)
    own.net.remove_tunnel()
    assert get(tunnel.tunnel_key)[0] == 404
    assert own.get_info().tunnel is None


def test_an_authenticated_tunnel(own, box):
    serve(own)
    own.net.enable_tunnel()
    tunnel = own.net.enable_tunnel(auth_mode="authenticated")
    key = tunnel.tunnel_key
    assert get(key)[0] == 401 and get(key, token="wrong")[0] == 401
    assert get(key, token=tunnel.auth_token) == (200, "served\n")
    assert own.get_info().tunnel.auth_token == tunnel.auth_token
    # A token belongs to one devbox and one key. A key with scope `read` gets a token that opens nothing.
    other = box.net.enable_tunnel(auth_mode="authenticated")
    assert get(key, token=other.auth_token)[0] == 401
    reader = call("GET", f"/v1/devboxes/{own.id}", key=new_key("read"))[1]["tunnel"]["auth_token"]
    assert reader != tunnel.auth_token and get(key, token=reader)[0] == 401
    box.net.remove_tunnel()


def test_a_tunnel_from_the_beginning_wakes(sdk):
    with sdk.devbox.create(tunnel={"auth_mode": "open", "wake_on_http": True}) as devbox:
        key = devbox.get_info().tunnel.tunnel_key
        devbox.suspend()
        # A suspend ends processes, so the request waits for a server to start in the devbox again.
        answers = []
        asking = threading.Thread(target=lambda: answers.append(get(key)))
        asking.start()
        until(lambda: devbox.get_info().status == "running")
        serve(devbox)
        asking.join()
        assert get(key) == (200, "served\n") and answers[0][0] in (200, 502)


def test_a_tunnel_that_does_not_wake(own):
    key = own.net.enable_tunnel().tunnel_key
    own.suspend()
    assert get(key)[0] == 502 and own.get_info().status == "suspended"


def test_logs_and_usage(own, client):
    ran = client.devboxes.execute_async(own.id, command="echo seen; echo bad >&2; exit 2")
    client.devboxes.executions.await_completed(ran.execution_id, devbox_id=own.id)
    logs = client.devboxes.logs.list(own.id, execution_id=ran.execution_id).logs
    assert logs[0].cmd == "echo seen; echo bad >&2; exit 2" and logs[-1].exit_code == 2
    assert {log.message for log in logs} >= {"seen", "bad"} and {log.source for log in logs} == {"exec"}
    assert len(own.logs().logs) >= len(logs)
    usage = call("GET", f"/v1/devboxes/{own.id}/usage")[1]
    assert usage["id"] == own.id and usage["total_elapsed_seconds"] >= usage["total_active_seconds"] >= 0


def test_what_there_is_not(client, own):
    for path in ["axons", "mcp-configs", "accounts/me"]:
        status, body = call("GET", f"/v1/{path}")
        assert status == 400 and "not supported by this server; " in body["message"], path
        assert call("GET", f"/v1/{path}", key="wrong")[0] == 401
    with pytest.raises(BadRequestError, match="atoll shell"):
        client.post(f"/v1/devboxes/{own.id}/create_pty_tunnel", cast_to=object)
