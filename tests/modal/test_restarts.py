"""Guarantees when the server is killed and started again. These tests have a server of their own."""

import json
import pathlib
import sys
import threading
import urllib.request
import uuid

import modal
import pytest
from conftest import native_id, run, since, until
from modal_proto import api_pb2

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from own_server import OwnServer  # noqa: E402


@pytest.fixture
def server(monkeypatch):
    with OwnServer("modal") as server:
        monkeypatch.setenv("MODAL_SERVER_URL", server.url)
        yield server


@pytest.fixture
def client(server):
    # `from_credentials` returns an open client; clients before 1.6 cannot be opened twice.
    return modal.Client.from_credentials(*server.key.split(":"))


def native(server, path):
    request = urllib.request.Request(server.url + path, headers={"Authorization": f"Bearer {server.admin}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@since(1, 6)
def test_a_creation_whose_answer_was_lost_makes_one(server):
    """Sends the same request again with the same idempotency key, as the client would."""
    import grpclib.client

    request = api_pb2.SandboxCreateV2Request(app_id="ap-tests", definition=api_pb2.Sandbox(timeout_secs=300))
    request.definition.open_ports.ports.add(port=8080)
    request.definition.entrypoint_args.extend(["sh", "-c", "echo begun >>/tmp/begun; sleep 300"])
    token_id, token_secret = server.key.split(":")
    metadata = {
        "x-modal-token-id": token_id, "x-modal-token-secret": token_secret, "x-idempotency-key": str(uuid.uuid4()),
        "x-modal-client-type": "1", "x-modal-client-version": "1.6.4",
    }

    def create(change=lambda request: None):
        import asyncio

        async def ask():
            host, port = server.listen.split(":")
            channel = grpclib.client.Channel(host, int(port))
            method = grpclib.client.UnaryUnaryMethod(
                channel, "/modal.client.ModalClient/SandboxCreateV2", api_pb2.SandboxCreateV2Request, api_pb2.SandboxCreateV2Response
            )
            sent = api_pb2.SandboxCreateV2Request()
            sent.CopyFrom(request)
            change(sent)
            try:
                return (await method(sent, metadata=metadata)).sandbox_id
            finally:
                channel.close()

        return asyncio.run(ask())

    made = create()
    server.kill_and_start()
    assert create() == made
    with pytest.raises(Exception, match="used before"):
        create(lambda sent: sent.definition.entrypoint_args.append("other"))
    with modal.Client.from_credentials(token_id, token_secret) as client:
        sandbox = modal.Sandbox.from_id(made, client=client)
        assert run(sandbox, "cat", "/tmp/begun") == (0, "begun\n")
        assert list(sandbox.tunnels()) == [8080]
        sandbox.terminate()


@since(1, 6)
@pytest.mark.parametrize("kind", ["disk", "directory"])
def test_a_snapshot_whose_answer_was_lost_is_taken_once(server, kind):
    """The server is killed after it took the snapshot and before it answered. The client then asks the next server."""
    token = server.key.split(":")
    with modal.Client.from_credentials(*token) as client:
        app = modal.App.lookup("tests", create_if_missing=True, client=client)
        sandbox = modal.Sandbox.create(app=app, timeout=300, client=client)
        run(sandbox, "sh", "-c", "mkdir /kept && echo kept >/kept/file")
    server.kill_and_start("modal.snapshot.taken=kill")
    next_one = threading.Thread(target=lambda: (server.process.wait(), server.start()))
    next_one.start()
    with modal.Client.from_credentials(*token) as client:
        sandbox = modal.Sandbox.from_id(sandbox.object_id, client=client)
        image = sandbox.snapshot_filesystem() if kind == "disk" else sandbox.snapshot_directory("/kept")
        next_one.join()
        listed = native(server, "/v1/snapshots")["items"]
        assert len(listed) == 1 and image.object_id.startswith("im-"), listed
        sandbox.terminate()


def test_how_a_sandbox_ended_is_known(server, client):
    app = modal.App.lookup("tests", create_if_missing=True, client=client)
    ended = modal.Sandbox.create("sh", "-c", "exit 4", app=app, timeout=300, client=client)
    ended.wait(raise_on_termination=False)
    stopped = modal.Sandbox.create(app=app, timeout=300, client=client)
    stopped.terminate()
    server.kill_and_start()
    again = modal.Client.from_credentials(*server.key.split(":"))
    assert modal.Sandbox.from_id(stopped.object_id, client=again).poll() == 137
    assert modal.Sandbox.from_id(ended.object_id, client=again).poll() == 4


def test_a_sandbox_ends_with_its_first_command_under_the_next_server(server, client):
    app = modal.App.lookup("tests", create_if_missing=True, client=client)
    command = "until [ -e /tmp/end ]; do sleep 0.1; done; exit 3"
    sandbox = modal.Sandbox.create("sh", "-c", command, app=app, timeout=3600, client=client)
    end = lambda: native(server, f"/v1/sandboxes/{native_id(sandbox)}")["expires_at_ms"]
    first = end()
    server.kill_and_start()
    again = modal.Client.from_credentials(*server.key.split(":"))
    found = modal.Sandbox.from_id(sandbox.object_id, client=again)
    assert found.poll() is None
    run(found, "touch", "/tmp/end")
    found.wait(raise_on_termination=False)
    assert found.poll() == 3
    # Its output can be read for a minute.
    until(lambda: end() < first - 3_000_000)
