"""An end of `fabric perf` or `fabric trace` that lies: what it says is bounded and typed."""

from __future__ import annotations

import json

import msgspec
import pytest

from fairlead.cli.fabric_ends import MAX_LINES, Ends
from fairlead.cli.fabric_onnode import Perf
from fairlead.cli.fabric_perf import wish_of
from fairlead.cli.fabric_trace import _Taped
from fairlead.cluster.protocol import Line
from fairlead.errors import FabricError
from fairlead.fabric.transport.tape import Taped
from fairlead.records.addressbook import AddressBook, Place, Port

GOOD = msgspec.to_builtins(Taped(5, True, 0, "10.0.0.1", 7, "10.0.0.2", 9, 0, 2, 12, b"x" * 12))


class Says:
    """A group in which n1 says what it is given, without end."""

    ended: dict = {}  # noqa: RUF012

    def __init__(self, said: object) -> None:
        self.text = said if isinstance(said, str) else json.dumps(said)
        self.num = 0

    def send(self, text: str, *, to: str) -> None:
        pass

    def read(self, timeout_s: float) -> Line:
        self.num += 1
        return Line("n1", None, "stdout", self.text)


class Silent:
    """A channel that nothing is said on."""

    def say(self, text: str) -> None:
        raise AssertionError(text)


def ends(kind: type[Ends], tape: int = 0) -> Ends:
    book = AddressBook(places=tuple(Place(node=n, address=f"10.0.0.{i}") for i, n in enumerate(("n0", "n1"), 1)))
    return kind("n0", "n1", book, wish_of(duration=1, interval=1, sizes=[8], depth=1, tape=tape))


@pytest.mark.parametrize(
    "said", ["x", "[" * 100_000, {"say": "interval", "messages": -1}, {"say": "interval"}, {"say": "sum", "size": 9}]
)
def test_who_talks_without_end_is_named(said) -> None:
    group = Says(said)
    run = ends(Ends)
    run._show = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(FabricError, match="n1 talks without end"):
        run.run(group)
    assert group.num <= MAX_LINES + 10
    assert not run.sums


def test_a_tape_is_as_long_as_was_asked_for_and_holds_datagrams_alone() -> None:
    run = ends(_Taped, tape=300)
    with pytest.raises(FabricError, match="talks without end"):
        run.run(Says({"say": "tape", "taped": [GOOD] * 200}))
    assert len(run.tapes["n1"]) == 300
    for bad in (["x"], {}, [*GOOD[:3], "nowhere", *GOOD[4:]], 7):
        with pytest.raises(FabricError, match="no datagram"):
            ends(_Taped, tape=300).run(Says({"say": "tape", "taped": [bad]}))


@pytest.mark.parametrize(("gso", "trim"), [(False, False), (True, False), (False, True)])
def test_an_end_has_the_options_that_were_asked_for(gso: bool, trim: bool) -> None:
    wish = wish_of(duration=1, interval=1, sizes=[8], depth=1, gso=gso, trim=trim)
    own = Place(node="n0", address="::1", ports=(Port(rail="rail 0", address="::1"),))
    end = Perf(Silent(), {**wish, "place": msgspec.to_builtins(own)})
    try:
        assert end.context._sockets.gso is gso
        assert end.context._changes.get("trim", False) is trim
    finally:
        end.context.close()
