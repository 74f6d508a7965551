"""Warm pools: Atoll's pools of templates."""

import os

import pytest
from conftest import call, since, until
from daytona import CreateSandboxFromSnapshotParams, CreateSnapshotParams
from daytona_api_client.exceptions import ApiException
from test_snapshots import name

pytestmark = since(0, 226)


def native():
    return call("GET", "/v1/pools", key=os.environ["ATOLL_API_KEY"], root=os.environ["ATOLL_URL"])[1]["items"]


@pytest.fixture
def snapshot(daytona):
    made = daytona.snapshot.create(CreateSnapshotParams(name=name("pooled"), image="host"))
    yield made
    daytona.snapshot.delete(made)


def test_a_creation_is_served_from_it(daytona, snapshot):
    pool = daytona.warm_pool.create(snapshot.name, pool=1)
    assert (pool.snapshot, pool.pool, pool.error_reason) == (snapshot.name, 1, None)
    with pytest.raises(ApiException, match="already"):
        daytona.warm_pool.create(snapshot.name, pool=2)

    def found():
        return next(one for one in daytona.warm_pool.list() if one.id == pool.id)

    until(lambda: found().current_size == 1)
    box = daytona.create(CreateSandboxFromSnapshotParams(snapshot=snapshot.name, labels={"a": "b"}))
    assert box.process.exec("echo warm").result == "warm\n"
    assert [one["hits"] for one in native() if (one.get("template") or "").split(":")[0] == snapshot.name] == [1]
    box.delete()
    assert daytona.warm_pool.update(pool.id, pool=2).pool == 2
    daytona.warm_pool.delete(pool.id)
    assert pool.id not in [one.id for one in daytona.warm_pool.list()]
    with pytest.raises(ApiException, match="not found"):
        daytona.warm_pool.update(pool.id, pool=1)


def test_what_cannot_be(daytona, own):
    for size in (0, 1.5, 100_000):
        status, body = call("POST", "/warm-pools", {"snapshot": "daytona", "pool": size})
        assert status == 400 and "pool" in body["message"]
    with pytest.raises(ApiException, match="not found"):
        daytona.warm_pool.create("nothing-of-that-name", pool=1)
    taken = name("taken")
    assert call("POST", f"/sandbox/{own.id}/snapshot", {"name": taken})[0] < 300
    with pytest.raises(ApiException, match="built of an image"):
        daytona.warm_pool.create(taken, pool=1)
    daytona.snapshot.delete(daytona.snapshot.get(taken))
