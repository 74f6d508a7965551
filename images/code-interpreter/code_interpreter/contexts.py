"""Contexts: each is a kernel with its state. Cells of one context run one after another, those of several side by side."""

import asyncio
import logging
import os
import uuid

from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

from . import languages
from .cells import Cell, Fence

# A kernel that has not answered by then will not.
START_SECONDS = 60
# How often it is looked whether a kernel that runs a cell still lives.
ALIVE_SECONDS = 1
logger = logging.getLogger(__name__)


class Refused(Exception):
    """What a client asked for cannot be: a status and a text for it."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Context:
    """A kernel. It is started when it is first needed, and again when it died."""

    def __init__(self, language, cwd):
        self.id = str(uuid.uuid4())
        self.language = language
        self.cwd = cwd
        # Held by who runs a cell, or changes the kernel.
        self._turn = asyncio.Lock()
        self._manager = self._client = None
        self._tasks = []
        # What runs now, by the id of its request.
        self._cells = {}
        self._removed = False

    def view(self):
        """As clients see it."""
        return {"id": self.id, "language": self.language.name, "cwd": self.cwd}

    async def start(self):
        """Starts the kernel if none runs."""
        async with self._turn:
            await self._start()

    async def begin(self, code, variables):
        """Runs code when it is its turn. The cell goes on by itself; who asked reads its events."""
        await self._turn.acquire()
        beginning = asyncio.create_task(self._begin(code, variables))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The client went while its variables were set: the cell begins, is interrupted, and undoes them.
            beginning.add_done_callback(lambda done: done.exception() or done.result().abandon())
            raise

    async def _begin(self, code, variables):
        try:
            if self._removed:
                raise Refused(404, f"Context {self.id} not found")
            await self._start()
            if variables:
                await self._silently(self.language.enter(variables))
            cell = self._run(code)
        except BaseException:
            self._turn.release()
            raise
        # The turn is this task's from here on: it outlives a client that goes away.
        self._tasks.append(asyncio.create_task(self._finish(cell, variables)))
        return cell

    async def restart(self):
        """A new kernel with no state. A cell that runs ends."""
        self._lose("the kernel was restarted")
        async with self._turn:
            await self._stop()
            await self._start()

    async def interrupt(self):
        """Interrupts what the kernel runs. Its state stays."""
        if self._manager is not None and self._manager.has_kernel:
            await self._manager.interrupt_kernel()

    async def close(self):
        """Ends the kernel; the context is of no use any more."""
        self._removed = True
        self._lose("the context was removed")
        async with self._turn:
            await self._stop()

    async def _start(self):
        if self._manager is not None and await self._manager.is_alive():
            return
        await self._stop()
        self._manager = AsyncKernelManager(kernel_name=self.language.kernel)
        try:
            await self._manager.start_kernel(cwd=self.cwd, extra_arguments=list(self.language.arguments))
            self._client = self._manager.client()
            self._client.start_channels()
            await self._client.wait_for_ready(timeout=START_SECONDS)
        except (NoSuchKernel, RuntimeError, OSError) as error:
            await self._stop()
            raise Refused(500, f"the {self.language.name} kernel did not start: {error}") from error
        read = (self._read(self._client.get_iopub_msg), self._read(self._client.get_shell_msg))
        self._tasks = [asyncio.create_task(reader) for reader in read]
        await self._silently(self.language.begin)

    async def _stop(self):
        # Who holds the turn is no such task: no cell runs.
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client, self._client = self._client, None
        manager, self._manager = self._manager, None
        if client is not None:
            client.stop_channels()
        if manager is not None and manager.has_kernel:
            await manager.shutdown_kernel(now=True)

    async def _read(self, receive):
        """The only reader of a channel: gives each message to the cell that it is about."""
        while True:
            message = await receive()
            cell = self._cells.get(message["parent_header"].get("msg_id"))
            if cell is not None:
                cell.take(message)

    def _run(self, code, silent=False):
        cell = Cell(self.interrupt, self._fence if self.language.fence is not None and not silent else None)
        self._cells[self._execute(code, silent)] = cell
        return cell

    def _execute(self, code, silent):
        return self._client.execute(code, silent=silent, store_history=not silent, allow_stdin=False)

    def _fence(self, cell):
        """Ends a cell when all of its output is here."""
        fence = Fence(cell)
        self._cells[self._execute(self.language.fence(fence.mark), silent=True)] = fence

    async def _silently(self, code):
        """Runs code that is not the client's, as long as it takes."""
        if code:
            cell = self._run(code, silent=True)
            try:
                await self._until_ended(cell)
            finally:
                cell.abandon()
            if cell.lost:
                raise Refused(409, "the kernel ended before the cell could begin")

    async def _finish(self, cell, variables):
        """The task of a cell: waits for its end, undoes its variables, and lets the next one run."""
        try:
            await self._until_ended(cell)
            # A kernel that went took them with it.
            if variables and not cell.lost:
                await self._silently(self.language.leave(variables))
        except Refused as refused:
            logger.warning("%s", refused)
        finally:
            self._cells.clear()
            self._tasks = [task for task in self._tasks if task is not asyncio.current_task()]
            self._turn.release()

    async def _until_ended(self, cell):
        while not cell.ended.is_set():
            try:
                await asyncio.wait_for(cell.ended.wait(), ALIVE_SECONDS)
            except asyncio.TimeoutError:
                if self._manager is None or not await self._manager.is_alive():
                    cell.kernel_died("the kernel ended; the next cell gets a new one, without the state of this one")

    def _lose(self, why):
        for cell in list(self._cells.values()):
            cell.kernel_died(why)


class Contexts:
    """All contexts, and which one a language has when no context is named."""

    def __init__(self, home):
        self._home = os.path.abspath(home)
        self._all = {}
        self._defaults = {}
        self._creating = asyncio.Lock()
        self.ready = False
        # Why there is no default kernel.
        self.problem = None

    async def start_default(self):
        """Makes the contexts that are there from the beginning. The Python kernel runs before anybody asks for it."""
        try:
            await (await self.of_language("python")).start()
            if languages.LANGUAGES["javascript"].kernel in KernelSpecManager().find_kernel_specs():
                await self.of_language("javascript")
            self.ready = True
        except Refused as refused:
            logger.error("%s", refused)
            self.problem = str(refused)

    def all(self):
        return list(self._all.values())

    def get(self, id):
        context = self._all.get(id)
        if context is None:
            raise Refused(404, f"Context {id} not found")
        return context

    async def of_language(self, name):
        """The default context of a language, which is made when it is first asked for."""
        language = self._language(name)
        async with self._creating:
            context = self._defaults.get(language.name)
            if context is None:
                context = self._defaults[language.name] = self._add(language, self._home)
        return context

    async def create(self, name, cwd):
        language = self._language(name)
        cwd = os.path.join(self._home, cwd or "")
        if not os.path.isdir(cwd):
            raise Refused(400, f"there is no directory {cwd}")
        if not os.access(cwd, os.X_OK):
            raise Refused(400, f"the directory {cwd} may not be entered by the user whose kernels run here")
        context = self._add(language, os.path.normpath(cwd))
        try:
            await context.start()
        except BaseException:
            self._all.pop(context.id, None)
            raise
        return context

    async def remove(self, id):
        context = self.get(id)
        del self._all[id]
        self._defaults = {name: kept for name, kept in self._defaults.items() if kept is not context}
        await context.close()

    async def close(self):
        contexts, self._all = self.all(), {}
        await asyncio.gather(*(context.close() for context in contexts), return_exceptions=True)

    def _add(self, language, cwd):
        context = Context(language, cwd)
        self._all[context.id] = context
        return context

    @staticmethod
    def _language(name):
        language = languages.named(name) if name else languages.PYTHON
        if language is None:
            raise Refused(400, f"Unknown language '{name}': there are {', '.join(languages.LANGUAGES)}")
        if language.kernel not in KernelSpecManager().find_kernel_specs():
            raise Refused(400, f"{language.name} is not installed in this template: there is no kernel '{language.kernel}'")
        return language
