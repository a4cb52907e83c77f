from __future__ import annotations

import os
import subprocess
import sys

from fairlead.base.process import start_ticks


def test_a_process_keeps_its_beginning_and_two_differ():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        first = start_ticks(other.pid)
        assert first == start_ticks(other.pid)
        assert first > start_ticks(os.getpid())
        other.communicate(b"\n")
        assert start_ticks(other.pid) is None


def test_a_zombie_and_nothing_at_all_are_gone():
    zombie = os.fork()
    if not zombie:
        os._exit(0)
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    assert start_ticks(zombie) is None
    os.waitpid(zombie, 0)
    assert start_ticks(2**22 + 1) is None
