"""One end of a measurement between two nodes: writes messages into the other's memory, or lets them be written.

The transport itself is what is installed on the node. The first line says what to do (`role`: serve or drive), every
further word is one line of JSON; a driver reports each interval, and at the end both say what they have seen.
"""

from __future__ import annotations

import importlib
import json
import random
import time

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


def percentile(values: list[float], share: float) -> float:
    """The value below which so large a share lies; 0 of none."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 0.0


class Perf:
    """One end."""

    def __init__(self, channel: Channel, wish: dict[str, Any]) -> None:
        self.channel, self.wish = channel, wish
        self.size, self.depth = int(wish["size"]), int(wish["depth"])
        ours = importlib.import_module("fairlead.fabric.transport.context")
        place = importlib.import_module("fairlead.records.addressbook").Place
        convert = importlib.import_module("msgspec").convert
        self.tape: Any = None
        if wish.get("tape"):
            self.tape = importlib.import_module("fairlead.fabric.transport.tape").Tape(int(wish["tape"]))
        self.context = ours.Context(convert(wish["place"], place), sealed=bool(wish["sealed"]), tape=self.tape)
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

    def drive(self) -> bool:
        """Keep so many messages on their way until the time is over; True if every one arrived."""
        remote, num = self.qp.remote, 0
        posted: dict[int, tuple[int, float]] = {}
        begin = mark = time.monotonic()
        end, interval = begin + float(self.wish["duration_s"]), float(self.wish["interval_s"])
        total = piece = 0
        took: list[float] = []
        all_took: list[float] = []
        free = list(range(self.depth))
        before = self.qp.counters()
        while free or posted:
            now = time.monotonic()
            if now > end + TAIL_S:
                break
            while free and now < end:
                slot = free.pop()
                self.qp.post_write(self.data, remote, wr_id=num, offset=slot * self.size)
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
                took.append((time.monotonic() - since) * 1e6)
                piece += self.size
            now = time.monotonic()
            if now >= mark + interval or not (posted or now < end):
                after = self.qp.counters()
                self.say(
                    "interval",
                    at_s=now - begin,
                    seconds=now - mark,
                    num_bytes=piece,
                    messages=len(took),
                    p50_us=percentile(took, 0.5),
                    p99_us=percentile(took, 0.99),
                    max_us=max(took, default=0.0),
                    resent=after["resent"] - before["resent"],
                    ways=_since(self.qp.packets_sent(), self.sent),
                )
                self.sent = self.qp.packets_sent()
                total, piece, before, mark = total + piece, 0, after, now
                all_took, took = all_took + took, []
        self.say(
            "sum",
            seconds=mark - begin,
            num_bytes=total,
            messages=len(all_took),
            p50_us=percentile(all_took, 0.5),
            p99_us=percentile(all_took, 0.99),
            p999_us=percentile(all_took, 0.999),
            max_us=max(all_took, default=0.0),
            counters=self.qp.counters(),
        )
        return not posted

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
            done = self.drive() if drives else True
            self.say("done", complete=done)
            self.channel.read(LEFT_S)  # both have said so: nobody writes any more
            self.tell()
            slots = [self.memory[i * self.size : (i + 1) * self.size] for i in range(self.depth)]
            written = [slot for slot in slots if any(slot)]
            self.say("seen", messages=len(written), intact=all(slot == self.data for slot in written))
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
