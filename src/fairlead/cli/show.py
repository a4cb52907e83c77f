"""`fairlead show`, `rejudge` and `diff`: earlier runs, read again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fairlead.base.files import write_atomic
from fairlead.base.rooms import load
from fairlead.base.table import table
from fairlead.base.trust import PRIVATE_FILE
from fairlead.cli.common import Common
from fairlead.cli.output import Answer, Session, session
from fairlead.cli.verbs import verbs
from fairlead.errors import RunError
from fairlead.records.finding import Finding, verdict_of
from fairlead.records.history import PastRun, past_runs
from fairlead.records.redact import Redactor, pack
from fairlead.records.runs import Run, find_run, is_running, list_runs
from fairlead.report.text import Paint, counts_line, findings_text, paint_for


def show(
    run: str | None = None,
    *,
    all_: Annotated[bool, Parameter(name=("--all", "-a"), negative=())] = False,
    redact: Annotated[bool, Parameter(negative=())] = False,
    pack_to: Annotated[Path | None, Parameter(name="--pack")] = None,
    common: Common = Common(),
) -> Answer:
    """List earlier runs, or show one again.

    Parameters
    ----------
    run
        A run's name, its last four digits, `last`, or a path. Without one, the runs are listed.
    all_
        List runs whose folder is gone, too, with what was not well in them.
    redact
        Replace node names, addresses, ids, users and homes by stand-ins, the same stand-in for the same name, and take
        out secrets: what a name promises (`HF_TOKEN=`, `--password`) and what has the form its maker gives it.
    pack_to
        Write the whole run folder to this .tar.gz, redacted if `--redact` is given: what a bug report needs. Links in
        the folder are left out.
    """
    place = Session.runs_place(common.runs)
    if run is None:
        return _listing(place, with_gone=all_)
    found = find_run(run, place)
    redactor = Redactor.for_run(found) if redact else None
    if pack_to is not None:
        write_atomic(pack_to, pack(found.path, redactor), mode=PRIVATE_FILE)
        session().note(f"packed {found.path.name} into {pack_to}")
    document = found.result()
    findings = found.findings()
    verdict = found.verdict
    text = _page(found, document, findings, paint_for(session().stdout))
    if redactor:
        document, text = redactor.tree(document), redactor.text(text)
    return Answer(schema="fairlead.show/1", verdict=verdict, text=text, body={"shown": document}, exit=0)


def rejudge(run: str, *, common: Common = Common()) -> Answer:
    """Judge an earlier run's facts by today's rules; the run itself is not changed.

    Parameters
    ----------
    run
        A run's name, its last four digits, `last`, or a path.
    """
    found = find_run(run, Session.runs_place(common.runs))
    now = _judged(found)
    before = [f for f in found.findings() if f.code in {n.code for n in now}]
    changes = _changes(before, now)
    verdict = verdict_of(now)
    parts = [
        findings_text(now, paint_for(session().stdout)),
        counts_line(now),
        _changes_text(changes),
        f"verdict  {verdict}",
    ]
    return Answer(
        schema="fairlead.rejudge/1",
        verdict=verdict,
        text="\n".join(p for p in parts if p),
        body={"judged": found.info.id, "judged_by": found.info.version, "findings": now, "changes": changes},
    )


def diff(old: str, new: str, *, common: Common = Common()) -> Answer:
    """What changed between two runs: findings that came, went or turned.

    Parameters
    ----------
    old
        The earlier run.
    new
        The later run.
    """
    place = Session.runs_place(common.runs)
    first, second = find_run(old, place), find_run(new, place)
    changes = _changes(first.findings(), second.findings())
    head = f"{first.info.id} ({first.info.verdict}) -> {second.info.id} ({second.info.verdict})"
    body = {"old": first.info, "new": second.info, "changes": changes}
    return Answer(schema="fairlead.diff/1", text=f"{head}\n{_changes_text(changes) or 'no finding changed'}", body=body)


def _judged(run: Run) -> list[Finding]:
    """Today's findings over everything an earlier run read."""
    own = next((v.rejudge for v in verbs() if v.name == run.info.verb and v.rejudge), "")
    found: list[Finding] | None = load(own)(run) if own else None
    if found is not None:
        return found
    facts = run.facts()
    if not facts:
        raise RunError(
            "run/no-facts", f"{run.path.name} holds no facts to judge", hint="choose a run of: fairlead probe"
        )
    from fairlead.checks import judge
    from fairlead.spec.loader import load as load_spec

    return judge(facts, load_spec(run.path / "spec.toml"))


def _listing(place: Path, *, with_gone: bool) -> Answer:
    rows, infos = [], []
    there = list_runs(place)
    for path in reversed(there):
        try:
            info = Run(path).info
        except RunError:
            rows.append((path.name, "", "damaged", "", ""))
            continue
        infos.append(info)
        state = info.verdict or ("running" if is_running(path) else "cut short")
        rows.append((info.id, info.verb, state, info.start, info.version))
    gone = [past for past in past_runs(place) if place / past.run.id not in there] if with_gone else []
    rows += [(p.run.id, p.run.verb, p.run.verdict, p.run.start, f"{p.run.version}, {_gone(p)}") for p in reversed(gone)]
    text = table(["RUN", "VERB", "VERDICT", "START", "VERSION"], rows) if rows else f"no runs in {place}"
    return Answer(schema="fairlead.runs/1", text=text, body={"place": str(place), "runs": infos, "gone": gone})


def _gone(past: PastRun) -> str:
    """What the history keeps of a run whose folder is gone."""
    codes = [f"{code} on {nodes}" if nodes else code for said in past.said.values() for code, nodes in said.items()]
    return "; ".join(["folder gone", *codes[:3], *(["..."] if len(codes) > 3 else [])])


def _page(run: Run, document: dict[str, Any], findings: list[Finding], paint: Paint) -> str:
    info = run.info
    head = [
        f"run      {info.id}   {info.verb}   fairlead {info.version} on {info.host}",
        f"command  {' '.join(info.argv)}",
        f"time     {info.start} to {info.end}",
    ]
    if isinstance(problem := document.get("error"), dict):
        head.append(f"error    {problem.get('message', '')}")
    if findings:
        head += [findings_text(findings, paint), counts_line(findings)]
    return "\n".join(p for p in [*head, f"verdict  {run.verdict}"] if p)


def _changes(before: list[Finding], now: list[Finding]) -> list[dict[str, str]]:
    """Findings keyed by what they are about, where the verdict differs or one side is missing."""

    def key(f: Finding) -> tuple[str, str, str]:
        return (f.code, f.subject.kind, str(f.subject))

    old, new = {key(f): f for f in before}, {key(f): f for f in now}
    out = []
    for k in sorted(old.keys() | new.keys()):
        was, is_now = old.get(k), new.get(k)
        if was is None or is_now is None or was.verdict is not is_now.verdict:
            said = is_now or was
            assert said is not None
            out.append(
                {
                    "code": k[0],
                    "subject": k[2],
                    "was": str(was.verdict) if was else "",
                    "now": str(is_now.verdict) if is_now else "",
                    "message": said.message,
                }
            )
    return out


def _changes_text(changes: list[dict[str, str]]) -> str:
    rows = [(c["was"] or "-", c["now"] or "-", c["subject"], c["code"], c["message"]) for c in changes]
    return table(["WAS", "NOW", "SUBJECT", "CODE", "MESSAGE"], rows) if rows else ""
