"""Calls each operation that the server serves with the installed client: each answer must have the fields that the
client's models need, of the right types. An operation that is served and not called here fails by its name."""

import inspect
import re

import httpx
import pydantic
import pytest
from runloop_api_client import BadRequestError, Runloop, types
from test_operations import REFUSED, operations

# The server answers that it does not support this operation: docs/runloop.md.
NOT_DONE = {("POST", "/v1/devboxes/disk_snapshots/{id}")}
# The client reads fewer fields of a page than the protocol has, so these types are checked in addition.
LISTS = {
    "/v1/devboxes": types.DevboxListView,
    "/v1/devboxes/disk_snapshots": types.DevboxSnapshotListView,
    "/v1/blueprints": types.BlueprintListView,
    "/v1/blueprints/list_public": types.BlueprintListView,
    "/v1/objects": types.ObjectListView,
    "/v1/objects/list_public": types.ObjectListView,
    "/v1/network-policies": types.NetworkPolicyListView,
    "/v1/gateway-configs": types.GatewayConfigListView,
}
if hasattr(types, "AgentListView"):
    LISTS["/v1/agents"] = types.AgentListView


def named(method, path):
    """Finds the operation of a request among the path templates of the client."""
    fits = [one for one in operations() if one[0] == method and re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", one[1]), path)]
    assert fits, f"{method} {path} is none of the client's operations"
    return min(fits, key=lambda one: one[1].count("{"))


class Strict(Runloop):
    """The client, which also notes answers that its models would reject. By default it accepts every answer."""

    def __init__(self):
        super().__init__(_strict_response_validation=True)
        self.asked, self.faults = set(), []

    def _process_response(self, *, cast_to, options, response, **more):
        method, path = response.request.method, response.request.url.path.removeprefix("/runloop")
        self.asked.add(named(method, path))
        models = [LISTS[path]] if method == "GET" and path in LISTS else []
        if not more["stream"] and inspect.isclass(cast_to) and issubclass(cast_to, pydantic.BaseModel):
            models.append(cast_to)
        for model in models:
            try:
                pydantic.TypeAdapter(model).validate_json(response.read(), strict=True)
            except pydantic.ValidationError as error:
                for one in error.errors(include_url=False):
                    where = ".".join(map(str, one["loc"]))
                    self.faults.append(f"{method} {path}: {model.__name__}.{where}: {one['msg']}, not {one['input']!r:.100}")
        return super()._process_response(cast_to=cast_to, options=options, response=response, **more)


def devboxes(client):
    boxes = client.devboxes
    box = boxes.create(
        name="of the models",
        metadata={"a": "b"},
        launch_parameters={"resource_size_request": "SMALL", "keep_alive_time_seconds": 600},
        environment_variables={"C": "d"},
        tunnel={"auth_mode": "authenticated"},
    ).id
    boxes.await_running(box)
    boxes.retrieve(box)
    boxes.list(status="running")
    boxes.update(box, name="renamed", metadata={"e": "f"})
    boxes.keep_alive(box)
    boxes.create_ssh_key(box)
    boxes.remove_tunnel(box)
    boxes.enable_tunnel(box, auth_mode="open")
    boxes.write_file_contents(box, file_path="/tmp/file", contents="one")
    boxes.read_file_contents(box, file_path="/tmp/file")
    boxes.upload_file(box, path="/tmp/other", file=b"two")
    assert boxes.download_file(box, path="/tmp/other").read() == b"two"
    commands(client, box)
    snapshots(client, box)
    boxes.logs.list(box)
    boxes.retrieve_resource_usage(box)
    boxes.suspend(box)
    boxes.await_suspended(box)
    boxes.retrieve(box)
    boxes.resume(box)
    boxes.await_running(box)
    boxes.shutdown(box)
    boxes.retrieve(box)


def commands(client, box):
    boxes, execs = client.devboxes, client.devboxes.executions
    boxes.execute(box, command="echo out; echo err >&2", command_id="01890a5d-ac96-774b-bcce-b302099a8057")
    boxes.execute_sync(box, command="echo out; exit 3")
    began = boxes.execute_async(box, command="read line; echo $line; echo err >&2", attach_stdin=True).execution_id
    execs.retrieve(began, devbox_id=box)
    execs.send_std_in(began, devbox_id=box, text="a line\n")
    boxes.wait_for_command(began, devbox_id=box, statuses=["completed"])
    execs.retrieve(began, devbox_id=box)
    with execs.stream_stdout_updates(began, devbox_id=box) as pieces:
        assert "".join(piece.output for piece in pieces) == "a line\n"
    with execs.stream_stderr_updates(began, devbox_id=box) as pieces:
        assert "".join(piece.output for piece in pieces) == "err\n"
    endless = boxes.execute_async(box, command="sleep 1000").execution_id
    execs.kill(endless, devbox_id=box)


def snapshots(client, box):
    boxes, kept = client.devboxes, client.devboxes.disk_snapshots
    one = boxes.snapshot_disk(box, name="one", commit_message="why", metadata={"a": "b"}).id
    two = boxes.snapshot_disk_async(box).id
    kept.await_completed(two)
    kept.query_status(one)
    kept.list(devbox_id=box)
    boxes.list_disk_snapshots(devbox_id=box)
    with pytest.raises(BadRequestError, match="when it is taken"):
        kept.update(one, name="other")
    kept.delete(one)
    boxes.delete_disk_snapshot(two)
    kept.query_status(one)


def blueprints(client):
    made = client.blueprints.create(
        name="of-the-models",
        dockerfile="FROM host\nRUN echo built\n",
        metadata={"a": "b"},
        launch_parameters={"launch_commands": ["true"]},
    ).id
    client.blueprints.await_build_complete(made)
    client.blueprints.retrieve(made)
    client.blueprints.list()
    client.blueprints.list_public()
    client.blueprints.logs(made)
    client.blueprints.preview(name="shown", dockerfile="FROM host")
    box = client.devboxes.create_and_await_running(blueprint_id=made)
    client.devboxes.shutdown(box.id)
    client.blueprints.delete(made)
    client.blueprints.retrieve(made)


def objects(client):
    made = client.objects.create(name="of the models", content_type="text", metadata={"a": "b"}, ttl_ms=600_000)
    assert httpx.put(made.upload_url, content=b"text").status_code == 200
    client.objects.complete(made.id)
    client.objects.retrieve(made.id)
    client.objects.list()
    client.objects.list_public()
    client.objects.download(made.id)
    client.objects.delete(made.id)


def policies(client):
    kept = client.network_policies
    made = kept.create(name="of the models", allowed_hostnames=["a.com"], allowed_cidrs=[{"cidr": "192.88.0.0/16"}]).id
    kept.retrieve(made)
    kept.update(made, description="why")
    kept.list()
    kept.delete(made)


def secrets(client):
    made = client.secrets.create(name="OF_THE_MODELS", value="a value of nobody")
    client.secrets.retrieve(made.name)
    client.secrets.update(made.name, value="another of nobody")
    client.secrets.list()
    # Older clients find secrets only by name.
    if hasattr(client.secrets, "retrieve_by_id"):
        client.secrets.retrieve_by_id(made.id)
        client.secrets.update_by_id(made.id, value="a third of nobody")
        client.secrets.delete_by_id(made.id)
        made = client.secrets.create(name="OF_THE_MODELS", value="a value of nobody")
    client.secrets.delete(made.name)


def gateways(client):
    kept = client.gateway_configs
    made = kept.create(name="of the models", endpoint="https://a.com", auth_mechanism={"type": "bearer"}).id
    kept.retrieve(made)
    kept.update(made, custom_headers=[{"name": "X-A", "value": "b"}])
    kept.list()
    kept.delete(made)


def agents(client):
    # Newer clients have no agents.
    if hasattr(client, "agents"):
        kept = client.agents
        made = kept.create(name="of the models", version="1", source={"type": "npm", "npm": {"package_name": "a"}}).id
        kept.retrieve(made)
        kept.list()
        kept.delete(made)


def test_every_answer_is_what_the_models_need():
    client = Strict()
    for part in (devboxes, blueprints, objects, policies, secrets, gateways, agents):
        part(client)
    assert not client.faults, "\n".join(client.faults)
    new = {one for one in set(operations()) - client.asked - NOT_DONE if not REFUSED.match(one[1])}
    assert not new, "served, and not asked here: a newer client asks for more\n" + "\n".join(map(" ".join, sorted(new)))
