"""One end of a measurement between two nodes: writes messages into the other's memory, or lets them be written.

The transport itself is what is installed on the node. The first line says what to do (`role`: serve or drive), every
further word is one line of JSON; a driver reports each interval, and at the end both say what they have seen.
"""

from __future__ import annotations

import importlib
import json
import random
import time

from fairlead.cli.fabric_times import Times
from fairlead.cluster.channel import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MEETING_S = 30.0
TAIL_S = 10.0
"""For what is under way when the time is over."""
LEFT_S = 60.0
"""For the other end's last word."""
SEED = 7
PATH_COUNTS = 64
MAX_WAYS = 512
TAPED_A_LINE = 200


def pattern(size: int) -> bytes:
    """What every message holds."""
    return random.Random(SEED).randbytes(size)  # noqa: S311 - a pattern


def _told(took: Times) -> dict[str, float]:
    """Durations as a line tells them, us."""
    return {
        "messages": took.count,
        "min_us": took.lowest if took.count else 0.0,
        "mean_us": took.mean,
        "stdev_us": took.deviation,
        "p50_us": took.percentile(0.5),
        "p99_us": took.percentile(0.99),
        "p999_us": took.percentile(0.999),
        "max_us": took.highest,
    }


class Perf:
    """One end."""

    def __init__(self, channel: Channel, wish: dict[str, Any]) -> None:
        self.channel, self.wish = channel, wish
        self.size, self.depth = max(wish["sizes"]), int(wish["depth"])
        self.begin = 0.0
        ours = importlib.import_module("fairlead.fabric.transport.context")
        place = importlib.import_module("fairlead.records.addressbook").Place
        convert = importlib.import_module("msgspec").convert
        self.tape: Any = None
        if wish.get("tape"):
            self.tape = importlib.import_module("fairlead.fabric.transport.tape").Tape(int(wish["tape"]))
        options = {"sealed": bool(wish["sealed"]), "gso": bool(wish.get("gso")), "tape": self.tape}
        options |= {"trim": True} if wish.get("trim") else {}
        self.context = ours.Context(convert(wish["place"], place), **options)
        self.queue = self.context.completion_queue(4 * self.depth + 16)
        self.memory = bytearray(max(self.size * self.depth, 1))
        self.private = ours.remote_of(self.context.register(self.memory))
        self.data = pattern(self.size)
        self.qp: Any = None
        self.sent: dict[str, int] = {}

    def say(self, what: str, **said: object) -> None:
        """One line for whoever asked."""
        self.channel.say(json.dumps({"say": what, **said}))

    def meet(self) -> None:
        """Connect to the other end."""
        token = bytes.fromhex(self.wish["token"])
        if self.wish["role"] == "serve":
            with self.context.listen(self.wish["address"], token) as listener:
                self.say("port", port=listener.port)
                self.qp = listener.accept(self.queue, self.queue, private=self.private, limit_s=MEETING_S)
        else:
            port = int(json.loads(self.channel.read(MEETING_S) or "{}")["port"])
            self.qp = self.context.connect(
                self.wish["address"], port, token, self.queue, self.queue, private=self.private, limit_s=MEETING_S
            )
        self.say("met", planes=self.qp.profile.planes, mtu=self.qp.profile.mtu)

    def drive(self, size: int, seconds: float) -> bool:
        """Keep so many messages of a size on their way until the time is over; True if every one arrived."""
        remote, num, data = self.qp.remote, 0, memoryview(self.data)[:size]
        posted: dict[int, tuple[int, float]] = {}
        begin = mark = time.monotonic()
        end, interval = begin + seconds, float(self.wish["interval_s"])
        total = piece = 0
        peak = 0.0
        took, all_took = Times(), Times()
        free = list(range(self.depth))
        before = self.qp.counters()
        while free or posted:
            now = time.monotonic()
            if now > end + TAIL_S:
                break
            while free and now < end:
                slot = free.pop()
                self.qp.post_write(data, remote, wr_id=num, offset=slot * self.size)
                posted[num] = (slot, time.monotonic())
                num += 1
            if not posted:
                break
            for done in self.queue.wait(max(min(mark + interval - now, interval), 0.001), 4 * self.depth):
                slot, since = posted.pop(done.wr_id)
                if done.status.name != "SUCCESS":
                    self.say("failed", why=done.status.value, error=str(self.qp.error or ""))
                    return False
                free.append(slot)
                us = (time.monotonic() - since) * 1e6
                took.add(us)
                all_took.add(us)
                piece += size
            now = time.monotonic()
            if now >= mark + interval or not (posted or now < end):
                after = self.qp.counters()
                self.say(
                    "interval",
                    size=size,
                    at_s=now - self.begin,
                    seconds=now - mark,
                    num_bytes=piece,
                    resent=after["resent"] - before["resent"],
                    ways=_since(self.qp.packets_sent(), self.sent),
                    **_told(took),
                )
                self.sent = self.qp.packets_sent()
                if now - mark >= interval / 2 or not peak:
                    peak = max(peak, 8 * piece / (now - mark))
                total, piece, before, mark, took = total + piece, 0, after, now, Times()
        self.say(
            "sum",
            size=size,
            seconds=mark - begin,
            num_bytes=total,
            peak_bps=peak,
            histogram=all_took.histogram(),
            counters=self.qp.counters(),
            **_told(all_took),
        )
        return not posted

    def is_intact(self, slot: bytearray) -> bool:
        """Whether a place holds a message of one of the sizes, and nothing behind it."""
        return any(
            slot[:size] == self.data[:size] and slot.count(0, size) == len(slot) - size for size in self.wish["sizes"]
        )

    def tell(self) -> None:
        """What was counted, and what was taped."""
        taped = list(self.tape.taped) if self.tape else []  # first, so that nothing is taped that is not counted
        ways = [[*way, num] for way, num in self.qp.packets_by_way().items()]
        counters = {"qp": self.qp.qp_num, "counters": self.qp.counters(), "datagrams": self.context.counters()}
        self.say("metrics", by_way=ways[:MAX_WAYS], **counters)
        if self.tape is None:
            return
        builtins = importlib.import_module("msgspec").to_builtins
        for begin in range(0, len(taped), TAPED_A_LINE):
            self.say("tape", taped=[builtins(one) for one in taped[begin : begin + TAPED_A_LINE]])
        self.say("taped", left_out=self.tape.num_left_out)

    def run(self) -> None:
        """Meet, work, compare, part."""
        try:
            self.meet()
            drives = self.wish["role"] == "drive" or self.wish["both"]
            sizes, self.begin = self.wish["sizes"], time.monotonic()
            each_s = float(self.wish["duration_s"]) / len(sizes)
            done = all(self.drive(int(size), each_s) for size in sizes) if drives else True
            self.say("done", complete=done)
            self.channel.read(LEFT_S)  # both have said so: nobody writes any more
            self.tell()
            slots = [self.memory[i * self.size : (i + 1) * self.size] for i in range(self.depth)]
            written = [slot for slot in slots if any(slot)]
            self.say("seen", messages=len(written), intact=all(map(self.is_intact, written)))
            self.channel.read(LEFT_S)  # the other one has compared, too
        except Exception as error:
            self.say("failed", why=type(error).__name__, error=str(error))
            raise
        finally:
            self.context.close()


def _since(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """Packets by way since then."""
    ways = {way: num - before.get(way, 0) for way, num in now.items()}
    return dict(sorted(ways.items())[:PATH_COUNTS])


def main() -> None:
    """Read the wish and carry it out."""
    channel = Channel()
    wish = json.loads(channel.read() or "{}")
    try:
        end = Perf(channel, wish)
    except ImportError as error:
        channel.say(json.dumps({"say": "missing", "why": str(error)}))
        return
    except Exception as error:  # noqa: BLE001 - said, for the other side to explain
        channel.say(json.dumps({"say": "failed", "why": type(error).__name__, "error": str(error)}))
        return
    end.run()
