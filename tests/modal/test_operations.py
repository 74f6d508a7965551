"""The server serves every call of the installed client that is about sandboxes, or refuses it by name. A new call of a
newer client fails here."""

import asyncio
import os
import re
import urllib.parse

import grpclib.client
import grpclib.const
import grpclib.exceptions
import modal
from conftest import since
from modal_proto import api_pb2, task_command_router_pb2
from test_rights import token_of

pytestmark = since(1, 6)

ABOUT_SANDBOXES = re.compile(r"(App|Blob|Environment|Image|Mount|Sandbox|Secret|Task|Volume)[A-Z]")
# Calls that the server refuses with UNIMPLEMENTED and a message that names Atoll; docs/modal.md lists them by kind.
REFUSED = re.compile(
    r"App(CountLogs|Deploy|DeploymentHistory|FetchLogs|GetByDeploymentName|GetInfo|GetLayout|GetLifecycle|GetLogs|GetObjects|GetTags"
    r"|GetTimeRangeStats|List|Lookup|Promote|Publish|Rollback|Rollover|SetObjects|SetTags)"
    r"|BlobGet"
    r"|Environment(BillingSummary|Create|Delete|GetBudget|GetManaged|GetRoles|List|RoleSet|SetBudget|SetDefaultMemberRole|SetManaged|Update)"
    r"|Image(BuildChainGet|GetByTag|ListTags|NameDelete|Publish|TagRevisions)"
    r"|Sandbox(ContainerCreateV2|GetExitSnapshot(V2)?|GetResourceUsage|GetStats(V2)?|GetTimeRangeStats|SetOutboundPolicy(V2)?"
    r"|SnapshotFsAsync(Get)?)"
    r"|Secret(Delete|GetInfo|List|Update)"
    r"|Task(ClusterHello|Container(Create|Get|List|Terminate|Wait)|CurrentInputs|GetInfo|List|Result|SetOutboundPolicy)"
    r"|Volume(GetFile|Rename)"
)
IMPLEMENTED = "implemented"


def methods():
    """Yields the path and the descriptor of each call about sandboxes whose request is one message."""
    for module in (api_pb2, task_command_router_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                if ABOUT_SANDBOXES.match(method.name) and not method.client_streaming:
                    yield f"/{service.full_name}/{method.name}", method


async def ask(channel, path, method, metadata):
    """Sends an empty request; returns whether the server implements the call, and the error message."""
    kind = method.input_type._concrete_class, method.output_type._concrete_class
    cardinality = grpclib.const.Cardinality.UNARY_STREAM if method.server_streaming else grpclib.const.Cardinality.UNARY_UNARY
    stream = channel.request(path, cardinality, *kind, timeout=5, metadata=metadata)
    try:
        async with stream:
            await stream.send_message(kind[0](), end=True)
            await stream.recv_message()
        return IMPLEMENTED, ""
    except grpclib.exceptions.GRPCError as error:
        return (IMPLEMENTED if error.status is not grpclib.const.Status.UNIMPLEMENTED else "unimplemented"), error.message or ""
    except (grpclib.exceptions.ProtocolError, grpclib.exceptions.StreamTerminatedError, asyncio.TimeoutError):
        # The server waits for a later event, so it implements the call.
        return IMPLEMENTED, ""


async def every(token):
    """Sends each call with an API key and a sandbox's token; returns the answers by name."""
    at = urllib.parse.urlsplit(os.environ["MODAL_SERVER_URL"])
    key = {"x-modal-token-id": os.environ["MODAL_TOKEN_ID"], "x-modal-token-secret": os.environ["MODAL_TOKEN_SECRET"]}
    metadata = {**key, "authorization": f"Bearer {token}", "x-modal-client-type": "1", "x-modal-client-version": "1.6.4"}
    channel = grpclib.client.Channel(at.hostname, at.port)
    try:
        return {method.name: await ask(channel, path, method, metadata) for path, method in methods()}
    finally:
        channel.close()


async def test_every_call_is_known(app):
    box = await modal.Sandbox.create.aio(app=app, timeout=60)
    told = await every(await token_of(box))
    await box.terminate.aio()
    assert len(told) > 80, sorted(told)
    refused = {name for name, (how, _) in told.items() if how != IMPLEMENTED}
    new = {name for name in refused if not REFUSED.fullmatch(name)}
    assert not new, f"a newer client calls for more: {sorted(new)}"
    assert not {name for name in told if REFUSED.fullmatch(name)} - refused
    for name in refused:
        assert "Atoll" in told[name][1], (name, told[name])
