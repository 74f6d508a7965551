"""Starts the server: python -m code_interpreter [--port PORT] [--home DIR]."""

import argparse
import logging
import os

from aiohttp import web

from .app import make_app

PORT = 49999


def main():
    parser = argparse.ArgumentParser(prog="code_interpreter", description=__doc__)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--home", default=os.path.expanduser("~"), help="where contexts begin that name no directory")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # A handler whose client went away is cancelled: that is how a cell learns that nobody waits for it any more.
    web.run_app(
        make_app(arguments.home),
        port=arguments.port,
        handler_cancellation=True,
        access_log=None,
        print=None,
        shutdown_timeout=1.0,
    )


if __name__ == "__main__":
    main()
