"""Prints a manual page made from the program's own help: manpage.py PROGRAM."""

import datetime
import os
import re
import subprocess
import sys


def help_of(program, *command):
    asked = [program, *command, "--help"]
    environment = {"PATH": os.environ["PATH"], "COLUMNS": "100", "HOME": "/nonexistent"}
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, env=environment, check=True)
    # The options of all commands are printed once, with the program's own.
    return done.stdout if not command else done.stdout.split("\nGlobal options:")[0].rstrip() + "\n"


def commands(text):
    # All groups of commands stand before the options.
    listed = text.split("\nOptions:\n", 1)[0]
    return re.findall(r"^  ([a-z][a-z-]*) ", listed, re.MULTILINE)


def roff(text):
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def verbatim(text):
    return f".nf\n{roff(text.rstrip())}\n.fi\n"


def main(program):
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    when = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    general = help_of(program)
    about, rest = general.split("\n", 1)
    out = [f'.TH ATOLL 1 "{when:%Y-%m-%d}" "{roff(told)}" "Atoll"', ".SH NAME", roff(f"atoll - {about}")]
    out += [".SH SYNOPSIS", "\\fBatoll\\fR [\\fIoptions\\fR] \\fIcommand\\fR", ".SH DESCRIPTION", verbatim(rest)]
    out.append(".SH COMMANDS")
    for command in commands(general):
        out += [f".SS atoll {roff(command)}", verbatim(help_of(program, command))]
    out += [".SH FILES", ".TP", ".I /etc/default/atoll", "Options of the service.", ".TP", ".I /etc/atoll/client.toml"]
    out.append("Where the service is, and a key for members of the group atoll.")
    out += [".TP", ".I /var/lib/atoll", "What the service keeps."]
    print("\n".join(out))


main(sys.argv[1])
