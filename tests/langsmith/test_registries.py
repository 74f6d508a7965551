"""Credentials for private registries."""

import pytest
from conftest import raw, since

pytestmark = since(0, 12)


def test_registries(client, name):
    registries = client.registries
    made = registries.create(name=name, url="https://registry.example.com/team", username="robot", password="sesame")
    try:
        assert made.name == name and made.url == "registry.example.com"
        assert "sesame" not in made.model_dump_json()
        listed = raw("GET", "/v2/sandboxes/registries")[1]
        assert listed["registries"] == listed["items"] and "sesame" not in str(listed)
        assert name in [one.name for one in registries.list(name_contains=name.upper()).registries]
        assert registries.retrieve(name).id == made.id
        with pytest.raises(Exception) as caught:
            registries.create(name=name, url="other.example.com", username="robot", password="sesame")
        assert caught.value.status_code == 409
        changed = registries.update(name, password="open", body_name=name + "-2")
        assert changed.name == name + "-2" and changed.id == made.id
    finally:
        # By its id, as the test may have renamed it.
        registries.delete(made.id)
    with pytest.raises(Exception) as caught:
        registries.retrieve(name)
    assert caught.value.status_code == 404
