"""Computer use, in a sandbox of the template `desktop`, or of the one that DESKTOP names."""

import base64
import os
import struct
import time

import pytest
from conftest import until
from daytona import CreateSandboxFromSnapshotParams, DaytonaError, ScreenshotOptions, ScreenshotRegion


@pytest.fixture(scope="module")
def box(daytona):
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(snapshot=os.environ.get("DESKTOP", "desktop")))
    yield sandbox
    sandbox.delete()


@pytest.fixture
def screen(box):
    box.computer_use.start()
    return box.computer_use


def size_of(picture):
    """Reads the size of a PNG."""
    content = base64.b64decode(picture.screenshot, validate=True)
    assert content.startswith(b"\x89PNG") and len(content) == picture.size_bytes
    return struct.unpack(">II", content[16:24])


def test_it_starts_and_stops(box):
    use = box.computer_use
    assert use.get_status().status == "inactive"
    with pytest.raises(DaytonaError, match="does not run: start it first"):
        use.screenshot.take_full_screen()
    started = use.start()
    assert started.status["xvfb"].running and started.status["xvfb"].pid
    again = use.start()
    assert again.status["xvfb"].pid == started.status["xvfb"].pid
    until(lambda: use.get_status().status in ("active", "partial"))
    assert use.get_process_status("xvfb").running
    use.restart_process("xvfb")
    until(lambda: use.get_process_status("xvfb").running)
    assert use.get_process_logs("xvfb").process_name == "xvfb"
    assert use.get_process_errors("xvfb").errors is not None
    with pytest.raises(DaytonaError, match="there are xvfb"):
        use.get_process_status("init")
    stopped = use.stop()
    assert not any(status.running for status in stopped.status.values())
    assert use.get_status().status == "inactive"


def test_the_screen(screen):
    [display] = screen.display.get_info().displays
    assert (display.width, display.height, display.is_active) == (1024, 768, True)
    assert size_of(screen.screenshot.take_full_screen()) == (1024, 768)
    part = ScreenshotRegion(x=10, y=20, width=100, height=50)
    assert size_of(screen.screenshot.take_region(part, show_cursor=True)) == (100, 50)
    assert size_of(screen.screenshot.take_compressed(ScreenshotOptions(fmt="png", scale=0.5))) == (512, 384)
    small = screen.screenshot.take_compressed_region(part, ScreenshotOptions(fmt="jpeg", quality=40))
    assert base64.b64decode(small.screenshot).startswith(b"\xff\xd8\xff")
    with pytest.raises(DaytonaError, match="png or jpeg"):
        screen.screenshot.take_compressed(ScreenshotOptions(fmt="webp"))


def test_the_mouse(screen):
    told = screen.mouse.move(111, 222)
    assert (told.x, told.y) == (111, 222)
    at = screen.mouse.get_position()
    assert (at.x, at.y) == (111, 222)
    assert screen.mouse.click(50, 60, clicks=3, modifiers=["ctrl"]).x == 50
    assert screen.mouse.click(51, 61, "right", True).y == 61
    dragged = screen.mouse.drag(10, 10, 300, 250, modifiers=["shift"])
    assert (dragged.x, dragged.y) == (300, 250)
    assert screen.mouse.scroll(100, 200, "down", 3) is True
    screen.mouse.down(20, 30)
    assert screen.mouse.up(40, 50).x == 40
    for wrong in (lambda: screen.mouse.move(-1, 0), lambda: screen.mouse.click(1, 1, "fourth"), lambda: screen.mouse.scroll(1, 1, "in"),
                  lambda: screen.mouse.click(1, 1, clicks=0), lambda: screen.mouse.move(99999, 0)):
        with pytest.raises(DaytonaError, match="must be|there is no"):
            wrong()


def test_a_window_gets_what_is_typed(box, screen):
    box.process.create_session("x")
    from daytona import SessionExecuteRequest

    box.process.execute_session_command("x", SessionExecuteRequest(command="DISPLAY=:0 xev >/tmp/xev", run_async=True))

    def found():
        return next((window for window in screen.display.get_windows().windows if window.title == "Event Tester"), None)

    window = until(found)
    screen.mouse.click(window.x + window.width // 2, window.y + window.height // 2)
    screen.keyboard.type("ab; $(id)", 5)
    screen.keyboard.press("Enter", ["shift"])
    screen.keyboard.hotkey("ctrl+c")
    screen.keyboard.down("f5")
    screen.keyboard.up("f5")

    def told():
        text = box.process.exec("cat /tmp/xev").result
        return all(key in text for key in (", a)", "dollar)", "parenright)", "Return)", "Control_L)", ", c)", "F5)", "Shift_L)")) and text

    until(told)
    for wrong in ("no-such-key", "--help", ""):
        with pytest.raises(DaytonaError, match="there is no"):
            screen.keyboard.press(wrong)
    box.process.delete_session("x")


def test_it_is_gone_after_a_stop(box, screen):
    box.stop()
    box.start()
    assert screen.get_status().status == "inactive"
    screen.start()
    deadline = time.monotonic() + 30
    while screen.get_status().status == "inactive" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert size_of(screen.screenshot.take_full_screen()) == (1024, 768)
