"""Images: layers on the default image, files of the client, snapshots."""

import hashlib

import modal
import pytest
from conftest import run, since

# On a busy host a build takes its time.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def image():
    return modal.Image.debian_slim()


def test_layers(make, image):
    built = image.run_commands("mkdir -p /built && echo one > /built/file").env({"FROM_IMAGE": "e"}).workdir("/built")
    sandbox = make(image=built)
    assert run(sandbox, "sh", "-c", "cat file; echo $FROM_IMAGE; pwd") == (0, "one\ne\n/built\n")
    # The same again is there already.
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
    """Larger than a call takes: they are sent beside."""
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


@since(1, 6)
def test_memory_is_kept_where_the_level_can(make):
    with pytest.raises(modal.exception.Error, match="memory"):
        make()._experimental_snapshot()
