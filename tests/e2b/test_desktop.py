"""The desktop, as its SDK starts, sees and drives it, and the viewer for browsers."""

import os
import socket
import struct
import urllib.parse

import pytest
from conftest import data_plane, until
from e2b_desktop import Sandbox


@pytest.fixture(scope="module")
def desktop():
    with Sandbox.create(timeout=600, resolution=(1280, 720)) as sandbox:
        yield sandbox


def size(png):
    assert bytes(png[:8]) == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", bytes(png[16:24]))


def test_screen_and_mouse(desktop):
    assert desktop.get_screen_size() == (1280, 720)
    desktop.move_mouse(111, 222)
    assert desktop.get_cursor_position() == (111, 222)
    desktop.drag((200, 200), (300, 250))
    assert desktop.get_cursor_position() == (300, 250)
    for click in (desktop.left_click, desktop.right_click, desktop.middle_click, desktop.double_click, desktop.scroll):
        click()
    desktop.press("escape")
    picture = desktop.screenshot()
    assert size(picture) == (1280, 720) and len(picture) > 5000, "an empty screen is smaller"


def test_a_program_with_a_window(desktop):
    def windows():
        # `xdotool` fails while there is no such window.
        found = desktop.commands.run("xdotool search --onlyvisible --class xfce4-terminal || true").stdout.split()
        return found and desktop.get_application_windows("xfce4-terminal") == found and found

    desktop.launch("xfce4-terminal")
    (window,) = until(windows)
    assert "Terminal" in until(lambda: desktop.get_window_title(window))
    until(lambda: desktop.get_current_window_id() == window)
    until(lambda: desktop.commands.run("pgrep -u user -c -x bash || true").stdout.strip() != "0")
    desktop.write("echo 'typed & sent' > /tmp/typed")
    desktop.press("enter")
    until(lambda: desktop.files.exists("/tmp/typed") and desktop.files.read("/tmp/typed") == "typed & sent\n")
    desktop.press(["ctrl", "d"])
    until(lambda: not windows())


def greeting(desktop, port):
    """The first message that the viewer gets over its WebSocket."""
    at = urllib.parse.urlsplit(os.environ["E2B_SANDBOX_URL"])
    head = (
        f"GET /websockify HTTP/1.1\r\nHost: {at.netloc}\r\nE2b-Sandbox-Id: {desktop.sandbox_id}\r\nE2b-Sandbox-Port: {port}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Protocol: binary\r\n\r\n"
    )
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        connection.sendall(head.encode())
        heard = b""
        while b"RFB " not in heard:
            heard += connection.recv(65536) or pytest.fail(f"it ended after {heard!r}")
    return heard


def test_the_viewer(desktop):
    desktop.stream.start(require_auth=True)
    url = urllib.parse.urlsplit(desktop.stream.get_url(auth_key=desktop.stream.get_auth_key()))
    assert url.hostname.startswith(f"6080-{desktop.sandbox_id}.") and url.path == "/vnc.html"
    status, _, page = data_plane(desktop.sandbox_id, "GET", "/vnc.html", port=6080)
    assert status == 200 and b"noVNC" in page
    assert greeting(desktop, 6080).startswith(b"HTTP/1.1 101 ")
    with pytest.raises(RuntimeError, match="already running"):
        desktop.stream.start()
    desktop.stream.stop()
    until(lambda: desktop.commands.run("pgrep -x -c x11vnc || true").stdout.strip() == "0")
