"""Verbs that do one thing each, hung into the real program for tests of the program itself.

They come as any room's do, through a room.py: ROOMS is the place it lies in, one more that fairlead looks in.
As a script this file is `fairlead` with these verbs added: `python verbs.py VERB ...`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import fairlead
from fairlead.base.rooms import Verb
from fairlead.cli.common import Common
from fairlead.cli.output import Answer, session
from fairlead.errors import ClusterError, DiskFull, Problem, SpecError, Unreachable
from fairlead.records.finding import Finding, node
from fairlead.records.verdict import Verdict

ROOMS = str(Path(__file__).with_name("rooms"))


def _answer(verdict: Verdict, **more: Any) -> Answer:
    finding = Finding(code="cli/bug", verdict=verdict, subject=node("n1"), message="it is so")
    return Answer(schema="fairlead.t/1", verdict=verdict, text="said", body={"findings": [finding]}, **more)


def t_pass(*, common: Common = Common()) -> Answer:
    return _answer(Verdict.PASS, hints=["fairlead show last"])


def t_warn(*, common: Common = Common()) -> Answer:
    return _answer(Verdict.WARN)


def t_fail(*, common: Common = Common()) -> Answer:
    return _answer(Verdict.FAIL)


def t_unknown(*, common: Common = Common()) -> Answer:
    return _answer(Verdict.UNKNOWN)


def t_own(*, common: Common = Common()) -> Answer:
    return _answer(Verdict.FAIL, exit=7)


def t_crash(*, common: Common = Common()) -> Answer:
    raise RuntimeError("something nobody thought of: \x1b[31m\udcff")


def t_quit(*, common: Common = Common()) -> Answer:
    sys.exit("a library called exit")


def t_full(*, common: Common = Common()) -> Answer:
    raise DiskFull("disk/full", "no room left to write x", hint="df -h")


def t_away(*, common: Common = Common()) -> Answer:
    raise Unreachable("cluster/no-tool", "no node answers", nodes="n[1-3]")


def t_spec(*, common: Common = Common()) -> Answer:
    file = "cluster.toml"
    problems = [
        Problem(
            "spec/unknown-key", "unknown key `planse`", "cluster.toml", 14, 1, 6, "planse = 8", "did you mean `planes`?"
        ),
        Problem("spec/missing-key", "[cluster] lacks `name`", file),
    ]
    raise SpecError(problems, hint="fairlead check")


def t_cluster(*, common: Common = Common()) -> Answer:
    raise ClusterError("cluster/path", "no", nodes="n1")


def t_bad_body(*, common: Common = Common()) -> Answer:
    return Answer(schema="fairlead.t/1", text="", body={"x": object()})


def t_folder(*, common: Common = Common()) -> Answer:
    folder = session().open_folder(common.runs, keep=3)
    folder.write("spec.toml", "x = 1\n")
    return _answer(Verdict.PASS)


def t_wait(seconds: float = 30.0, *, common: Common = Common()) -> Answer:
    """Open a folder, say so, and wait to be stopped."""
    folder = session().open_folder(common.runs)
    session().note(f"ready {folder.path}")
    time.sleep(seconds)
    return _answer(Verdict.PASS)


def t_deaf(*, common: Common = Common()) -> Answer:
    """Take long over cleaning up."""
    try:
        session().note("ready")
        time.sleep(30)
    finally:
        session().note("cleaning")
        time.sleep(30)
    return _answer(Verdict.PASS)


def t_progress(steps: int = 5, *, common: Common = Common()) -> Answer:
    for done in range(steps + 1):
        session().progress("pairs", done, steps, "slowest n2\x1b[31m " + "x" * 300)
    session().note("half time")
    session().progress("ranks", 0, 2)
    return _answer(Verdict.PASS)


def t_log(*, common: Common = Common()) -> Answer:
    import logging

    session().open_folder(common.runs)
    logging.getLogger("fairlead.t").info("done %s", 1)
    return _answer(Verdict.PASS)


VERBS = tuple(
    Verb(name.replace("_", "-"), f"support.verbs:{name}", "A verb of the tests.")
    for name in sorted(globals())
    if name.startswith("t_")
)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    fairlead.__path__.append(ROOMS)
    from fairlead.cli.app import main

    main()
