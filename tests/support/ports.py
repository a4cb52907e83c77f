"""Ports of the loopback for a test's servers, apart from those of tests that run at the same time.

The kernel gives ports from 32768 up to whoever asks for any; these lie below. Who has a block of them holds an abstract
socket of its name, which belongs to the network namespace as ports do, and ends with its process.
"""

from __future__ import annotations

import contextlib
import socket

BLOCK = 16
_FIRSTS = range(20000, 32000, BLOCK)


class Ports:
    """Sixteen ports in a row that nobody listens on: `first` and the next ones, until closed."""

    def __init__(self) -> None:
        for first in _FIRSTS:
            self._claim = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(OSError):
                self._claim.bind(f"\0fairlead-test-ports-{first}")
                if all(_is_free(port) for port in range(first, first + BLOCK)):
                    self.first = first
                    return
            self._claim.close()
        raise OSError("no run of free ports")

    def close(self) -> None:
        """Let others have them."""
        self._claim.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
