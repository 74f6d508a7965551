"""Snapshots of disks, and blueprints."""

import pytest
from conftest import call
from runloop_api_client import BadRequestError, NotFoundError


def test_a_devbox_begins_with_a_snapshot(sdk, client, own):
    own.file.write(file_path="kept", contents="before")
    snapshot = own.snapshot_disk(name="first", commit_message="why", metadata={"a": "b c"})
    own.file.write(file_path="kept", contents="after")
    assert snapshot.id.startswith("snp_")
    told = snapshot.get_info()
    assert (told.status, told.snapshot.name, told.snapshot.metadata) == ("complete", "first", {"a": "b c"})
    assert told.snapshot.commit_message == "why" and told.snapshot.source_devbox_id == own.id
    with sdk.devbox.create_from_snapshot(snapshot.id, name="second") as devbox:
        assert devbox.file.read(file_path="kept") == "before"
        assert devbox.cmd.exec("id -un").stdout() == "user\n"
        assert devbox.get_info().snapshot_id == snapshot.id
    listed = client.devboxes.disk_snapshots.list(devbox_id=own.id).snapshots
    assert [item.id for item in listed] == [snapshot.id]
    status, found = call("GET", "/v1/devboxes/disk_snapshots?metadata%5Ba%5D=b%20c")
    assert [item["id"] for item in found["snapshots"]] == [snapshot.id]
    assert call("GET", "/v1/devboxes/disk_snapshots?metadata%5Ba%5D=x")[1]["snapshots"] == []
    # A named size means a minimum for the disk: the snapshot's disk is larger, and cannot shrink.
    small = {"resource_size_request": "SMALL"}
    with sdk.devbox.create_from_snapshot(snapshot.id, launch_parameters=small) as devbox:
        assert devbox.file.read(file_path="kept") == "before"
    snapshot.delete()
    gone = snapshot.get_info()
    assert (gone.status, gone.snapshot.name) == ("deleted", "first")
    with pytest.raises(NotFoundError):
        sdk.devbox.create_from_snapshot(snapshot.id)


def test_at_once_and_later(client, own):
    done = client.devboxes.snapshot_disk(own.id, name="at once")
    assert client.devboxes.disk_snapshots.query_status(done.id).status == "complete"
    begun = client.devboxes.snapshot_disk_async(own.id)
    ended = client.devboxes.disk_snapshots.await_completed(begun.id)
    assert ended.status == "complete" and ended.snapshot.id == begun.id
    page = client.devboxes.disk_snapshots.list(limit=1, devbox_id=own.id)
    assert page.has_more and page.total_count == 2 and page.snapshots[0].id == begun.id
    assert page.get_next_page().snapshots[0].id == done.id
    own.suspend()
    asleep = client.devboxes.snapshot_disk(own.id)
    for id in (done.id, begun.id, asleep.id):
        client.devboxes.disk_snapshots.delete(id)


def test_what_is_refused(client, own):
    with pytest.raises(BadRequestError, match="at most"):
        client.devboxes.snapshot_disk(own.id, metadata={"a": "x" * 1000})
    with pytest.raises(NotFoundError):
        client.devboxes.disk_snapshots.query_status("snp_none")
    mine = client.devboxes.snapshot_disk(own.id)
    with pytest.raises(BadRequestError, match="when it is taken"):
        client.devboxes.disk_snapshots.update(mine.id, name="other")
    client.devboxes.disk_snapshots.delete(mine.id)


DOCKERFILE = """FROM host
RUN mkdir -p /opt/made && echo built > /opt/made/file
ENV FROM_BLUEPRINT=yes
WORKDIR /opt/made
"""


def test_a_blueprint(sdk, client):
    blueprint = sdk.blueprint.create(
        name="My Blueprint",
        dockerfile=DOCKERFILE,
        system_setup_commands=["echo set up >> /opt/made/file"],
        file_mounts={"/opt/made/it's": "a file\n"},
        metadata={"team": "a b"},
        launch_parameters={"launch_commands": ["echo launched > /tmp/launched"], "keep_alive_time_seconds": 120},
    )
    told = blueprint.get_info()
    assert told.id.startswith("bpt_") and told.status == "build_complete" and told.state == "created"
    assert told.name == "My Blueprint" and told.parameters.dockerfile == DOCKERFILE
    assert told.metadata == {"team": "a b"}
    assert any("RUN" in line.message for line in blueprint.logs().logs)
    small = {"resource_size_request": "SMALL"}
    for devbox in (
        blueprint.create_devbox(),
        sdk.devbox.create_from_blueprint_name("My Blueprint", launch_parameters=small),
    ):
        with devbox:
            line = "cat /opt/made/file \"/opt/made/it's\" /tmp/launched; echo $FROM_BLUEPRINT; pwd"
            assert devbox.cmd.exec(line).stdout() == "built\nset up\na file\nlaunched\nyes\n/opt/made\n"
            info = devbox.get_info()
            assert info.blueprint_id == blueprint.id
            assert info.launch_parameters.keep_alive_time_seconds == 120
    page = client.blueprints.list(name="My Blueprint")
    assert [item.id for item in page.blueprints] == [blueprint.id]
    assert client.blueprints.list(name="My").blueprints == []
    assert client.blueprints.list_public().blueprints == []
    blueprint.delete()
    assert blueprint.get_info().state == "deleted"
    assert client.blueprints.list(name="My Blueprint").blueprints == []
    with pytest.raises(NotFoundError):
        sdk.devbox.create_from_blueprint_name("My Blueprint")


def test_a_blueprint_on_a_blueprint(sdk, client):
    base = sdk.blueprint.create(name="base-of-two", dockerfile="FROM host\nENV BELOW=yes\nRUN echo one > /opt/said\n")
    by_id = sdk.blueprint.create(name="by-id", base_blueprint_id=base.id, system_setup_commands=["echo two >> /opt/said"])
    by_name = sdk.blueprint.create(name="by-name", base_blueprint_name="base-of-two")
    assert by_id.get_info().base_blueprint_id == base.id
    for blueprint, said in [(by_id, "one\ntwo\nyes\n"), (by_name, "one\nyes\n")]:
        with blueprint.create_devbox() as devbox:
            assert devbox.cmd.exec("cat /opt/said; echo $BELOW").stdout() == said
    # The base of a blueprint may be deleted.
    base.delete()
    with by_id.create_devbox() as devbox:
        assert devbox.cmd.exec("cat /opt/said").stdout() == "one\ntwo\n"
    for wrong in [{"base_blueprint_id": base.id}, {"base_blueprint_id": by_id.id, "dockerfile": "FROM host"}]:
        with pytest.raises((BadRequestError, NotFoundError)):
            client.blueprints.create(name="wrong", **wrong)
    for blueprint in (by_id, by_name):
        blueprint.delete()


def test_a_build_that_fails(client):
    with pytest.raises(Exception, match="failed"):
        client.blueprints.create_and_await_build_complete(name="broken", dockerfile="FROM host\nRUN echo no; exit 3\n")
    failed = client.blueprints.list(name="broken").blueprints[0]
    assert (failed.status, failed.failure_reason) == ("failed", "build_failed")
    assert any(line.message == "no" for line in client.blueprints.logs(failed.id).logs)
    with pytest.raises(BadRequestError, match="not built"):
        client.devboxes.create(blueprint_id=failed.id)


def test_previews_and_refusals(client):
    shown = client.blueprints.preview(name="x", dockerfile="FROM host", system_setup_commands=["true"])
    assert shown.dockerfile == 'FROM host\nRUN ["/bin/sh","-c","true"]\n'
    count = client.blueprints.list().total_count
    for asked in [
        {"dockerfile": "FRM host"},
        {"dockerfile": "FROM host\nCOPY a /b"},
        {"dockerfile": "FROM host", "base_blueprint_name": "a"},
        {"dockerfile": "FROM host", "services": [{"name": "a", "image": "b"}]},
        {"dockerfile": "FROM host", "secrets": {"A": "B"}},
    ]:
        with pytest.raises(BadRequestError):
            client.blueprints.create(name="refused", **asked)
    assert client.blueprints.list().total_count == count
