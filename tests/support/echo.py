"""A program for tests of programs: it does what it is told, one order a line. Python 3.9, standard library."""

from __future__ import annotations

import os
import sys
import time

from fairlead.cluster.channel import Channel, Place


def echo() -> None:
    """Orders: `hold S`, `beat TEXT`, `flood`, `big N`, `exit N`; anything else, and every frame, comes back."""
    channel, place = Channel(), Place()
    name = place.node if place.rank < 0 else "%s/%d" % (place.node, place.rank)  # noqa: UP031
    channel.say(f"{name} up {sys.executable} {' '.join(sys.argv[1:])}")
    while True:
        try:
            message = channel.read()
        except EOFError:
            return
        if isinstance(message, bytes):
            channel.send(message)
            continue
        do, _, rest = (message or "").partition(" ")
        if do == "hold":
            time.sleep(float(rest))
        elif do == "beat":
            channel.beat(rest)
        elif do == "flood":
            while True:
                channel.say("x" * 500)
        elif do == "big":
            channel.send(bytes(int(rest)))
        elif do == "exit":
            os._exit(int(rest))
        else:
            channel.say(f"{name} got {message}")


if __name__ == "__main__":
    echo()
