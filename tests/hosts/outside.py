#!/usr/bin/env python3
"""A DNS server on UDP for the names of a world outside. outside.py ADDRESS NAME=ADDRESS…

Answers `A` for the names it was given, and says that all others do not exist.
"""

import socket
import struct
import sys

NAMES = dict(argument.split("=") for argument in sys.argv[2:])
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 53))
while True:
    question, client = server.recvfrom(512)
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    kind = struct.unpack(">H", question[at + 1 : at + 3])[0]
    address = NAMES.get(".".join(labels).lower())
    record = b""
    if address and kind == 1:
        record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(address)
    head = question[:2] + struct.pack(">HHHHH", 0x8180 if address else 0x8183, 1, bool(record), 0, 0)
    server.sendto(head + question[12 : at + 5] + record, client)
