"""proxy_config: credentials that a sandbox uses and never has, and hosts that it may reach. Needs outside.py."""

import base64
import json
import os
import subprocess

import pytest
from conftest import raw, since

SECRET = os.environ.get("OUTSIDE_SECRET")
pytestmark = [since(0, 11), pytest.mark.skipif(SECRET is None, reason="run through outside.py")]


def basic():
    return base64.b64encode(f"x-access-token:{SECRET}".encode()).decode()


def github():
    """The rules that Open SWE sends."""

    def rule(name, hosts, value, **more):
        header = {"name": "Authorization", "type": "opaque", "value": value}
        return {"name": name, "match_hosts": hosts, "headers": [header], **more}

    return [
        rule("github-api", ["api.github.com"], f"Bearer {SECRET}", env_vars={"GH_TOKEN": "proxy-injected"}),
        rule("github", ["github.com", "*.github.com"], f"Basic {basic()}"),
    ]


def patch(box, config):
    return raw("PATCH", f"/v2/sandboxes/boxes/{box.name}", {"proxy_config": config}, header="X-API-Key")


def get(box, url):
    """A request through the gateway, whose authority the sandbox trusts, as the server of outside.py received it."""
    result = box.run(f"curl -sS --fail '{url}'")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def reaches(box, url):
    """Whether a request arrives. The certificate may be of any authority."""
    return box.run(f"curl -sk --fail '{url}'").exit_code == 0


def assert_nowhere(box):
    """The secret is in no variable, no file that was written and no process of the sandbox."""
    for form in [SECRET, basic()]:
        look = box.run("env | grep -cF -e \"$NEEDLE\"; grep -rlF -e \"$NEEDLE\" /tmp /home /root /etc /workspace 2>/dev/null", env={"NEEDLE": form})
        # The one match is the variable that holds the text to search for.
        assert look.stdout == "1\n", look.stdout


def test_what_open_swe_does_with_github(client):
    """Create with fields that the server does not know, PATCH, clone a private repository, capture, go on from that."""
    status, made = raw(
        "POST",
        "/v2/sandboxes/boxes",
        {
            "wait_for_ready": True, "timeout": 60, "vcpus": 4, "mem_bytes": 16 << 30, "fs_capacity_bytes": 128 << 30,
            "idle_ttl_seconds": 7200, "delete_after_stop_seconds": 2592000, "_internal_runtime": "v2",
        },
        header="X-API-Key",
    )
    assert status == 201, made
    box = client.get_sandbox(made["name"])
    snapshot = None
    try:
        # Without the rules the sandbox cannot clone the repository.
        assert box.run("git clone -q https://github.com/org/private.git /tmp/none").exit_code != 0
        status, answer = patch(box, {"rules": github()})
        assert status == 200, answer
        shown = json.dumps(answer)
        assert SECRET not in shown and basic() not in shown
        assert answer["proxy_config"]["rules"][0]["headers"] == [{"name": "Authorization", "type": "opaque", "is_set": True}]
        clone = box.run("git clone -q https://github.com/org/private.git /workspace/repo && cat /workspace/repo/README")
        assert clone.stdout == "private\n", clone.stderr
        assert get(box, "https://api.github.com/user")["headers"]["authorization"] == "Bearer <SECRET>"
        assert get(box, "https://uploads.github.com/x")["headers"]["authorization"] == "Basic <BASIC>"
        assert box.run("echo $GH_TOKEN").stdout == "proxy-injected\n"
        assert_nowhere(box)
        snapshot = client.capture_snapshot(box.name, box.name)
        # The snapshot has the files of the repository, not the rules.
        with client.sandbox(snapshot_id=snapshot.id) as copy:
            assert copy.run("cat /workspace/repo/README").stdout == "private\n"
            assert not reaches(copy, "https://api.github.com/user")
        # After a stop the sandbox is used again, with new rules. The client may set them before it wakes the sandbox.
        client.stop_sandbox(box.name)
        assert patch(box, {"rules": github()})[0] == 200
        client.start_sandbox(box.name)
        assert box.run("cd /workspace/repo && git fetch -q").exit_code == 0
    finally:
        if snapshot:
            client.delete_snapshot(snapshot.id)
        client.delete_sandbox(box.name)


@since(0, 13)
def test_from_the_beginning_and_replaced(client):
    config = {"rules": github()}
    with client.sandbox(proxy_config=config) as box:
        # A sandbox without a network reaches the hosts of its rules, and no others.
        assert get(box, "https://api.github.com/user")["headers"]["authorization"] == "Bearer <SECRET>"
        assert not reaches(box, "https://other.example.com/")
        # A value that is left out stays; a rule that is left out is removed.
        rules = github()[:1]
        del rules[0]["headers"][0]["value"]
        assert patch(box, {"rules": rules})[0] == 200
        assert get(box, "https://api.github.com/user")["headers"]["authorization"] == "Bearer <SECRET>"
        assert not reaches(box, "https://github.com/x")
        # The gateway uses a new value at once.
        rules[0]["headers"][0]["value"] = f"token {SECRET}"
        assert patch(box, {"rules": rules})[0] == 200
        assert get(box, "https://api.github.com/user")["headers"]["authorization"] == "token <SECRET>"
        rules[0]["enabled"] = False
        assert patch(box, {"rules": rules})[0] == 200
        assert not reaches(box, "https://api.github.com/user")
        assert box.run("echo $GH_TOKEN").stdout == "\n"


@since(0, 13)
def test_secrets_of_the_server_and_plain_headers(client):
    subprocess.run(
        [os.environ["ATOLL_BIN"], "secret", "set", "LANGSMITH_TEST", "--host", "*.example.com"], input=SECRET.encode(), check=True
    )
    headers = [
        {"name": "X-Key", "type": "workspace_secret", "value": "key {LANGSMITH_TEST}"},
        {"name": "X-Team", "type": "plaintext", "value": "blue"},
    ]
    rule = {"name": "a", "match_hosts": ["a.example.com"], "match_paths": ["/v1/*"], "headers": headers}
    with client.sandbox(proxy_config={"rules": [rule]}) as box:
        seen = get(box, "https://a.example.com/v1/x")["headers"]
        assert (seen["x-key"], seen["x-team"]) == ("key <SECRET>", "blue")
        assert "x-key" not in get(box, "https://a.example.com/v2/x")["headers"]
        # The host list of the secret itself still applies: a rule for another host is refused.
        elsewhere = {"name": "b", "match_hosts": ["github.com"], "headers": headers}
        assert patch(box, {"rules": [elsewhere]})[0] == 403
        unknown = {"name": "b", "match_hosts": ["a.example.com"], "headers": [{**headers[0], "value": "{NO_SUCH}"}]}
        status, answer = patch(box, {"rules": [unknown]})
        assert (status, answer["detail"][0]["loc"][-1]) == (422, "proxy_config")


@since(0, 13)
def test_lists(client):
    allow = {"access_control": {"allow_list": ["a.example.com", "*.github.com"]}, "rules": github()}
    with client.sandbox(proxy_config=allow) as box:
        assert reaches(box, "https://a.example.com/") and reaches(box, "https://api.github.com/")
        assert not reaches(box, "https://b.example.com/") and not reaches(box, "https://github.com/")
        assert patch(box, {"access_control": {"deny_list": ["a.example.com"]}})[0] == 200
        assert not reaches(box, "https://a.example.com/") and reaches(box, "https://b.example.com/")
        # Without lists the sandbox has the network from before.
        assert patch(box, {"rules": []})[0] == 200
        assert not reaches(box, "https://b.example.com/")


def test_what_is_refused(client):
    box = client.create_sandbox()
    try:
        for config in [
            {"access_control": {"allow_list": ["a"], "deny_list": ["b"]}},
            {"access_control": {"allow_list": ["~a.*"]}},
            {"callbacks": [{"url": "https://x.example.com", "match_hosts": ["a.example.com"]}]},
            {"rules": [{"name": "aws", "type": "aws", "aws": {}}]},
            {"rules": [{"name": "all", "match_hosts": ["*"], "headers": [{"name": "A", "type": "plaintext", "value": "b"}]}]},
        ]:
            status, answer = patch(box, config)
            assert (status, answer["detail"][0]["loc"][-1]) == (422, "proxy_config"), answer
    finally:
        client.delete_sandbox(box.name)
