"""Runs a command as a user at a terminal would: attended.py follow|terminal|answer COMMAND…

`follow`: shows the first output of the command; then interrupts it, as with ctrl-c, unless it has ended.
`terminal`: runs the command on a terminal; at its first output sends the keys that detach from it.
`answer`: runs the command on a terminal; answers its question with a line.
"""

import os
import pty
import signal
import subprocess
import sys

DETACH = b"\x10\x11"  # ctrl-p, ctrl-q


def follow(command):
    # A shell's command in the background ignores the interrupt, and so does what it starts.
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=heed)
    text = os.read(process.stdout.fileno(), 1 << 16)
    os.write(1, text)
    # A command that had to be interrupted counts as a success if it wrote something.
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
        except OSError:  # reading a terminal whose program has ended fails
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
