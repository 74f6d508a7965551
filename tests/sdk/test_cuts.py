"""Connections that break at random places: no request runs twice, no byte is lost or comes twice."""

import hashlib
import os

import pytest
from atoll import Atoll, errors
from cutter import Cutter

# Where connections are cut: one series in the fast selection.
SEEDS = range(int(os.environ.get("ATOLL_SEEDS", "1")))


@pytest.fixture
def cut():
    """Makes clients whose connections break."""
    cutters, clients = [], []

    def make(cuts, least, most, seed=1):
        cutter = Cutter(os.environ["ATOLL_URL"], cuts, least, most, seed)
        client = Atoll(cutter.url, max_retries=50, timeout=120)
        cutters.append(cutter)
        clients.append(client)
        return client, cutter

    yield make
    for one in clients + cutters:
        one.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_command_runs_once_and_its_output_is_whole(cut, own, seed):
    client, cutter = cut(12, 1, 3000, seed)
    box = client.sandboxes.get(own.id)
    for number in range(12):
        done = box.run(f"echo {number} >> /ran; seq 200")
        assert done.stdout == "".join(f"{line}\n" for line in range(1, 201)) and not done.truncated
    assert own.files.read("/ran") == "".join(f"{number}\n" for number in range(12))
    assert cutter.cut > 4


@pytest.mark.parametrize("seed", SEEDS)
def test_creations_make_one_each(cut, client, seed):
    cutting, cutter = cut(10, 1, 2500, seed)
    labels = {"cuts": f"create-{seed}"}
    boxes = [cutting.sandboxes.create(labels=labels) for _ in range(5)]
    assert sorted(one.id for one in client.sandboxes.list(labels=labels)) == sorted(box.id for box in boxes)
    copies = boxes[0].fork(2, labels={"cuts": f"fork-{seed}"})
    assert len(client.sandboxes.list(labels={"cuts": f"fork-{seed}"}).all()) == len(copies) == 2
    for box in boxes + copies:
        box.delete()
    assert client.sandboxes.list(labels=labels).all() == []
    assert cutter.cut > 1


@pytest.mark.parametrize("seed", SEEDS)
def test_long_output_is_whole(cut, own, seed):
    client, cutter = cut(12, 1000, 250_000, seed)
    box = client.sandboxes.get(own.id)
    process = box.start("seq 300000; sleep 0.2; seq 1000 >&2")
    at, digest = 0, hashlib.sha256()
    for piece in process.output():
        assert piece.offset == at
        at = piece.next_offset
        digest.update(piece.data)
    wanted = "".join(f"{line}\n" for line in [*range(1, 300_001), *range(1, 1001)])
    assert (at, digest.hexdigest()) == (len(wanted), hashlib.sha256(wanted.encode()).hexdigest())
    assert cutter.cut > 1


def test_input_arrives_once(cut, own):
    client, cutter = cut(12, 1, 900, 5)
    box = client.sandboxes.get(own.id)
    process = box.start(["cat"], stdin=True)
    for number in range(20):
        process.write(f"{number}\n")
    process.close_stdin()
    assert process.result().stdout == "".join(f"{number}\n" for number in range(20))
    assert cutter.cut > 1


def test_files_are_whole(cut, own, tmp_path):
    client, cutter = cut(10, 1, 400_000, 3)
    box = client.sandboxes.get(own.id)
    content = os.urandom(1_500_000)
    for _ in range(2):
        box.files.write("/f", content)
        assert box.files.read_bytes("/f") == content
        assert b"".join(box.files.stream("/f")) == content
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "a").write_bytes(content)
    box.files.upload(tmp_path / "up", "/up")
    box.files.download("/up", tmp_path / "down")
    assert (tmp_path / "down" / "up" / "a").read_bytes() == content
    assert cutter.cut > 1


def test_terminals_go_on(cut, own):
    client, cutter = cut(12, 2000, 60_000, 7)
    box = client.sandboxes.get(own.id)
    process = box.start("stty -opost; seq 60000", pty=True)
    shown = b""
    with process.attach() as tty:
        for piece in tty:
            shown += piece
    assert shown == "".join(f"{line}\n" for line in range(1, 60_001)).encode()
    assert cutter.cut > 1


def test_what_may_not_be_repeated_is_not(cut, own):
    """A request without an idempotency key whose answer is lost raises an error that says so."""
    client, _ = cut(1000, 1, 1, 1)
    own.files.write("/a", "a")
    box = own.with_options(max_retries=0)
    assert box.files.read("/a") == "a"
    with pytest.raises(errors.AtollError) as lost:
        client.request("POST", "/v1/keys", {"name": "once", "scope": "read"})
    assert isinstance(lost.value, errors.Unreachable) and lost.value.may_have_run and lost.value.retryable
    assert lost.value.request_id
