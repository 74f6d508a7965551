"""Images: layers on the default image, files of the client, snapshots."""

import hashlib

import modal
import pytest
from conftest import native, native_id, run, since
from registry import serve as registry_with_a_password

# On a busy host a build takes long.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def image():
    return modal.Image.debian_slim()


def test_layers(make, image):
    built = image.run_commands("mkdir -p /built && echo one > /built/file").env({"FROM_IMAGE": "e"}).workdir("/built")
    sandbox = make(image=built)
    assert run(sandbox, "sh", "-c", "cat file; echo $FROM_IMAGE; pwd") == (0, "one\ne\n/built\n")
    # The same image again needs no build.
    again = make(image=image.run_commands("mkdir -p /built && echo one > /built/file"))
    assert run(again, "cat", "/built/file") == (0, "one\n")


def test_python_and_pip(make, image):
    sandbox = make(image=image.run_commands("python -m pip --version"))
    assert run(sandbox, "python", "-c", "import sys; print(sys.version_info.major)") == (0, "3\n")


def test_files_that_are_copied(make, image, tmp_path):
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "a").write_text("in a tree")
    (tmp_path / "single").write_text("alone")
    built = (
        image.add_local_dir(tmp_path / "tree", "/opt/tree", copy=True)
        .add_local_file(tmp_path / "single", "/opt/single", copy=True)
        .run_commands("cat /opt/single /opt/tree/deep/a > /opt/both")
    )
    assert run(make(image=built), "cat", "/opt/both") == (0, "alonein a tree")


def test_files_that_are_added(make, image, tmp_path):
    (tmp_path / "late").write_text("late")
    sandbox = make(image=image.add_local_file(tmp_path / "late", "/srv/late"))
    assert run(sandbox, "cat", "/srv/late") == (0, "late")


def test_large_files(make, image, tmp_path):
    """Files that are too large for a call: the client uploads them separately."""
    (tmp_path / "large").write_bytes(bytes(range(256)) * 4096 * 9)
    digest = hashlib.sha256((tmp_path / "large").read_bytes()).hexdigest()
    copied = make(image=image.add_local_file(tmp_path / "large", "/opt/large", copy=True).run_commands("ls /opt/large"))
    assert run(copied, "sha256sum", "/opt/large")[1].split()[0] == digest
    added = make(image=image.add_local_file(tmp_path / "large", "/opt/large"))
    assert run(added, "sha256sum", "/opt/large")[1].split()[0] == digest


def test_a_dockerfile(make, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM host\nCOPY words /words\nRUN tr a-z A-Z < /words > /loud\n")
    (tmp_path / "words").write_text("quiet")
    image = modal.Image.from_dockerfile(tmp_path / "Dockerfile", context_dir=tmp_path)
    assert run(make(image=image), "cat", "/loud") == (0, "QUIET")


def test_what_fails_is_told(make, image):
    with pytest.raises(modal.exception.Error, match="exit code 9|exited with code 9|9"):
        make(image=image.run_commands("echo before; exit 9"))


def test_an_image_by_its_id(make, image):
    built = image.run_commands("echo by id > /by-id").build(modal.App.lookup("tests", create_if_missing=True))
    sandbox = make(image=modal.Image.from_id(built.object_id))
    assert run(sandbox, "cat", "/by-id") == (0, "by id\n")
    with pytest.raises(modal.exception.NotFoundError):
        make(image=modal.Image.from_id("im-00000000000000000000"))


def test_a_snapshot_is_an_image(make):
    sandbox = make()
    run(sandbox, "sh", "-c", "echo kept > /root/kept")
    image = sandbox.snapshot_filesystem()
    sandbox.terminate()
    assert run(make(image=image), "cat", "/root/kept") == (0, "kept\n")
    assert run(make(image=modal.Image.from_id(image.object_id)), "cat", "/root/kept") == (0, "kept\n")


def test_layers_on_a_snapshot(make, app):
    sandbox = make()
    run(sandbox, "sh", "-c", "mkdir /below && echo below > /below/file")
    image = sandbox.snapshot_filesystem()
    sandbox.terminate()
    # The clients build only on images that they can look up by id.
    image = modal.Image.from_id(image.object_id)
    above = image.run_commands("cat /below/file > /above && rm -r /below").env({"ABOVE": "yes"})
    assert run(make(image=above), "sh", "-c", "cat /above; ls -d /below; echo $ABOVE")[1] == "below\nyes\n"
    # Another image is built on that one, by its id alone.
    known = modal.Image.from_id(above.build(app).object_id)
    assert run(make(image=known.run_commands("cat /above /above > /twice")), "cat", "/twice") == (0, "below\nbelow\n")


def test_a_directory_is_an_image(make):
    one = make()
    run(one, "sh", "-c", "mkdir -p /project/deep && echo kept > /project/deep/file && ln -s deep/file /project/link")
    run(one, "sh", "-c", "chown -R 1234:4321 /project/deep && chmod 600 /project/deep/file; echo other > /other")
    image = one.snapshot_directory("/project")
    run(one, "sh", "-c", "echo later > /project/deep/file")
    one.terminate()
    # The snapshot is mounted in another sandbox, at a new path and over an existing directory of the image.
    two = make()
    two.mount_image("/srv/new/place", image)
    assert run(two, "cat", "/srv/new/place/link") == (0, "kept\n")
    assert run(two, "stat", "-c", "%u:%g %a", "/srv/new/place/deep/file") == (0, "1234:4321 600\n")
    before = run(two, "sh", "-c", "stat -c '%A %u %g %y %n' /var/* | sort")[1]
    two.mount_image("/var", image)
    assert run(two, "ls", "/var")[1] == "deep\nlink\n"
    run(two, "sh", "-c", "echo changed > /var/deep/file")
    # Mounting it again discards the changes. Unmounting shows the directory below again.
    two.mount_image("/var", image)
    assert run(two, "cat", "/var/deep/file") == (0, "kept\n")
    two.unmount_image("/var")
    assert run(two, "sh", "-c", "stat -c '%A %u %g %y %n' /var/* | sort")[1] == before
    # A snapshot of a mounted directory has the changes that were made there.
    run(two, "sh", "-c", "echo changed > /srv/new/place/deep/file")
    three = make()
    three.mount_image("/x", modal.Image.from_id(two.snapshot_directory("/srv/new/place").object_id))
    assert run(three, "cat", "/x/link") == (0, "changed\n")
    two.unmount_image("/srv/new/place")
    assert run(two, "ls", "-A", "/srv/new/place") == (0, "")
    # The helper sandboxes from which the server copied files are gone.
    known = {native_id(two), native_id(three)}
    others = [other for other in native("/v1/sandboxes?limit=200")["items"] if other["id"] not in known]
    assert all("modal" in other["annotations"] for other in others), others


def test_images_are_mounted(make, app, image):
    """Mounts built images, snapshots of whole disks, and an empty image."""
    sandbox = make()
    built = image.run_commands("mkdir -p /built && echo one > /built/file").build(app)
    sandbox.mount_image("/mnt/built", built)
    assert run(sandbox, "cat", "/mnt/built/built/file") == (0, "one\n")
    sandbox.mount_image("/mnt/disk", make().snapshot_filesystem())
    assert run(sandbox, "sh", "-c", "test -d /mnt/disk/etc && ls /mnt/disk/proc | wc -l") == (0, "0\n")
    sandbox.mount_image("/etc", modal.Image.from_scratch())
    assert run(sandbox, "ls", "-A", "/etc") == (0, "")
    sandbox.unmount_image("/etc")
    assert run(sandbox, "test", "-s", "/etc/passwd")[0] == 0


def test_what_cannot_be_mounted(make, tmp_path):
    volume = modal.Volume.from_name("in-the-way", create_if_missing=True)
    sandbox = make(volumes={"/data/volume": volume})
    run(sandbox, "sh", "-c", "mkdir /dir; echo > /file; echo kept > /data/volume/file")
    image = sandbox.snapshot_directory("/dir")
    for path, kind, why in [
        ("/", modal.exception.InvalidError, "'/'"),
        ("/a/../b", modal.exception.InvalidError, r"'\.\.'"),
        ("/file", modal.exception.InvalidError, "not a directory"),
        ("/data", modal.exception.Error, "volume"),
        ("/data/volume/sub", modal.exception.Error, "volume"),
        ("/proc/x", modal.exception.Error, "kernel"),
    ]:
        with pytest.raises(kind, match=why):
            sandbox.mount_image(path, image)
    for path, kind in [("/nowhere", modal.exception.NotFoundError), ("/file", modal.exception.InvalidError)]:
        with pytest.raises(kind):
            sandbox.snapshot_directory(path)
    with pytest.raises(modal.exception.NotFoundError):
        sandbox.mount_image("/x", modal.Image.from_id("im-00000000000000000000"))
    with pytest.raises(modal.exception.Error, match="no image is mounted"):
        sandbox.unmount_image("/dir")
    with pytest.raises(modal.exception.Error, match="mount_image"):
        make(image=image)
    assert run(sandbox, "sh", "-c", "ls -A / | grep atoll; cat /data/volume/file")[1] == "kept\n"


def test_secrets_of_builds(make, image):
    """A command of the build has the secret as a variable; the image does not contain it."""
    secret = modal.Secret.from_dict({"BUILD_TOKEN": "t0ken-of-the-build"})
    built = image.run_commands("echo ${#BUILD_TOKEN} > /length", secrets=[secret]).run_commands("cat /length > /above")
    sandbox = make(image=built)
    assert run(sandbox, "sh", "-c", "cat /above; echo [$BUILD_TOKEN]") == (0, "18\n[]\n")
    assert run(sandbox, "grep", "-rlF", "t0ken-of-the-build", "/etc", "/root", "/opt", "/run", "/tmp", "/var")[0] == 1


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A registry with a password and one image of one file: its address, user and password."""
    with registry_with_a_password(tmp_path_factory.mktemp("registry")) as address:
        yield address


@since(1, 6)
def test_a_registry_that_wants_a_password(make, registry):
    host, user, password = registry
    with pytest.raises(modal.exception.Error, match="denies access"):
        make(image=modal.Image.from_registry(f"{host}/app:1"))
    wrong = modal.Secret.from_dict({"REGISTRY_USERNAME": user, "REGISTRY_PASSWORD": "wrong"})
    with pytest.raises(modal.exception.Error, match="denies access"):
        make(image=modal.Image.from_registry(f"{host}/app:1", secret=wrong))
    keys = modal.Secret.from_dict({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "c"})
    with pytest.raises(modal.exception.Error, match="get-login-password"):
        make(image=modal.Image.from_aws_ecr(f"{host}/app:1", secret=keys))
    secret = modal.Secret.from_dict({"REGISTRY_USERNAME": user, "REGISTRY_PASSWORD": password})
    sandbox = make(image=modal.Image.from_registry(f"{host}/app:1", secret=secret))
    assert sandbox.filesystem.read_text("/there") == "of the registry\n"


@since(1, 6)
def test_memory_is_kept_where_the_level_can(make):
    with pytest.raises(modal.exception.Error, match="memory"):
        make()._experimental_snapshot()
