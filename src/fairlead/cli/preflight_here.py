"""`fairlead preflight --here`: only the node this runs on, for Slurm's prolog, epilog and health program.

It may be asked every few minutes for years, so it leaves a run folder only when it changes something in Slurm: the
reason names that run, and who the machine is must be known when nobody can ask it any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.base.files import write_atomic
from fairlead.cli.output import Answer, session
from fairlead.errors import DiskFull, FairleadError, NotPermitted, SchedulerError
from fairlead.preflight.nodes.here import HereReport, Pace, look_here
from fairlead.preflight.nodes.pace import pace_place
from fairlead.preflight.slurm.act import Acted, act
from fairlead.preflight.slurm.drain import DrainRules
from fairlead.preflight.slurm.identity import save_identity
from fairlead.preflight.slurm.inside import here_spec, within_job
from fairlead.preflight.slurm.scontrol import Control, ask_states, control_here
from fairlead.records.codec import builtins
from fairlead.records.journal import state_place
from fairlead.records.log import ROOT, Events, tell
from fairlead.records.runs import RunFolder
from fairlead.records.verdict import Verdict, exit_of
from fairlead.report.prom import prom_text
from fairlead.report.text import counts_line, findings_text, paint_for
from fairlead.spec.model import Spec

log = logging.getLogger("fairlead.preflight.here")
CONTROL_S = 5.0
"""For one question to Slurm: a job waits for its prolog."""
KEEPS_JOB_AWAY, LETS_JOB_BEGIN = 3, 0


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the flags say."""

    spec: Path | None
    pace: Pace
    rules: DrainRules | None
    yes: bool
    is_prolog: bool
    prom: Path | None
    runs: Path | None


def here(wish: Wish) -> Answer:
    """Look at this node, drain or give it back if told to, and say what a prolog's status must be."""
    node, spec = here_spec(os.environ, wish.spec)
    spec = within_job(spec, os.environ, time.time())
    control = control_here(CONTROL_S)
    found = look_here(node, spec, pace_place(), wish.pace)
    if wish.is_prolog and found.verdict is Verdict.FAIL and not found.is_fresh and not _is_out(control, node):
        # a node that was bad some minutes ago may be mended: no job is sent away on a memory
        found = look_here(node, spec, pace_place(), replace(wish.pace, every_s=0.0, jitter_s=0.0))
    acted = _act(wish, node, spec, found, control)
    status: dict[str, Any] = {}
    if wish.is_prolog:
        is_away = found.verdict is Verdict.FAIL and _is_out(control, node)
        status = {"keeps_jobs_away": is_away}
        tell(log, "keeps the job away" if is_away else "lets the job begin", node=node, verdict=str(found.verdict))
    if wish.prom is not None and found.is_fresh:
        write_atomic(wish.prom, _metrics(spec, found))
    said = [findings_text(found.findings, paint_for(session().stdout))]
    said += [counts_line(found.findings)] if found.is_fresh else []
    age = "" if found.is_fresh else f"   as of {found.age_s:.0f} s ago"
    return Answer(
        schema="fairlead.preflight-here/1",
        verdict=found.verdict,
        text="\n".join(part for part in (*said, acted.text, f"verdict  {found.verdict}{age}") if part),
        body={
            "node": node,
            "findings": found.findings,
            "is_fresh": found.is_fresh,
            "age_s": round(found.age_s, 3),
            "slurm": acted.body,
            **status,
        },
        exit=(KEEPS_JOB_AWAY if status["keeps_jobs_away"] else LETS_JOB_BEGIN) if status else None,
    )


def _is_out(control: Control, node: str) -> bool:
    """Whether Slurm has the node drained, by whomever; where it does not say, the node is not."""
    try:
        was = ask_states(control, node).get(node)
    except SchedulerError:
        return False
    return was is not None and was.is_drained


def _act(wish: Wish, node: str, spec: Spec, found: HereReport, control: Control) -> Acted:
    """Change this node in Slurm, as far as the flags allow; what was only remembered changes nothing."""
    if wish.rules is None or not found.is_fresh:
        return Acted()
    with _kept(wish, spec) as run:
        acted = act(
            found.findings,
            run.run_id,
            control,
            replace(wish.rules, only=node),
            yes=wish.yes,
            save=lambda nodes: run.open(nodes, found),
        )
        run.finish(node, found, acted)
    if acted.note:
        session().note(acted.note)
    return acted


class _Kept:
    """The run folder of a change. A disk that is full or read-only, which may be the fault itself, stops no drain."""

    def __init__(self, wish: Wish, spec: Spec) -> None:
        self.run_id = session().run_id
        self._wish, self._spec = wish, spec
        self._folder: RunFolder | None = None
        self.handler: logging.Handler | None = None

    def open(self, nodes: list[str], found: HereReport) -> None:
        """Claim the folder, and write down who the nodes are, what was read and what was found."""
        from_env = os.environ.get("FAIRLEAD_RUNS") or self._spec.runs.dir
        place = self._wish.runs or (Path(from_env) if from_env else state_place() / "runs")
        with self._tried():
            folder = RunFolder.create(place, "preflight", ["fairlead", *session().argv], self.run_id)
            self.handler = Events(lambda event: folder.append("log.jsonl", builtins(event)))
            ROOT.addHandler(self.handler)
            ROOT.setLevel(logging.DEBUG)
            folder.write_facts(found.facts)
            folder.write("findings.json", found.findings)
            save_identity(folder, nodes, found.facts)
            self._folder = folder

    def finish(self, node: str, found: HereReport, acted: Acted) -> None:
        """Close the folder with what came of it."""
        if self._folder is None:
            return
        with self._tried():
            body = {"nodes": node, "findings": builtins(found.findings), "slurm": acted.body}
            document = {"schema": "fairlead.preflight-here/1", "verdict": str(found.verdict), **body}
            self._folder.finish(document, verdict=str(found.verdict), exit_code=int(exit_of(found.verdict)))
            session().note(f"wrote    {self._folder.path}")

    @contextlib.contextmanager
    def _tried(self) -> Iterator[None]:
        try:
            yield
        except (DiskFull, NotPermitted, FairleadError) as error:
            self._folder = None
            session().note(f"who the node is was not written down: {error}")


@contextlib.contextmanager
def _kept(wish: Wish, spec: Spec) -> Iterator[_Kept]:
    kept = _Kept(wish, spec)
    try:
        yield kept
    finally:
        if kept.handler is not None:
            ROOT.removeHandler(kept.handler)


def _metrics(spec: Spec, found: HereReport) -> str:
    return prom_text(
        found.findings,
        verb="preflight-here",
        cluster=spec.cluster.name,
        verdict=found.verdict,
        finished_s=time.time(),
        took_s={},
    )
