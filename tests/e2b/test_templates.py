"""Building templates, and the names of them."""

import os
import subprocess
import uuid

import pytest
from conftest import call, containers_only, raw, since
from e2b import Sandbox, Template
from e2b.exceptions import BuildException, SandboxException


def test_names():
    assert call("GET", "/templates/aliases/base")[0] == 200
    assert call("GET", "/templates/aliases/no-such-template")[0] == 404
    status, answer = call("POST", "/templates/tags", {"target": "no-such-template:y", "tags": ["z"]})
    assert (status, answer["code"]) == (404, 404)


@containers_only
@since(2, 20)
def test_a_build(tmp_path):
    name = "e2b-test-" + uuid.uuid4().hex[:8]
    (tmp_path / "files" / "sub").mkdir(parents=True)
    (tmp_path / "files" / "a.txt").write_text("a")
    (tmp_path / "files" / "sub" / "b.txt").write_text("b")
    template = (
        Template(file_context_path=str(tmp_path))
        .from_template("base")
        .copy("files", "copied")
        .run_cmd("echo built > built.txt && id -un >> built.txt")
        .set_envs({"FROM_TEMPLATE": "yes"})
        .set_workdir("/home/user/copied")
        .run_cmd("pwd > pwd.txt")
    )
    lines = []
    Template.build(template, name, cpu_count=1, memory_mb=512, on_build_logs=lambda entry: lines.append(str(entry)))
    assert any("built.txt" in line for line in lines)
    assert call("GET", f"/templates/aliases/{name}")[0] == 200
    sandbox = Sandbox.create(name, timeout=60)
    try:
        assert sandbox.files.read("built.txt") == "built\nuser\n"
        assert sandbox.files.read("copied/sub/b.txt") == "b"
        run = sandbox.commands.run("echo $FROM_TEMPLATE $PWD; cat pwd.txt; stat -c %U a.txt")
        assert run.stdout == "yes /home/user/copied\n/home/user/copied\nuser\n"
        assert sandbox.get_info().name == name
    finally:
        sandbox.kill()
    assert call("DELETE", f"/templates/{name}")[0] == 204
    assert call("DELETE", f"/templates/{name}")[0] == 404


@containers_only
@since(2, 20)
def test_links_are_copied_as_links(tmp_path):
    name = "e2b-test-" + uuid.uuid4().hex[:8]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file.txt").write_text("what it leads to")
    (folder / "near").symlink_to("file.txt")
    (folder / "absolute").symlink_to(folder / "file.txt")
    (folder / "nowhere").symlink_to("missing.txt")
    template = (
        Template(file_context_path=str(tmp_path))
        .from_template("base")
        .copy("folder/*", "all")
        .copy("folder/near", "one", resolve_symlinks=True)
        .run_cmd("cat all/near && test -L all/near")
    )
    Template.build(template, name, cpu_count=1, memory_mb=512)
    sandbox = Sandbox.create(name, timeout=60)
    try:
        links = sandbox.commands.run("cd all && for name in absolute near nowhere; do readlink $name; done").stdout
        assert links == f"{folder}/file.txt\nfile.txt\nmissing.txt\n"
        assert sandbox.commands.run("test ! -L one && cat one").stdout == "what it leads to"
    finally:
        sandbox.kill()
    assert call("DELETE", f"/templates/{name}")[0] == 204


@containers_only
@since(2, 20)
def test_tags_and_templates_on_templates():
    name = "e2b-test-" + uuid.uuid4().hex[:8]

    def build(reference, template):
        return Template.build(template, reference, cpu_count=1, memory_mb=512)

    def says(reference):
        sandbox = Sandbox.create(reference, timeout=60)
        try:
            return sandbox.commands.run("cat said; pwd").stdout
        finally:
            sandbox.kill()

    first = Template().from_template("base").set_workdir("/srv/app").run_cmd("echo one > said")
    info = build(f"{name}:v1", first)
    assert info.name.startswith(name)
    build(name, Template().from_template("base").run_cmd("echo two > said"))
    assert says(f"{name}:v1") == "one\n/srv/app\n"
    assert says(name) == "two\n/home/user\n", "no tag is the tag 'default'"
    # Several tags move together to the build of another tag.
    told = Template.assign_tags(f"{name}:v1", ["production", "default"])
    assert sorted(told.tags) == ["default", "production"] and told.build_id
    assert says(name) == "one\n/srv/app\n"
    tags = {tag.tag: tag.build_id for tag in Template.get_tags(name)}
    assert set(tags) == {"v1", "production", "default"} and len(set(tags.values())) == 1
    for target, wrong in [(f"{name}:v1", [":bad"]), (f"{name}:", ["x"]), (f"{name}:v1", ["12"]), (f"{name}:v1", [])]:
        assert call("POST", "/templates/tags", {"target": target, "tags": wrong})[0] == 400, (target, wrong)
    Template.remove_tags(name, ["v1"])
    with pytest.raises(SandboxException, match="not found"):
        Sandbox.create(f"{name}:v1", timeout=60)
    assert call("DELETE", "/templates/tags", {"name": name, "tags": ["v1"]})[0] == 404
    # A template that is built on a tag starts with the files and the directory of that build.
    child = name + "-child"
    build(child, Template().from_template(f"{name}:production").run_cmd("cat said > before && echo three > said"))
    assert says(child) == "three\n/srv/app\n"
    for template in (name, child):
        assert call("DELETE", f"/templates/{template}")[0] == 204


@containers_only
@since(2, 20)
def test_a_working_directory_that_cannot_be():
    template = Template().from_template("base").run_cmd("touch file").set_workdir("/home/user/file")
    with pytest.raises(BuildException):
        Template.build(template, "e2b-test-" + uuid.uuid4().hex[:8])


@containers_only
@since(2, 20)
def test_a_step_that_fails(tmp_path):
    template = Template(file_context_path=str(tmp_path)).from_template("base").run_cmd("true").run_cmd("echo why >&2; exit 7")
    with pytest.raises(BuildException) as caught:
        Template.build(template, "e2b-test-" + uuid.uuid4().hex[:8])
    assert "exit status 7" in str(caught.value)


@containers_only
def test_the_default_template():
    atoll = os.environ["ATOLL_BIN"]
    subprocess.run([atoll, "template", "build-defaults", "--from", "host", "base"], check=True, capture_output=True)
    try:
        sandbox = Sandbox.create("base", timeout=60)
        try:
            # A login shell runs every command, and sets its own PATH.
            run = sandbox.commands.run("python -c 'print(1 + 1)'; id -un; pwd; command -v git curl >/dev/null && echo there")
            assert run.stdout == "2\nuser\n/home/user\nthere\n"
        finally:
            sandbox.kill()
    finally:
        subprocess.run([atoll, "template", "rm", "base"], check=True, capture_output=True)


def test_uploads_have_one_place():
    status, order = call("POST", "/v3/templates", {"name": "e2b-test-upload"})
    assert status == 202
    path = f"/templates/{order['templateID']}/files/" + "ab" * 32
    status, link = call("GET", path)
    assert status == 201 and link["present"] is False
    assert link["url"].startswith(os.environ["E2B_API_URL"])
    tail = link["url"][len(os.environ["E2B_API_URL"]) :]
    assert raw("PUT", tail, b"x", key="none")[0] == 200
    assert raw("PUT", tail, b"x", key="none")[0] == 403, "an address is good once"
    assert call("GET", path)[1] == {"present": True}
    assert call("GET", f"/templates/x/files/..%2Fx")[0] == 400
