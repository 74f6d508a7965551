"""Notifications over Socket.IO, by the SDK's own library and by the SDK."""

import os
import subprocess
import urllib.parse
import uuid

import pytest
import socketio
from conftest import since, until
from daytona import CreateSandboxFromSnapshotParams, Daytona

pytestmark = since(0, 220)


@pytest.fixture
def connected():
    """Makes clients that collect the events that they receive."""
    made = []

    def connect(token):
        heard, client = [], socketio.Client(reconnection=False)
        client.on("sandbox.state.updated", heard.append)
        url = urllib.parse.urlsplit(os.environ["DAYTONA_API_URL"])
        client.connect(
            f"{url.scheme}://{url.netloc}?source=test",
            socketio_path=f"{url.path}/socket.io/",
            auth={"token": token},
            transports=["websocket"],
        )
        made.append(client)
        return heard

    yield connect
    for client in made:
        client.disconnect()


def states(heard, id):
    return [event["newState"] for event in heard if event["sandbox"]["id"] == id]


def test_changes_of_a_sandbox(daytona, connected):
    heard = connected(os.environ["DAYTONA_API_KEY"])
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(labels={"a": "b"}))
    until(lambda: "started" in states(heard, sandbox.id))
    sandbox.stop()
    until(lambda: "stopped" in states(heard, sandbox.id))
    sandbox.start()
    until(lambda: states(heard, sandbox.id)[-1] == "started")
    sandbox.delete()
    until(lambda: states(heard, sandbox.id)[-1] == "destroyed")
    (last,) = [event for event in heard if event["newState"] == "destroyed" and event["sandbox"]["id"] == sandbox.id]
    assert last["sandbox"]["labels"]["a"] == "b" and last["sandbox"]["state"] == "destroyed"


def test_only_what_the_key_may_see(daytona, connected):
    with pytest.raises(socketio.exceptions.ConnectionError, match="failed to connect"):
        connected("dtn_wrong")
    command = [os.environ["ATOLL_BIN"], "key", "create", f"e-{uuid.uuid4().hex[:8]}", "--scope", "manage", "--for", "daytona"]
    stranger = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    heard, own = connected(stranger), connected(os.environ["DAYTONA_API_KEY"])
    name = f"hidden-{uuid.uuid4().hex[:8]}"
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(name=name))
    subprocess.run([os.environ["ATOLL_BIN"], "access", "set", name, "private"], check=True, capture_output=True)
    before = len(states(heard, sandbox.id))
    sandbox.stop()
    sandbox.delete()
    until(lambda: "destroyed" in states(own, sandbox.id))
    assert "stopped" not in states(heard, sandbox.id)[before:]


def test_the_sdk_connects():
    client = Daytona()
    sandbox = client.create()
    until(lambda: client._event_dispatcher.is_connected)
    sandbox.stop()
    assert sandbox.state == "stopped"
    sandbox.delete()
    client._event_dispatcher.disconnect()
