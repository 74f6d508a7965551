"""Network policies, secrets and gateways: hosts that a devbox reaches, and credentials that it uses and never has.

Some checks need the network of tests/langsmith/outside.py, in which `run` runs these tests."""

import json
import os
import uuid

import pytest
from conftest import call, native, new_key, raw
from runloop_api_client import BadRequestError, NotFoundError, PermissionDeniedError, Runloop

SECRET = os.environ.get("OUTSIDE_SECRET")
outside = pytest.mark.skipif(SECRET is None, reason="run through tests/langsmith/outside.py")


def name(of):
    return f"{of}-{uuid.uuid4().hex[:8]}"


def variable():
    return "KEY_" + uuid.uuid4().hex[:8].upper()


def sandbox(devbox):
    return native("GET", f"/v1/sandboxes/sb{devbox.id.removeprefix('dbx_')}")


@pytest.fixture
def secret(client):
    """A secret that may be sent to every host, as the client names no hosts."""
    made = client.secrets.create(name=variable(), value=SECRET or "a value of nobody")
    yield made
    client.secrets.delete(made.name)


@pytest.fixture
def policy(sdk):
    made = sdk.network_policy.create(name=name("policy"), allowed_hostnames=["api.example.com"])
    yield made
    made.delete()


def test_policies_are_kept(client):
    made = client.network_policies.create(
        name=name("one"),
        description="why",
        allowed_hostnames=["github.com", "*.npmjs.org"],
        allowed_cidrs=[{"cidr": "192.88.0.0/16", "ports": [{"port": 443}, {"port": 8000, "end_port": 8999}]}],
    )
    assert made.egress.allowed_hostnames == ["github.com", "*.npmjs.org"] and not made.egress.allow_all
    changed = client.network_policies.update(made.id, description="why not", allowed_hostnames=["github.com"])
    assert (changed.name, changed.description) == (made.name, "why not")
    assert client.network_policies.retrieve(made.id).egress.allowed_hostnames == ["github.com"]
    assert len(changed.egress.allowed_cidrs) == 1 and changed.update_time_ms >= made.update_time_ms
    other = client.network_policies.create(name=name("two"), allow_all=True)
    assert other.id in [one.id for one in client.network_policies.list(limit=1)]
    assert [one.id for one in client.network_policies.list(name=made.name)] == [made.id]
    for one in (made, other):
        assert client.network_policies.delete(one.id).id == one.id
        with pytest.raises(NotFoundError):
            client.network_policies.retrieve(one.id)


@pytest.mark.parametrize(
    "asked",
    [
        {"allowed_hostnames": ["a b"]},
        {"allowed_hostnames": ["192.0.2.1/8"]},
        {"allowed_cidrs": [{"cidr": "10.0.0.0/8"}]},
        {"allowed_cidrs": [{"cidr": "169.254.169.254/32"}]},
        {"allowed_cidrs": [{"cidr": "192.88.0.1/32", "ports": [{"port": 53, "protocol": "UDP"}]}]},
        {"allow_devbox_to_devbox": True},
        {"allow_mcp_gateway": True},
        {"allow_runloop_mirrors": True},
        {"name": ""},
        {"description": "x" * 5000},
        {"allowed_hostnames": ["a.com"] * 1000},
    ],
)
def test_what_a_policy_cannot_say_is_refused(client, asked):
    before = client.network_policies.list().total_count
    with pytest.raises(BadRequestError):
        client.network_policies.create(**{"name": "refused", **asked})
    assert client.network_policies.list().total_count == before


def test_a_policy_says_what_a_devbox_reaches(sdk, client, policy):
    launch = {"network_policy_id": policy.id}
    with sdk.devbox.create(launch_parameters=launch) as devbox:
        egress = sandbox(devbox)["egress"]
        assert egress["internet"] == "rules" and [rule["domain"] for rule in egress["rules"]] == ["api.example.com"]
        assert devbox.get_info().launch_parameters.network_policy_id == policy.id
        if SECRET:
            assert devbox.cmd.exec("curl -sk --fail https://api.example.com/").exit_code == 0
            assert devbox.cmd.exec("curl -sk --fail https://other.example.com/").exit_code != 0
    closed = sdk.network_policy.create(name=name("closed"))
    with sdk.devbox.create(launch_parameters={"network_policy_id": closed.id}) as devbox:
        assert sandbox(devbox)["egress"]["internet"] == "off"
    closed.delete()
    with pytest.raises(BadRequestError, match="not found"):
        client.devboxes.create(launch_parameters={"network_policy_id": closed.id})


def test_a_policy_of_a_blueprint(client, sdk, policy):
    made = client.blueprints.create_and_await_build_complete(
        name=name("with-policy"),
        dockerfile="FROM host\nRUN echo built",
        network_policy_id=policy.id,
        launch_parameters={"network_policy_id": policy.id},
    )
    assert made.parameters.network_policy_id == policy.id
    with sdk.devbox.create_from_blueprint_id(made.id) as devbox:
        assert [rule["domain"] for rule in sandbox(devbox)["egress"]["rules"]] == ["api.example.com"]
    client.blueprints.delete(made.id)


def test_secrets_are_kept_and_never_told(client):
    named = variable()
    made = client.secrets.create(name=named, value="sesame-open-1")
    assert made.id.startswith("sec_") and made.name == named
    with pytest.raises(Exception, match="exists|taken|already"):
        client.secrets.create(name=named, value="sesame-open-2")
    changed = client.secrets.update(named, value="sesame-open-3")
    assert changed.id == made.id and changed.update_time_ms >= made.create_time_ms
    for method, path in [("GET", f"/v1/secrets/{named}"), ("GET", "/v1/secrets?limit=5000"), ("GET", f"/v1/secrets/{made.id}")]:
        status, _, body = raw(method, path)
        assert status == 200 and named.encode() in body and b"sesame" not in body
    # Some clients find the secret by its id as well.
    assert call("GET", f"/v1/secrets/id/{made.id}")[1]["name"] == named
    assert call("POST", f"/v1/secrets/id/{made.id}/update", {"value": "sesame-open-4"})[0] == 200
    assert call("POST", f"/v1/secrets/id/{made.id}/delete")[1]["id"] == made.id
    with pytest.raises(NotFoundError):
        client.secrets.update(named, value="x" * 10)


def test_who_may_make_secrets(secret, policy):
    weak = Runloop(bearer_token=new_key("manage"))
    assert weak.secrets.list(limit=5000).total_count >= 1
    for ask in (
        lambda: weak.secrets.create(name=variable(), value="a value of somebody"),
        lambda: weak.secrets.update(secret.name, value="a value of somebody"),
        lambda: weak.secrets.delete(secret.name),
    ):
        with pytest.raises(PermissionDeniedError):
            ask()
    # Only the key that made a policy can use it.
    for method, path in [("GET", ""), ("POST", ""), ("POST", "/delete")]:
        path = f"/v1/network-policies/{policy.id}{path}"
        assert call(method, path, None if method == "GET" else {}, key=new_key("manage"))[0] == 404
    assert weak.network_policies.list().total_count == 0
    with pytest.raises(BadRequestError, match="not found"):
        weak.devboxes.create(launch_parameters={"network_policy_id": policy.id})


def test_a_secret_that_has_no_hosts_is_refused(client, secret):
    count = client.devboxes.list().total_count
    with pytest.raises(BadRequestError, match="--host"):
        client.devboxes.create(secrets={"TOKEN": secret.name}, launch_parameters={})
    with pytest.raises(BadRequestError, match="not found"):
        client.devboxes.create(secrets={"TOKEN": "NO_SUCH_SECRET"})
    assert client.devboxes.list().total_count == count


def seen(devbox, command):
    """The request of a command, as the server of outside.py received it."""
    result = devbox.cmd.exec(command)
    assert result.exit_code == 0, result.stderr()
    return json.loads(result.stdout())


def test_the_variable_of_a_secret_holds_a_placeholder(sdk, secret, policy):
    launch = {"network_policy_id": policy.id}
    with sdk.devbox.create(secrets={"TOKEN": secret.name}, launch_parameters=launch) as devbox:
        placeholder = devbox.cmd.exec("printf %s $TOKEN").stdout()
        assert placeholder.startswith("atoll_secret_")
        assert [rule["hosts"] for rule in sandbox(devbox)["egress"]["inject"]] == [["api.example.com"]]
        if SECRET:
            asked = 'curl -sS --fail -H "Authorization: Bearer $TOKEN" https://api.example.com/'
            assert seen(devbox, asked)["headers"]["authorization"] == "Bearer <SECRET>"
            # The gateway adds no credential to a request without one.
            assert "authorization" not in seen(devbox, "curl -sS --fail https://api.example.com/")["headers"]
            assert devbox.cmd.exec(f"env | grep -c {SECRET}; grep -rl {SECRET} /tmp /home 2>/dev/null").stdout() == "0\n"


def test_hosts_of_a_secret(sdk, client):
    """Hosts of a secret are set by a field beside its value that is not in the protocol, or by the native API."""
    made = client.secrets.create(name=variable(), value=SECRET or "a value of nobody", extra_body={"hosts": ["api.example.com"]})
    with sdk.devbox.create(secrets={"TOKEN": made.id}) as devbox:
        egress = sandbox(devbox)["egress"]
        assert egress["inject"][0]["hosts"] == ["api.example.com"]
        assert egress["internet"] == "on" or "api.example.com" in [rule["domain"] for rule in egress["rules"]]
        if SECRET:
            asked = 'curl -sS --fail -H "X-Api-Key: $TOKEN" https://api.example.com/'
            assert seen(devbox, asked)["headers"]["x-api-key"] == "<SECRET>"
    client.secrets.delete(made.name)


def test_gateways_are_kept(client):
    made = client.gateway_configs.create(
        name=name("gateway"),
        endpoint="https://api.example.com/v1",
        auth_mechanism={"type": "bearer"},
        custom_headers=[{"name": "X-Team", "value": "search"}],
    )
    changed = client.gateway_configs.update(made.id, auth_mechanism={"type": "header", "key": "x-api-key"})
    assert (changed.name, changed.auth_mechanism.key, changed.custom_headers[0].value) == (made.name, "x-api-key", "search")
    assert made.id in [one.id for one in client.gateway_configs.list(search=made.name)]
    for bad in [
        {"endpoint": "http://api.example.com"},
        {"endpoint": "https://u:p@api.example.com"},
        {"endpoint": "https://192.0.2.1"},
        {"auth_mechanism": {"type": "basic"}},
        {"auth_mechanism": {"type": "header"}},
        {"custom_headers": [{"name": "X", "value": "{secret:ANY}"}]},
        {"custom_headers": [{"name": "X Y", "value": "x"}]},
        {"custom_headers": [{"name": "X", "secret": "NO_SUCH_SECRET"}]},
    ]:
        with pytest.raises(BadRequestError):
            client.gateway_configs.update(made.id, **bad)
    assert client.gateway_configs.retrieve(made.id).endpoint == "https://api.example.com/v1"
    assert call("GET", f"/v1/gateway-configs/{made.id}", key=new_key("manage"))[0] == 404
    client.gateway_configs.delete(made.id)
    with pytest.raises(NotFoundError):
        client.gateway_configs.retrieve(made.id)


def test_a_gateway_puts_the_secret_in(sdk, client, secret):
    made = client.gateway_configs.create(
        name=name("gateway"),
        endpoint="https://api.example.com/v1",
        auth_mechanism={"type": "header", "key": "x-api-key"},
        custom_headers=[{"name": "X-Team", "value": "search"}],
    )
    with sdk.devbox.create(gateways={"LLM": {"gateway": made.name, "secret": secret.name}}) as devbox:
        spec = devbox.get_info().gateway_specs["LLM"]
        assert (spec.gateway_config_id, spec.secret_id) == (made.id, secret.id)
        assert devbox.cmd.exec("echo $LLM_URL").stdout() == "https://api.example.com/v1\n"
        assert devbox.cmd.exec("printf %s $LLM").stdout().startswith("atoll_secret_")
        if SECRET:
            headers = seen(devbox, 'curl -sS --fail -H "x-api-key: $LLM" $LLM_URL/messages')["headers"]
            assert (headers["x-api-key"], headers["x-team"]) == ("<SECRET>", "search")
            # Other paths of the same host do not get the credential.
            assert "x-api-key" not in seen(devbox, "curl -sS --fail https://api.example.com/else")["headers"]
    client.gateway_configs.delete(made.id)


def test_a_policy_may_keep_gateways_out(sdk, client, secret, policy):
    made = client.gateway_configs.create(
        name=name("gateway"), endpoint="https://llm.example.com", auth_mechanism={"type": "bearer"}
    )
    asked = {"gateways": {"LLM": {"gateway": made.id, "secret": secret.id}}, "launch_parameters": {"network_policy_id": policy.id}}
    reached = lambda devbox: [rule["domain"] for rule in sandbox(devbox)["egress"]["rules"]]
    with sdk.devbox.create(**asked) as devbox:
        assert reached(devbox) == ["api.example.com"]
    policy.update(allow_agent_gateway=True)
    with sdk.devbox.create(**asked) as devbox:
        assert reached(devbox) == ["api.example.com", "llm.example.com"]
        if SECRET:
            assert seen(devbox, "curl -sS --fail $LLM_URL/x")["headers"]["authorization"] == "Bearer <SECRET>"
    client.gateway_configs.delete(made.id)
