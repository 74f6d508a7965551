"""Sandboxes: from create to terminate."""

import modal
import pytest
from conftest import VERSION, native, native_id, run, set_secret, until


def test_create_exec_wait_terminate(app):
    sandbox = modal.Sandbox.create(app=app, timeout=120)
    process = sandbox.exec("sh", "-c", "echo out; echo err >&2; exit 3")
    assert process.wait() == 3
    assert (process.stdout.read(), process.stderr.read()) == ("out\n", "err\n")
    assert (process.returncode, process.poll()) == (3, 3)
    assert sandbox.poll() is None
    sandbox.terminate()
    sandbox.wait(raise_on_termination=False)
    assert (sandbox.poll(), sandbox.returncode) == (137, 137)
    with pytest.raises(modal.exception.SandboxTerminatedError):
        sandbox.wait()


def test_terminate_twice(make):
    sandbox = make()
    again = modal.Sandbox.from_id(sandbox.object_id)
    sandbox.terminate()
    again.terminate()
    assert again.poll() == 137


def test_ids_tell_the_generation(box):
    body = box.object_id.removeprefix("sb-")
    assert len(body) == (22 if VERSION < (1, 6) else 20)
    assert native(f"/v1/sandboxes/{native_id(box)}")["state"] == "running"


def test_from_id(make):
    sandbox = make()
    again = modal.Sandbox.from_id(sandbox.object_id)
    assert run(again, "echo", "found") == (0, "found\n")
    for missing in ["sb-" + "0" * 20, "sb-" + "0" * 22, "sb-x"]:
        with pytest.raises(modal.exception.NotFoundError):
            modal.Sandbox.from_id(missing).poll()


def test_the_first_command_is_the_sandbox(make):
    sandbox = make("sh", "-c", "read line; echo got $line; exit 4")
    assert sandbox.poll() is None
    sandbox.stdin.write("input\n")
    sandbox.stdin.write_eof()
    sandbox.stdin.drain()
    sandbox.wait(raise_on_termination=False)
    assert sandbox.returncode == 4
    assert sandbox.stdout.read() == "got input\n"


def test_names(app, make):
    sandbox = make(name="named-one")
    strange = make(name="Named__One.2")
    assert modal.Sandbox.from_name("tests", "Named__One.2").object_id == strange.object_id
    found = modal.Sandbox.from_name("tests", "named-one")
    assert found.object_id == sandbox.object_id
    with pytest.raises(modal.exception.AlreadyExistsError):
        make(name="named-one")
    with pytest.raises(modal.exception.NotFoundError):
        modal.Sandbox.from_name("other", "named-one")
    with pytest.raises(modal.exception.NotFoundError):
        modal.Sandbox.from_name("tests", "nobody")


def test_lists_and_tags(app, make):
    one, other = make(tags={"kind": "a", "Any text": "ä b"}), make()
    assert one.get_tags() == {"kind": "a", "Any text": "ä b"}
    other.set_tags({"kind": "b"})
    assert native(f"/v1/sandboxes/{native_id(other)}")["labels"] == {"kind": "b"}

    def ids(**more):
        return {sandbox.object_id for sandbox in modal.Sandbox.list(**more)}

    assert {one.object_id, other.object_id} <= ids(app_id=app.app_id)
    assert ids(app_id=app.app_id, tags={"kind": "b"}) == {other.object_id}
    elsewhere = modal.App.lookup("elsewhere", create_if_missing=True)
    assert one.object_id not in ids(app_id=elsewhere.app_id)
    one.terminate()
    assert one.object_id not in ids(app_id=app.app_id)


def test_timeout(make):
    sandbox = make(timeout=1)
    with pytest.raises(modal.exception.SandboxTimeoutError):
        sandbox.wait()
    assert sandbox.returncode == 124


def test_idle_timeout(make):
    sandbox = make(idle_timeout=1)
    until(lambda: sandbox.poll() is not None)


def test_environment_and_secrets(make):
    sandbox = make(secrets=[modal.Secret.from_dict({"FROM_SECRET": "sesame"})], env={"PLAIN": "p"}, workdir="/tmp")
    assert run(sandbox, "sh", "-c", "echo $FROM_SECRET $PLAIN; pwd") == (0, "sesame p\n/tmp\n")
    extra = {"secrets": [modal.Secret.from_dict({"OF_EXEC": "e"})], "env": {"PLAIN": "q"}, "workdir": "/usr"}
    assert run(sandbox, "sh", "-c", "echo $OF_EXEC $PLAIN; pwd", **extra) == (0, "e q\n/usr\n")
    with pytest.raises(modal.exception.NotFoundError, match="atoll secret set"):
        make(secrets=[modal.Secret.from_name("some")])


def test_secrets_of_the_server_stay_there(make):
    set_secret("modal-test-key", "a value of nobody", "--host", "api.example.com")
    set_secret("anywhere", "a value of nobody", "--any-host")
    sandbox = make(secrets=[modal.Secret.from_name("modal-test-key")])
    code, shown = run(sandbox, "sh", "-c", "printf %s $MODAL_TEST_KEY")
    assert code == 0 and shown.startswith("atoll_secret_")
    rule = native(f"/v1/sandboxes/{native_id(sandbox)}")["egress"]["inject"][0]
    assert (rule["hosts"], rule["placeholders"][0]["secret"]) == (["api.example.com"], "modal-test-key")
    named = make(secrets=[modal.Secret.from_name("modal-test-key", required_keys=["OTHER"])])
    assert run(named, "sh", "-c", "printf %s $OTHER")[1].startswith("atoll_secret_")
    with pytest.raises(modal.exception.Error, match="Sandbox.create"):
        run(sandbox, "true", secrets=[modal.Secret.from_name("modal-test-key")])
    # Modal's clients may use only secrets with a list of hosts: this one could be sent to every host.
    with pytest.raises(modal.exception.InvalidError, match="--host"):
        make(secrets=[modal.Secret.from_name("anywhere")])


def test_limits(make):
    sandbox = make(cpu=0.5, memory=256)
    resources = native(f"/v1/sandboxes/{native_id(sandbox)}")["resources"]
    assert (resources["cpu_millis"], resources["memory_bytes"]) == (500, 256 << 20)
    with pytest.raises(modal.exception.Error, match="gpu"):
        make(gpu="T4")


def test_network(make):
    closed = native(f"/v1/sandboxes/{native_id(make(block_network=True))}")["egress"]
    assert closed["internet"] == "off"
    some = native(f"/v1/sandboxes/{native_id(make(outbound_cidr_allowlist=['1.1.1.0/24']))}")["egress"]
    assert (some["internet"], some["rules"][0]["cidr"]) == ("rules", "1.1.1.0/24")
    with pytest.raises(modal.exception.InvalidError, match="leads into"):
        make(outbound_cidr_allowlist=["10.0.0.0/8"])


def test_volumes(make):
    volume = modal.Volume.from_name("shared-data", create_if_missing=True)
    one, other = make(volumes={"/data": volume}), make(volumes={"/data": volume})
    assert run(one, "sh", "-c", "echo kept > /data/file")[0] == 0
    assert run(other, "cat", "/data/file") == (0, "kept\n")
    part = make(volumes={"/data": volume.with_mount_options(sub_path="users/ann")})
    assert run(part, "sh", "-c", "ls -A /data; echo hers > /data/file") == (0, "")
    assert run(other, "cat", "/data/users/ann/file") == (0, "hers\n")
    with pytest.raises(modal.exception.NotFoundError):
        make(volumes={"/data": modal.Volume.from_name("not-there")})
