"""Computers for AI agents, on your own machine: the Python SDK of Atoll.

>>> from atoll import Atoll
>>> client = Atoll()  # ATOLL_URL, ATOLL_API_KEY
>>> with client.sandboxes.create() as sandbox:
...     print(sandbox.run("uname -s").stdout)
Linux
<BLANKLINE>
"""

from __future__ import annotations

from . import errors, params, types
from ._async.client import AsyncAtoll
from ._async.code import AsyncCell, AsyncContext
from ._async.pager import AsyncPage, AsyncPager
from ._async.process import AsyncProcess
from ._async.sandbox import AsyncSandbox
from ._async.terminal import AsyncTerminal
from ._sync.client import Atoll
from ._sync.code import Cell, Context
from ._sync.pager import Page, Pager
from ._sync.process import Process
from ._sync.sandbox import Sandbox
from ._sync.terminal import Terminal
from ._version import VERSION as __version__
from .cells import CodeError, CodeOutput, CodeResult
from .errors import AtollError, CodeFailed, CommandFailed
from .network import Network, UseSecret
from .results import Ended, Gap, Output, Result

__all__ = [
    "AsyncAtoll",
    "AsyncCell",
    "AsyncContext",
    "AsyncPage",
    "AsyncPager",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncTerminal",
    "Atoll",
    "AtollError",
    "Cell",
    "CodeError",
    "CodeFailed",
    "CodeOutput",
    "CodeResult",
    "CommandFailed",
    "Context",
    "Ended",
    "Gap",
    "Network",
    "Output",
    "Page",
    "Pager",
    "Process",
    "Result",
    "Sandbox",
    "Terminal",
    "UseSecret",
    "__version__",
    "errors",
    "params",
    "types",
]
