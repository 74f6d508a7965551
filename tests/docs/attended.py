"""Runs a command as a person would who looks at it: attended.py follow|terminal|answer COMMAND…

`follow`: until it ends or has written something, which is shown; then it is interrupted, as with ctrl-c.
`terminal`: on a terminal, until something is there; then come the keys that detach from it.
`answer`: on a terminal, where its question is answered with a line.
"""

import os
import pty
import signal
import subprocess
import sys

DETACH = b"\x10\x11"  # ctrl-p, ctrl-q


def follow(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = os.read(process.stdout.fileno(), 1 << 16)
    os.write(1, text)
    # Whoever ends a command does not look at its exit code, unless there was nothing to see.
    try:
        code = process.wait(1)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        code = 0
    return code if code or text else 1


def terminal(command, keys=DETACH):
    child, file = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    pressed = False
    while True:
        try:
            text = os.read(file, 1 << 16)
        except OSError:  # what a terminal answers whose program is gone
            break
        if not text:
            break
        os.write(1, text)
        if not pressed:
            os.write(file, keys)
            pressed = True
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def answer(command):
    return terminal(command, b"the value of a page\n")


sys.exit({"follow": follow, "terminal": terminal, "answer": answer}[sys.argv[1]](sys.argv[2:]))
