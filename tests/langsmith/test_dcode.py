"""dcode (deepagents-code) with its own LangSmith provider: on an empty server it makes its snapshot from the image
`python:3`. The test imports that image, as tests do not reach Docker Hub."""

import os
import subprocess

import pytest

pytest.importorskip("deepagents_code")

from registry import layer


@pytest.fixture(scope="module", autouse=True)
def image(tmp_path_factory):
    tar = tmp_path_factory.mktemp("image") / "python.tar"
    tar.write_bytes(layer())
    subprocess.run([os.environ["ATOLL_BIN"], "image", "import", tar, "docker.io/library/python:3"], check=True)


def test_it_makes_its_snapshot_and_works_in_a_sandbox(client, tmp_path, monkeypatch):
    from deepagents_code.integrations.sandbox_factory import create_sandbox

    setup = tmp_path / "setup.sh"
    setup.write_text("echo ${GREETING} > /greeting")
    monkeypatch.setenv("GREETING", "hello")
    with create_sandbox("langsmith", setup_script_path=str(setup)) as sandbox:
        assert sandbox.execute("cat /greeting").output.strip() == "hello"
        assert "from the registry" in sandbox.execute("cat /marker").output
        uploaded = sandbox.upload_files([("/root/file", b"content")])
        assert uploaded[0].error is None and sandbox.download_files(["/root/file"])[0].content == b"content"
        # A second backend attaches to the first one's sandbox.
        with create_sandbox("langsmith", sandbox_id=sandbox.id) as same:
            assert same.execute("cat /root/file").output.strip() == "content"
        name = sandbox.id
    assert [one.name for one in client.list_snapshots()] == ["deepagents-code"]
    assert name not in [box.name for box in client.list_sandboxes()]
    # The snapshot exists now.
    with create_sandbox("langsmith") as again:
        assert again.execute("echo quick").exit_code == 0
