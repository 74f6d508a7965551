"""Puts the program into the wheel, where ATOLL_WHEEL_PROGRAM names it: then the wheel is for the platform
ATOLL_WHEEL_TAG, and `pip install` makes the command `atoll`."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Program(BuildHookInterface):
    def initialize(self, version, build_data):
        program = os.environ.get("ATOLL_WHEEL_PROGRAM")
        if program and self.target_name == "wheel":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{os.environ['ATOLL_WHEEL_TAG']}"
            build_data["shared_scripts"][program] = "atoll"
