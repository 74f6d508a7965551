"""One run of code in a kernel."""

import asyncio
import uuid

from . import messages

# How long a kernel is silent until nothing is expected of it any more.
FENCE_SECONDS = 5
# How often a cell that nobody waits for is interrupted again, until it ends.
INTERRUPT_SECONDS = 2


class Cell:
    """Collects what a kernel says about one piece of code. The kernel's reader writes, one client reads."""

    def __init__(self, interrupt, settle=None):
        """`settle` is called when the kernel has said that the cell ended, and ends it when its output is complete."""
        self._interrupt = interrupt
        self._settle = settle
        self._events = asyncio.Queue()
        self._idle = self._replied = self._failed = self._settling = False
        # How it failed as the reply has it: said if the output did not, as when the kernel dropped what waited.
        self._unsaid = None
        self._interrupting = None
        # Whether its kernel went before it ended.
        self.lost = False
        self.ended = asyncio.Event()

    async def next(self):
        """The next event. After the last there is none."""
        return await self._events.get()

    def take(self, message):
        """A message from the kernel about this cell."""
        if self.ended.is_set():
            return
        kind, content = message["msg_type"], message["content"]
        if kind == "status":
            self._idle = self._idle or content["execution_state"] == "idle"
        elif kind == "execute_reply":
            self._replied = True
            if content["status"] != "ok":
                self._unsaid = messages.error({"ename": "ExecutionError", "evalue": content["status"], **content})
        else:
            event = messages.event(message)
            self._failed = self._failed or kind == "error"
            if event is not None:
                self._put(event)
        # Output and reply travel apart: the cell has ended when both said so.
        if self._idle and self._replied:
            settle, self._settle = self._settle, None
            if settle is not None:
                self._settling = True
                settle(self)
            elif not self._settling:
                self.finish()

    def finish(self):
        """All that it said is here."""
        if not self.ended.is_set():
            if self._unsaid is not None and not self._failed:
                self._put(self._unsaid)
            self._end("end_of_execution")

    def add(self, event):
        """What it said, and came late."""
        if event is not None and not self.ended.is_set():
            self._put(event)

    def kernel_died(self, why):
        """There will be no more messages."""
        if not self.ended.is_set():
            self.lost = True
            self._put({"type": "error", "name": "KernelDied", "value": why, "traceback": ""})
            self._end("unexpected_end_of_execution")

    def abandon(self):
        """Nobody waits for it any more: the kernel is interrupted until it has ended, so that the next cell can run."""
        if not self.ended.is_set() and self._interrupting is None:
            self._interrupting = asyncio.create_task(self._until_ended())

    async def _until_ended(self):
        while not self.ended.is_set():
            await self._interrupt()
            try:
                await asyncio.wait_for(self.ended.wait(), INTERRUPT_SECONDS)
            except asyncio.TimeoutError:
                continue

    def _put(self, event):
        # What nobody will read is not kept.
        if self._interrupting is None:
            self._events.put_nowait(event)

    def _end(self, kind):
        self._put({"type": kind})
        self.ended.set()


class Fence:
    """Stands behind a cell whose kernel sends output later than its word that the cell ended, and so perhaps with the next cell.

    The kernel is made to write a mark to every way on which output comes: what comes before the mark is the cell's.
    """

    def __init__(self, cell):
        self.mark = f"\0{uuid.uuid4()}\0"
        self._cell = cell
        self._missing = {"stdout", "stderr", "data"}
        self._text = {"stdout": "", "stderr": ""}
        self._timer = None
        self._wait()

    def take(self, message):
        """A message from the kernel about the mark, or late about the cell."""
        self._wait()
        kind, content = message["msg_type"], message["content"]
        if kind == "stream" and content["name"] in self._missing:
            name = content["name"]
            self._text[name] += content["text"]
            if self.mark in self._text[name]:
                self._say(name)
        elif kind == "display_data" and self.mark in content["data"]:
            self._missing.discard("data")
        elif kind == "error":
            # The code of the mark failed: no mark will come.
            self._missing.clear()
        if not self._missing:
            self._end()

    def kernel_died(self, _why):
        """There will be no more messages. The cell hears it itself."""
        self._missing.clear()
        self._timer.cancel()

    def _say(self, name):
        self._missing.discard(name)
        text = self._text[name].partition(self.mark)[0]
        if text:
            self._cell.add(messages.stream(name, text))

    def _wait(self):
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(FENCE_SECONDS, self._end)

    def _end(self):
        self._timer.cancel()
        for name in self._missing & self._text.keys():
            self._say(name)
        self._cell.finish()
