"""Run in a guest: asks the kernel's RDMA netlink as plainly as can be, and prints its answers as they are, in hex.

Shares nothing with fairlead: what it prints is replayed to fairlead's decoder, beside what the tool `rdma` says of the
same objects.
"""

import json
import socket
import struct
import sys

COMMANDS = {"dev": 1, "qp": 10, "cm_id": 11, "mr": 13, "ctx": 22}


def answers(sock, command, body):
    sock.send(struct.pack("=IHHII", 16 + len(body), (5 << 10) + command, 0x301, 1, 0) + body)
    found = []
    while True:
        data = sock.recv(1 << 17)
        found.append(data.hex())
        at = 0
        while at < len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind in (2, 3):
                return found
            at += (length + 3) & ~3


def main():
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)
    sock.settimeout(5)
    index = struct.pack("=HHI", 8, 1, 0)
    json.dump({n: answers(sock, c, b"" if n == "dev" else index) for n, c in COMMANDS.items()}, sys.stdout)


main()
