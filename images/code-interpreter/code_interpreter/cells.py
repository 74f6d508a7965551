"""One run of code in a kernel."""

import asyncio

from . import messages

# How often a cell that nobody waits for is interrupted again, until it ends.
INTERRUPT_SECONDS = 2


class Cell:
    """Collects what a kernel says about one piece of code. The kernel's reader writes, one client reads."""

    def __init__(self, interrupt):
        self._interrupt = interrupt
        self._events = asyncio.Queue()
        self._idle = self._replied = self._failed = False
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
            if self._unsaid is not None and not self._failed:
                self._put(self._unsaid)
            self._end("end_of_execution")

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
