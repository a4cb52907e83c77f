"""Which stages there are, in which order, what each needs and what it calls: pure.

A stage is a verb of its own room, called as a user would: whoever wants it alone types the line that the report shows.
Only `preflight` is called as a function, as its report is that of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from fairlead.base.shown import shown
from fairlead.bringup.table import Bringup
from fairlead.errors import UsageError
from fairlead.records.verdict import Verdict

Document = dict[str, Any]
"""What a verb prints with --json."""
GOOD = (Verdict.PASS, Verdict.WARN)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the verbs are told."""

    spec: str
    """The cluster file, as this run has it."""
    folder: str
    """The run folder."""
    said: Bringup
    """`[bringup]`, in a lab with what was made there filled in."""
    goes_on: bool = False
    """Whether the training run has begun already."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage."""

    name: str
    after: tuple[str, ...] = ()
    """Stages that must not have ended badly."""
    key: str = ""
    """Of `[bringup]`, which must say what it works with."""
    calls: Callable[[Wanted], Sequence[Sequence[str]]] = lambda _: ()
    """The verbs, one after the other, without `fairlead`."""
    headline: Callable[[Sequence[Document]], str] = lambda _: ""
    """One sentence on what they answered."""


def _weights(wanted: Wanted) -> list[list[str]]:
    return [["weights", "spread", wanted.said.weights, wanted.said.dest, "-f", wanted.spec]]


def _train(wanted: Wanted) -> list[list[str]]:
    verb = "resume" if wanted.goes_on else "run"
    return [["train", verb, wanted.said.train, "--steps", str(wanted.said.steps), "-f", wanted.spec]]


def _serve(wanted: Wanted) -> list[list[str]]:
    options = ["--", *wanted.said.engine] if wanted.said.engine else []
    words = ["serve", "run", wanted.said.model, "--port", "0", "--ask", wanted.said.ask, "-f", wanted.spec]
    return [[*words, *options]]


def _logs(wanted: Wanted) -> list[list[str]]:
    store = ["--store", f"{wanted.folder}/logs"]
    asked = "Logs | summarize Lines = count() by SourceTable | order by Lines desc"
    return [["logs", "import", wanted.folder, *store], ["logs", "query", asked, *store]]


_SHOWN = 40
"""Characters of an answer, in a line; its log has all of it."""


def _spread(documents: Sequence[Document]) -> str:
    found = [f["message"] for f in documents[-1].get("findings", []) if f["code"] == "weights/spread"]
    return str(found[0]) if found else ""


def _trained(documents: Sequence[Document]) -> str:
    last = documents[-1]
    loss = last.get("last", {}).get("loss")
    return f"{last.get('steps')} of {last.get('of')} steps" + (f", loss {loss:.4f}" if loss is not None else "")


def _answered(documents: Sequence[Document]) -> str:
    reply = " ".join(str(documents[-1].get("reply")).split()).replace(
        "\ufffd", "·"
    )  # random weights end in half characters
    said = shown(reply[:_SHOWN]) + (" ..." if len(reply) > _SHOWN else "")
    return f"{documents[-1].get('engine')} answered `{said}`"


def _read(documents: Sequence[Document]) -> str:
    rows = documents[-1].get("rows", [])
    tables = ", ".join(f"{name} {num:,}" for name, num in rows[:3])
    return f"{documents[0].get('records', 0):,} lines collected" + (f": {tables}" if tables else "")


STAGES = (
    Stage(name="audit", calls=lambda wanted: [["audit", "-f", wanted.spec]]),
    Stage(name="preflight"),
    Stage(name="weights", after=("preflight",), key="weights", calls=_weights, headline=_spread),
    Stage(name="train", after=("preflight",), key="train", calls=_train, headline=_trained),
    Stage(name="serve", after=("preflight",), key="model", calls=_serve, headline=_answered),
    Stage(name="logs", calls=_logs, headline=_read),
)
NAMES = tuple(stage.name for stage in STAGES)


def chosen(*, start: str = "", only: Collection[str] = (), passed: Collection[str] = ()) -> tuple[Stage, ...]:
    """The stages to run, in their order. Raises UsageError for a name that none has.

    >>> [stage.name for stage in chosen(start="train")]
    ['train', 'serve', 'logs']
    >>> [stage.name for stage in chosen(only=["logs", "audit"])]
    ['audit', 'logs']
    >>> [stage.name for stage in chosen(passed=["audit", "preflight"])]
    ['weights', 'train', 'serve', 'logs']
    """
    for name in (*only, *([start] if start else [])):
        if name not in NAMES:
            raise UsageError("cli/usage", f"no stage is called {name!a}", hint=f"one of {', '.join(NAMES)}")
    if only and start:
        raise UsageError("cli/usage", "--from and --only exclude each other", hint="fairlead bringup --help")
    first = NAMES.index(start) if start else 0
    return tuple(s for s in STAGES[first:] if (not only or s.name in only) and s.name not in passed)


def why_not(stage: Stage, ended: Mapping[str, Verdict], said: Bringup) -> str:
    """Why a stage is left out; empty where it is not. `ended` has the stages that were run."""
    for name in stage.after:
        if name in ended and ended[name] not in GOOD:
            return f"left out: {name} ended with {ended[name]}"
    if stage.key and not getattr(said, stage.key):
        return f"left out: bringup.{stage.key} names nothing to work with"
    return ""
