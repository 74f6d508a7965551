"""A name server that answers 127.0.0.1 for one domain and every name below it.

tests/e2b/resolver.py ADDRESS DOMAIN: listens on port 53 of ADDRESS, which should be one of loopback, and says so.
"""

import socket
import sys

NO_SUCH_NAME, A = 3, 1


def question(packet):
    """Returns the name of a query, the type of record, and the offset at which the question ends."""
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    return ".".join(labels).lower(), int.from_bytes(packet[at + 1 : at + 3], "big"), at + 5


def answer(packet, domain):
    name, kind, end = question(packet)
    ours = name == domain or name.endswith("." + domain)
    found = ours and kind == A
    flags = (0x8180 if ours else 0x8180 | NO_SUCH_NAME).to_bytes(2, "big")
    head = packet[:2] + flags + b"\0\1" + (b"\0\1" if found else b"\0\0") + b"\0\0\0\0"
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x7f\0\0\1" if found else b""
    return head + packet[12:end] + record


def main(address, domain):
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind((address, 53))
    print("ready", flush=True)
    while True:
        packet, client = listener.recvfrom(512)
        listener.sendto(answer(packet, domain), client)


main(*sys.argv[1:])
