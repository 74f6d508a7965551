"""Agents: named programs that a devbox gets before it runs."""

import io
import subprocess
import tarfile
import zipfile

import pytest
from conftest import call, new_key
from runloop_api_client import BadRequestError

GIT = "https://agents.example.com/bot.git"


def tgz(path, name):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.add(path, name)
    return out.getvalue()


def wheel(directory):
    """A package with one program: `bot-py`."""
    with zipfile.ZipFile(directory / "bot_py-1.5-py3-none-any.whl", "w") as file:
        file.writestr("bot_py.py", "def main():\n    print('of the index')\n")
        info = "bot_py-1.5.dist-info"
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: bot-py\nVersion: 1.5\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", "[console_scripts]\nbot-py = bot_py:main\n")
        file.writestr(f"{info}/RECORD", "")


def make(name, source, **more):
    status, agent = call("POST", "/v1/agents", {"name": name, "source": source, **more})
    assert status == 200, agent
    return agent


def test_from_an_object(sdk):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        member = tarfile.TarInfo("bot")
        member.size, member.mode = 21, 0o755
        tar.addfile(member, io.BytesIO(b"#!/bin/sh\necho a bot\n"))
    object = sdk.storage_object.upload_from_bytes(out.getvalue(), name="bot.tgz", content_type="tgz")
    setup = ["pwd > where", "./bot > said"]
    agent = make("of an object", {"type": "object", "object": {"object_id": object.id, "agent_setup": setup}})
    mount = {"type": "agent_mount", "agent_id": agent["id"], "agent_name": None, "agent_path": "/home/user/bot"}
    box = sdk.devbox.create(mounts=[mount], launch_parameters={"launch_commands": ["cat bot/said > launched"]})
    assert box.cmd.exec("cat bot/where bot/said launched").stdout() == "/home/user/bot\na bot\na bot\n"
    box.shutdown()


def test_from_a_repository_and_an_index(sdk, tmp_path):
    """The test puts the repository and the index into the devbox first, as test devboxes cannot reach the internet."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=b@c", "-C", str(tmp_path / "repository")]
    subprocess.run(["git", "init", "-q", "-b", "main", str(tmp_path / "repository")], check=True)
    (tmp_path / "repository" / "bot").write_text("of the branch\n")
    for command in (["add", "."], ["commit", "-qm", "one"], ["branch", "old"], ["rm", "-q", "bot"], ["commit", "-qm", "two"]):
        subprocess.run([*git, *command], check=True)
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels")
    def sent(name):
        return sdk.storage_object.upload_from_bytes(tgz(tmp_path / name, name), name=name, content_type="tgz").id

    source = {"type": "git", "git": {"repository": GIT, "ref": "old", "agent_setup": ["cat bot > /tmp/git-said"]}}
    make("bot", source)
    make("bot-py", {"type": "pip", "pip": {"package_name": "bot-py", "agent_setup": ["bot-py > /tmp/pip-said"]}}, version="1.5")
    box = sdk.devbox.create(
        mounts=[
            {"type": "object_mount", "object_id": sent("repository"), "object_path": "/home/user/outside"},
            {"type": "object_mount", "object_id": sent("wheels"), "object_path": "/home/user/outside"},
            {"type": "agent_mount", "agent_id": None, "agent_name": "bot", "agent_path": "/home/user/bots/bot", "auth_token": "t"},
            {"type": "agent_mount", "agent_id": None, "agent_name": "bot-py"},
        ],
        file_mounts={
            "/home/user/.gitconfig": f'[url "/home/user/outside/repository"]\ninsteadOf = {GIT}\n[safe]\ndirectory = *\n',
            "/home/user/.config/pip/pip.conf": "[global]\nno-index = true\nfind-links = /home/user/outside/wheels\n",
        },
    )
    assert box.cmd.exec("cat /tmp/git-said /tmp/pip-said").stdout() == "of the branch\nof the index\n"
    box.shutdown()


def test_they_are_listed_and_one_s_own():
    agent = make("listed", {"type": "npm", "npm": {"package_name": "@scope/bot", "registry_url": "https://npm.example.com"}})
    assert agent["id"].startswith("agt_") and not agent["is_public"] and agent["create_time_ms"] > 0
    assert call("GET", f"/v1/agents/{agent['id']}") == (200, agent)
    assert agent in call("GET", "/v1/agents?name=listed")[1]["agents"]
    other = new_key("manage")
    assert call("GET", f"/v1/agents/{agent['id']}", key=other)[0] == 404
    assert agent not in call("GET", "/v1/agents", key=other)[1]["agents"]
    assert call("POST", f"/v1/agents/{agent['id']}/delete", {})[0] == 200
    assert call("GET", f"/v1/agents/{agent['id']}")[0] == 404


def test_what_is_no_agent(sdk):
    for source in [
        {"type": "npm", "npm": {"package_name": "a; rm -rf /"}},
        {"type": "pip", "pip": {"package_name": "a", "registry_url": "file:///etc"}},
        {"type": "git", "git": {"repository": "--upload-pack=x"}},
        {"type": "git"},
        {"type": "disk"},
    ]:
        assert call("POST", "/v1/agents", {"name": "bad", "source": source})[0] == 400, source
    assert call("POST", "/v1/agents", {"name": ""})[0] == 400
    agent = make("without a source", None)
    git = make("somewhere", {"type": "git", "git": {"repository": GIT}})
    for mount in [
        {"agent_id": "agt_none"},
        {"agent_name": "no such agent"},
        {},
        {"agent_id": agent["id"]},
        {"agent_id": git["id"]},
        {"agent_id": git["id"], "agent_path": "relative"},
        {"agent_id": git["id"], "agent_path": "/a'; true '"},
    ]:
        with pytest.raises(BadRequestError):
            sdk.devbox.create(mounts=[{"type": "agent_mount", **mount}])
