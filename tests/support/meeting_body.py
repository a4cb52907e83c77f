"""Meets the others as every body does, sums the ranks' numbers, and on the way does what a test wants of one rank.

late      {rank: seconds} before it comes to the rendezvous
hold      {rank: seconds} inside the group's making, holding Python's lock, as a library may
absent    ranks that never come to the rendezvous
stop      ranks that stop themselves once the group stands
hang      ranks that never begin the sum, while they and the others go on beating
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from fairlead.launch.onnode.me import Me
from fairlead.launch.onnode.meet import RankGroup


def body(me: Me) -> int:
    """Join, add up, leave."""
    want, mine = me.settings, str(me.rank)
    group = RankGroup(me)
    if me.rank in want.get("absent", []):
        me.enter("rendezvous")
        time.sleep(3600)
    time.sleep(want.get("late", {}).get(mine, 0))
    make, hold_s = group.dist.init_process_group, want.get("hold", {}).get(mine, 0)

    def slow(*args: object, **more: object) -> None:
        if hold_s:
            ctypes.PyDLL(None).usleep(int(hold_s * 1e6))  # nothing else of this process runs meanwhile
        make(*args, **more)

    group.dist.init_process_group = slow
    group.join()
    if me.rank in want.get("stop", []):
        os.kill(os.getpid(), signal.SIGSTOP)
    me.enter("sum")
    if me.rank in want.get("hang", []):
        time.sleep(3600)
    total = group.torch.tensor([float(me.rank)])
    group.dist.all_reduce(total)
    me.say("sum", value=float(total), listens=listening(os.getpid()))
    group.leave()
    return 0


def listening(pid: int) -> list[str]:
    """Addresses at which this process listens, as the kernel writes them."""
    links = [os.path.join(f"/proc/{pid}/fd", fd) for fd in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH118, PTH208
    mine = set()
    for link in links:
        try:
            mine.add(os.readlink(link))  # noqa: PTH115
        except OSError:
            continue
    found = []
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as file:  # noqa: PTH123
            for line in file.read().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in mine:
                    found.append(words[1].partition(":")[0])
    return found
