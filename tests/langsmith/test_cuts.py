"""Output over connections that are cut again and again: no byte is lost, none comes twice."""

import hashlib
import os

import pytest
from conftest import endpoint, since
from cutter import Cutter
from langsmith.sandbox import SandboxClient
from langsmith.sandbox._models import CommandHandle

# 50 MB: ASCII, characters of two to four bytes, and bytes that are not UTF-8.
PROGRAM = r"""
import random, sys
source = random.Random(7)
out = sys.stdout.buffer
written = 0
while written < %d:
    line = bytes(source.choices(b'abcdefghij \\"', k=source.randint(1, 300)))
    line += source.choice(['ä', '€', '😀', '']).encode() + source.choice([b'\xff', b'\xe2\x82', b'', b''])
    out.write(line + b'\n')
    written += len(line) + 1
"""


def wanted(size):
    import random

    source, text, written = random.Random(7), hashlib.sha256(), 0
    while written < size:
        line = bytes(source.choices(b'abcdefghij \\"', k=source.randint(1, 300)))
        line += source.choice(["ä", "€", "😀", ""]).encode() + source.choice([b"\xff", b"\xe2\x82", b"", b""])
        text.update((line + b"\n").decode(errors="replace").encode())
        written += len(line) + 1
    return text.hexdigest()


@since(0, 12)
def test_cut_connections(client, monkeypatch):
    cuts = int(os.environ.get("CUTS", "50"))
    size = int(os.environ.get("CUT_BYTES", str(5 << 20)))
    # The client waits between its attempts; the test need not.
    monkeypatch.setattr(CommandHandle, "_BACKOFF_BASE", 0.0)
    cutter = Cutter(endpoint(), cuts, 2_000, 2 * size // (3 * cuts))
    box = client.create_sandbox()
    try:
        box.write("/tmp/program.py", PROGRAM % size)
        root = cutter.url + endpoint().removeprefix(os.environ["ATOLL_URL"])
        with SandboxClient(api_endpoint=root + "/v2/sandboxes") as through:
            cut_box = through.get_sandbox(box.name)
            assert cut_box.dataplane_url.startswith(cutter.url)
            text, length = hashlib.sha256(), 0
            handle = cut_box.run("python3 /tmp/program.py", timeout=600, wait=False)
            for chunk in handle:
                assert chunk.stream == "stdout" and chunk.offset == length
                text.update(chunk.data.encode())
                length += len(chunk.data.encode())
            assert handle.result.exit_code == 0
        assert text.hexdigest() == wanted(size)
        assert cutter.cut == cuts, f"only {cutter.cut} cuts: the test is too easy"
    finally:
        cutter.close()
        client.delete_sandbox(box.name)
