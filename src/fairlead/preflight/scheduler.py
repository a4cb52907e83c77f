"""What Slurm itself says of the nodes: their states, the reasons for them, and the GPUs it believes in.

Reads `scontrol show node -o`, which every version prints alike, and judges it. Knows nothing of how scontrol is
reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from fairlead.preflight.reason import bare, is_ours
from fairlead.records.finding import Evidence, Finding, node
from fairlead.records.verdict import Verdict

SHOW = ("scontrol", "show", "node", "-o")
_BAD_STATES = frozenset(
    ("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "INVAL", "INVALID_REG", "NOT_RESPONDING", "UNKNOWN",
     "POWERED_DOWN", "POWERING_DOWN", "ERROR")
)  # fmt: skip
_NO_ANSWER = "*"


class SlurmNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node in Slurm's words."""

    name: str
    states: tuple[str, ...]
    """`IDLE`, `DRAIN`, ...; NOT_RESPONDING stands for Slurm's asterisk."""
    reason: str = ""
    gpus: int | None = None
    """Configured GPUs; None where Slurm knows no such resource on any node."""
    cpus: int = 0

    @property
    def bad_states(self) -> list[str]:
        """States in which Slurm gives the node no new work."""
        return sorted(set(self.states) & _BAD_STATES)


def parse(text: str) -> dict[str, SlurmNode]:
    """Node name -> what `scontrol show node -o` says of it; lines that are no node are left out."""
    found = {}
    for line in text.splitlines():
        fields = _fields(line)
        if "NodeName" not in fields:
            continue
        raw = fields.get("State", "UNKNOWN")
        states = [s.rstrip("*~#$@+-^%!") for s in raw.split("+")]
        if _NO_ANSWER in raw:
            states.append("NOT_RESPONDING")
        gres = fields.get("Gres", "")
        found[fields["NodeName"]] = SlurmNode(
            name=fields["NodeName"],
            states=tuple(s for s in states if s),
            reason=fields.get("Reason", ""),
            gpus=sum(int(n) for n in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres)),
            cpus=int(fields.get("CPUTot", "0") or 0),
        )
    if not any(n.gpus for n in found.values()):
        return {name: msgspec.structs.replace(n, gpus=None) for name, n in found.items()}
    return found


def _fields(line: str) -> dict[str, str]:
    """`Key=value` pairs; only the value of Reason, which comes last, may hold blanks."""
    head, _, reason = line.partition(" Reason=")
    fields = dict(word.partition("=")[::2] for word in head.split() if "=" in word)
    return fields | ({"Reason": reason.strip()} if reason else {})


def judge_scheduler(
    nodes: Mapping[str, SlurmNode], declared: Iterable[str], gpus: Mapping[str, int | None]
) -> Iterator[Finding]:
    """Findings on declared nodes: those Slurm keeps from work, does not know, or gives another number of GPUs."""
    for name in declared:
        found = nodes.get(name)
        if found is None:
            remedy = "add it to slurm.conf: scontrol reconfigure"
            yield _finding("preflight/not-in-slurm", name, "Slurm knows no such node", remedy)
            continue
        if found.bad_states:
            yield _kept_from_work(found)
        want = gpus.get(name)
        if found.gpus is not None and want is not None and found.gpus != want:
            message = f"Slurm gives it {found.gpus} GPUs, and it has {want}"
            remedy = "correct Gres in slurm.conf and gres.conf: slurmd -C; slurmd -G"
            yield _finding("preflight/gres", name, message, remedy, f"Gres gpu:{found.gpus}")


def _kept_from_work(found: SlurmNode) -> Finding:
    """A fail; only a warning where fairlead itself drained the node, for else it could never be found well again."""
    why = f": {bare(found.reason)}" if found.reason else ""
    drained_by_us = is_ours(found.reason) and all(s.startswith("DRAIN") for s in found.bad_states)
    said = f"State={'+'.join(found.states)}" + (f" Reason={found.reason}" if found.reason else "")
    return Finding(
        code="preflight/node-state",
        verdict=Verdict.WARN if drained_by_us else Verdict.FAIL,
        subject=node(found.name),
        message=f"Slurm keeps it from work: {', '.join(found.bad_states).lower()}{why}",
        evidence=(Evidence(" ".join(SHOW), said),),
        remedy=f"when mended: scontrol update nodename={found.name} state=resume",
    )


def _finding(code: str, name: str, message: str, remedy: str, said: str = "") -> Finding:
    evidence = (Evidence(" ".join(SHOW), said),) if said else ()
    return Finding(
        code=code, verdict=Verdict.FAIL, subject=node(name), message=message, evidence=evidence, remedy=remedy
    )
