"""Secrets: made, changed, listed, given to sandboxes, which never see their values. Some checks need the network of
tests/langsmith/outside.py, in which `run` runs these tests."""

import json
import os
import uuid

import pytest
from conftest import call, raw, since
from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaConfig

pytestmark = since(0, 210)
SECRET = os.environ.get("OUTSIDE_SECRET")
VALUE = SECRET or "a value of nobody"


def new(daytona, hosts=None, **more):
    from daytona import CreateSecretParams

    return daytona.secret.create(CreateSecretParams(name=f"key-{uuid.uuid4().hex[:8]}", value=VALUE, hosts=hosts, **more))


@pytest.fixture
def secret(daytona):
    made = new(daytona, hosts=["api.example.com"])
    yield made
    daytona.secret.delete(made.id)


def native(sandbox):
    """The answer of the native API about a sandbox."""
    root, key = os.environ["ATOLL_URL"], os.environ["ATOLL_API_KEY"]
    return call("GET", f"/v1/sandboxes/{sandbox.name}", root=root, key=key)[1]


def seen(sandbox, command):
    """The request of a command, as the server of outside.py received it."""
    result = sandbox.process.exec(command)
    assert result.exit_code == 0, result.result
    return json.loads(result.result)


def test_made_changed_and_deleted(daytona):
    from daytona import UpdateSecretParams

    made = new(daytona, description="why")
    assert (made.description, made.hosts) == ("why", []) and made.placeholder.startswith("dtn_secret_")
    changed = daytona.secret.update(made.id, UpdateSecretParams(hosts=["api.example.com", "*.example.com"]))
    assert (changed.id, changed.description) == (made.id, "why") and changed.hosts == ["api.example.com", "*.example.com"]
    daytona.secret.update(made.id, UpdateSecretParams(value="another of nobody"))
    assert daytona.secret.get(made.id).hosts == changed.hosts and daytona.secret.get(made.name).id == made.id
    status, body = call("POST", "/secret", {"name": made.name, "value": VALUE})
    assert status == 409, body
    daytona.secret.delete(made.id)
    with pytest.raises(Exception, match="not found"):
        daytona.secret.get(made.id)
    assert call("POST", "/secret", {"name": "x", "value": VALUE, "hosts": ["a b"]})[0] == 400


def test_pages(daytona):
    made = [new(daytona) for _ in range(3)]
    ids = {one.id for one in made}
    found, cursor = [], None
    while True:
        page = daytona.secret.list(cursor=cursor, limit=2, sort="name", order="asc")
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    names = [one.name for one in found]
    assert names == sorted(names) and ids <= {one.id for one in found}
    assert VALUE.encode() not in raw("GET", "/secret")[2]
    for one in made:
        daytona.secret.delete(one.id)
    for bad in ["limit=0", "limit=201", "sort=x", "order=x", "cursor=none"]:
        assert call("GET", f"/secret/paginated?{bad}")[0] == 400, bad


def test_a_sandbox_uses_what_it_does_not_have(daytona, secret):
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(name=f"s-{uuid.uuid4().hex[:8]}", secrets={"TOKEN": secret.name}))
    assert sandbox.process.exec("printf %s $TOKEN").result == secret.placeholder
    assert native(sandbox)["egress"]["inject"][0]["hosts"] == ["api.example.com"]
    # The secret stays when other network settings change.
    status, body = call("POST", f"/sandbox/{sandbox.id}/network-settings", {"domainAllowList": "api.example.com"})
    assert status in (200, 201), body
    assert [rule["domain"] for rule in native(sandbox)["egress"]["rules"]] == ["api.example.com"]
    if SECRET:
        asked = 'curl -sS --fail -H "Authorization: Bearer $TOKEN" https://api.example.com/'
        assert seen(sandbox, asked)["headers"]["authorization"] == "Bearer <SECRET>"
        assert sandbox.process.exec(f"env | grep -c {SECRET}").result == "0\n"
    sandbox.update_secrets({})
    assert not native(sandbox)["egress"].get("inject")
    sandbox.update_secrets({"OTHER": secret.name})
    assert sandbox.process.exec("printf %s $OTHER").result == secret.placeholder
    sandbox.delete()


def test_what_cannot_be_is_refused(daytona, own):
    anywhere = new(daytona)
    for body in ([{"TOKEN": anywhere.name}], [{"TOKEN": "no-such-secret"}], [{"A=B": anywhere.name}]):
        status, answer = call("POST", "/sandbox", {"secrets": body})
        assert status == 400, answer
    assert "--host" in call("POST", "/sandbox", {"secrets": [{"TOKEN": anywhere.name}]})[1]["message"]
    status, answer = call("PUT", f"/sandbox/{own.id}/secrets", {"secrets": [{"TOKEN": anywhere.name}]})
    assert status == 400, answer
    daytona.secret.delete(anywhere.id)


def test_who_may_make_them(secret):
    import subprocess

    command = [os.environ["ATOLL_BIN"], "key", "create", f"k-{uuid.uuid4().hex[:8]}", "--scope", "manage", "--for", "daytona"]
    key = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    weak = Daytona(DaytonaConfig(api_key=key, api_url=os.environ["DAYTONA_API_URL"]))
    assert weak.secret.get(secret.id).name == secret.name
    with pytest.raises(Exception, match="scope"):
        new(weak)
    with pytest.raises(Exception, match="scope"):
        weak.secret.delete(secret.id)
