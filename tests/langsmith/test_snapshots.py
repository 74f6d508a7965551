"""Snapshots: of sandboxes and of images, by id, name and tag."""

import pytest
from conftest import VERSION, containers_only, raw, since
from langsmith.sandbox import ResourceCreationError, ResourceNotFoundError, SandboxClientError, ValidationError
from registry import Registry


def delete_all(client, name):
    for snapshot in client.list_snapshots(name_contains=name):
        client.delete_snapshot(snapshot.id)


def test_capture_and_start_from_it(client, name):
    box = client.create_sandbox()
    try:
        box.run("echo kept > /home/user/kept; echo gone > /tmp/gone")
        snapshot = client.capture_snapshot(box.name, name)
        assert (snapshot.name, snapshot.status) == (name, "ready") and snapshot.fs_capacity_bytes > 0
        assert snapshot.source_sandbox_id == box.id
        box.run("echo changed > /home/user/kept")
        # By id, by name in place of an id, and by name.
        for kwargs in [{"snapshot_id": snapshot.id}, {"snapshot_id": name}, {"snapshot_name": name}]:
            with client.sandbox(**kwargs) as copy:
                assert copy.run("cat /home/user/kept").stdout == "kept\n"
                assert copy.id != box.id
    finally:
        client.delete_sandbox(box.name)
    assert [one.id for one in client.list_snapshots(name_contains=name.upper())] == [snapshot.id]
    assert client.get_snapshot(name).id == client.get_snapshot(snapshot.id).id == snapshot.id
    client.delete_snapshot(snapshot.id)
    with pytest.raises(ResourceNotFoundError):
        client.get_snapshot(snapshot.id)
    with pytest.raises(ResourceNotFoundError):
        client.create_sandbox(snapshot_name=name)


@since(0, 12)
def test_tags_move(client, name):
    with client.sandbox() as box:
        box.run("echo 1 > /home/user/n")
        first = client.capture_snapshot(box.name, name, tag="v1")
        box.run("echo 2 > /home/user/n")
        second = client.capture_snapshot(box.name, name, tag="v2")
        assert {tag.tag: tag.snapshot_id for tag in client.list_snapshot_tags(name)} == {"v1": first.id, "v2": second.id}
        # Publishing a tag again moves it. The snapshot that it named before is still found by id.
        third = client.capture_snapshot(box.name, name, tag="v1")
    assert client.get_snapshot(f"{name}:v1").id == third.id and third.id != first.id
    assert client.get_snapshot(first.id).status == "ready"
    with client.sandbox(snapshot=f"{name}:v2") as box:
        assert box.run("cat /home/user/n").stdout == "2\n"
    # A name without a tag, and without a tag `latest`, means the newest snapshot.
    assert client.get_snapshot(name).id == third.id
    for one in (first, second, third):
        client.delete_snapshot(one.id)
    with pytest.raises(ResourceNotFoundError):
        client.list_snapshot_tags(name)


@containers_only
def test_from_an_image(client, name):
    snapshot = client.create_snapshot(name, "host", 1 << 30)
    assert snapshot.status == "ready" and snapshot.fs_capacity_bytes == 1 << 30
    with client.sandbox(snapshot.id) as box:
        assert box.run("df --output=size -B1M / | tail -n 1").exit_code == 0
    delete_all(client, name)


@since(0, 12)
def test_from_a_private_registry(client, name):
    registry = Registry("robot", "sesame")
    try:
        with pytest.raises((ResourceCreationError, SandboxClientError), match="(?i)denied|credentials|unauthorized|failed|says no"):
            client.create_snapshot(name, registry.image, 1 << 30)
        stored = client.registries.create(name=name, url="http://" + registry.host, username="robot", password="sesame")
        try:
            kwargs = {"run_config": {"env_vars": {"OWN": "1"}}} if VERSION >= (0, 13) else {}
            snapshot = client.create_snapshot(name, registry.image, 1 << 30, registry_id=stored.id, **kwargs)
            assert snapshot.tags == ["1.2"] if VERSION >= (0, 12) else True
            with client.sandbox(snapshot_name=name) as box:
                assert box.run("cat /marker; echo $IMAGE$OWN $PWD").stdout == (
                    "from the registry\nyes1 /work\n" if kwargs else "from the registry\nyes /work\n"
                )
                # A command may name another shell of the image.
                assert box.run("echo $0", shell="/bin/sh").stdout == "/bin/sh\n"
        finally:
            client.registries.delete(name)
        delete_all(client, name)
    finally:
        registry.close()


def test_what_cannot_be(client, name):
    with pytest.raises((ResourceCreationError, SandboxClientError), match="(?i)registry|reach|resolve|failed"):
        client.create_snapshot(name, "127.0.0.1:1/no/where:1", 1 << 30)
    with pytest.raises(ValidationError):
        client.create_snapshot("Not A Name", "host", 1 << 30)
    with pytest.raises(ResourceNotFoundError):
        client.capture_snapshot("nobody", name)
    with client.sandbox() as box:
        with pytest.raises(ValidationError, match="Docker"):
            client.capture_snapshot(box.name, name, docker_image="app:latest")


@since(0, 13)
def test_a_dockerfile_is_refused_with_the_reason(client, name, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(ResourceCreationError, match="needs Docker and BuildKit"):
        client.create_snapshot_from_dockerfile(name, "Dockerfile", 1 << 30, context=tmp_path)


def test_what_sandboxes_of_a_capture_begin_with(client, name):
    box = client.create_sandbox()
    try:
        run = {"user": "nobody", "work_dir": "/srv", "env_vars": {"A": "1"}}
        status, made = raw("POST", f"/v2/sandboxes/boxes/{box.name}/snapshot", {"name": name, "run_config": run})
        assert status == 201 and (made["run_config"]["user"], made["run_config"]["work_dir"]) == ("nobody", "/srv")
        with client.sandbox(snapshot_id=made["id"]) as copy:
            assert copy.run('echo "$(id -un) $PWD $A"').stdout == "nobody /srv 1\n"
        assert box.run("id -un").stdout == "root\n"
        bad = {"name": name, "run_config": {"work_dir": "not/absolute"}}
        assert raw("POST", f"/v2/sandboxes/boxes/{box.name}/snapshot", bad)[0] == 422
        assert raw("POST", f"/v2/sandboxes/boxes/{box.name}/snapshot", {"name": name, "include_memory": True})[0] == 422
        assert raw("POST", "/v2/sandboxes/boxes", {"snapshot_id": made["id"], "restore_memory": True})[0] == 422
    finally:
        client.delete_sandbox(box.name)
        delete_all(client, name)
