"""Answers to another key, another token and malformed input."""

import base64
import json
import os
import time

import modal
import pytest
from conftest import atoll, native_id, run, since

pytestmark = since(1, 6)


def client(scope):
    """Makes a client with a new key."""
    pair = atoll("key", "create", f"other-{scope}", "--scope", scope, "--for", "modal").splitlines()[-1]
    return modal.Client.from_credentials(*pair.split(":", 1))


def test_a_wrong_key():
    wrong = modal.Client.from_credentials("ak-0000000000000000000000", "as-0000000000000000000000")
    with pytest.raises(modal.exception.AuthError):
        modal.App.lookup("tests", create_if_missing=True, client=wrong)


def test_a_key_that_may_only_look(app, box):
    reader = client("read")
    with pytest.raises(modal.exception.PermissionDeniedError):
        modal.Sandbox.create(app=modal.App.lookup("tests", create_if_missing=True, client=reader), client=reader)
    with pytest.raises(modal.exception.PermissionDeniedError):
        modal.Sandbox.from_id(box.object_id, client=reader).exec("true")
    with pytest.raises(modal.exception.PermissionDeniedError):
        modal.Sandbox.from_id(box.object_id, client=reader).terminate()


def test_what_a_key_does_not_see(make):
    sandbox = make()
    atoll("access", "set", native_id(sandbox), "private")
    other = client("manage")
    for use in (lambda s: s.poll(), lambda s: s.exec("true"), lambda s: s.terminate(), lambda s: s.get_tags()):
        with pytest.raises(modal.exception.NotFoundError):
            use(modal.Sandbox.from_id(sandbox.object_id, client=other))
    assert run(sandbox, "true")[0] == 0


async def raw(method, request, answer, token):
    """Sends a raw call to the task's service."""
    import grpclib.client
    from urllib.parse import urlsplit

    server = urlsplit(os.environ["MODAL_SERVER_URL"])
    async with grpclib.client.Channel(server.hostname, server.port) as channel:
        name = f"/modal.task_command_router.TaskCommandRouter/{method}"
        call = grpclib.client.UnaryUnaryMethod(channel, name, type(request), answer)
        return await call(request, metadata={"authorization": f"Bearer {token}"}, timeout=10)


def token_of(sandbox):
    from modal_proto import api_pb2

    import grpclib.client
    from urllib.parse import urlsplit

    async def ask():
        server = urlsplit(os.environ["MODAL_SERVER_URL"])
        async with grpclib.client.Channel(server.hostname, server.port) as channel:
            call = grpclib.client.UnaryUnaryMethod(
                channel,
                "/modal.client.ModalClient/SandboxGetCommandRouterAccess",
                api_pb2.SandboxGetCommandRouterAccessRequest,
                api_pb2.SandboxGetCommandRouterAccessResponse,
            )
            pair = {"x-modal-token-id": os.environ["MODAL_TOKEN_ID"], "x-modal-token-secret": os.environ["MODAL_TOKEN_SECRET"]}
            request = api_pb2.SandboxGetCommandRouterAccessRequest(sandbox_id=sandbox.object_id)
            return (await call(request, metadata=pair)).jwt

    return ask()


async def test_a_token_is_for_one_sandbox(app):
    import grpclib
    from modal_proto import task_command_router_pb2 as router

    one = await modal.Sandbox.create.aio(app=app, timeout=60)
    other = await modal.Sandbox.create.aio(app=app, timeout=60)
    token = await token_of(one)

    async def start(sandbox, token):
        task = "ta-" + sandbox.object_id.removeprefix("sb-") + "V"
        request = router.TaskExecStartRequest(task_id=task, exec_id="x", command_args=["true"])
        try:
            await raw("TaskExecStart", request, router.TaskExecStartResponse, token)
        except grpclib.GRPCError as error:
            return error.status.name
        return "OK"

    def with_claims(**changed):
        head, claims, code = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(claims + "=="))
        text = json.dumps({**claims, **changed}).encode()
        return ".".join([head, base64.urlsafe_b64encode(text).decode().rstrip("="), code])

    assert await start(one, token) == "OK"
    assert await start(other, token) == "NOT_FOUND"
    assert await start(one, with_claims(exp=int(time.time()) + 999999)) == "UNAUTHENTICATED"
    assert await start(one, with_claims(scope="admin2")) == "UNAUTHENTICATED"
    assert await start(other, with_claims(task=native_id(other))) == "UNAUTHENTICATED"
    for bad in ["", "a.b.c", "....", token[:-4]]:
        assert await start(one, bad) == "UNAUTHENTICATED"
    await one.terminate.aio()
    await other.terminate.aio()


def test_functions_are_refused_with_what_this_is():
    app = modal.App("functions")

    @app.function(serialized=True)
    def nothing():
        pass

    with pytest.raises(modal.exception.Error, match="Atoll"), app.run():
        nothing.remote()


def test_malformed_messages():
    import http.client
    import socket
    from urllib.parse import urlsplit

    server = urlsplit(os.environ["MODAL_SERVER_URL"])
    for body in [b"", b"\x00", b"\x01\x00\x00\x00\x00", b"\x00\xff\xff\xff\xff", b"\x00\x00\x00\x00\x02\xff\xff"]:
        connection = http.client.HTTPConnection(server.hostname, server.port, timeout=10)
        headers = {
            "content-type": "application/grpc",
            "x-modal-token-id": os.environ["MODAL_TOKEN_ID"],
            "x-modal-token-secret": os.environ["MODAL_TOKEN_SECRET"],
        }
        connection.request("POST", "/modal.client.ModalClient/SandboxCreateV2", body, headers)
        assert connection.getresponse().headers["grpc-status"] == "3"
        connection.close()
