"""The words Slurm has for states of nodes and of jobs, from 20.11 to 25.05, and what each means for work. Pure.

Words come in three writings, and all are read to one: `scontrol show node` joins a state and its flags
(`IDLE*+CLOUD+DRAIN`), sinfo puts a mark behind one word (`drained*`), and JSON has one list, or two.
A word that stands in no table is unknown: neither a state that takes work nor one that does not.

Sources: `node_states[]`, `node_state_flags[]`, `node_state_string()` and `job_state_string()` in
src/common/slurm_protocol_defs.c, `slurm_sprint_node_table()` in src/api/node_info.c, `NODE_STATES` in
src/plugins/data_parser/v0.0.39 to v0.0.43, each as of slurm-20-11 to slurm-25-05; sinfo(1), "NODE STATE CODES".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Work(enum.Enum):
    """What a node's state word means for new work."""

    TAKEN = enum.auto()
    """The node takes work, now or when others are done."""
    SET_ASIDE = enum.auto()
    """For somebody or something, and no fault: leave it alone."""
    DRAINED = enum.auto()
    """By a person or a program; jobs that run go on."""
    REFUSED = enum.auto()
    """Broken, off, or not the machine Slurm expects."""
    UNSURE = enum.auto()
    """Slurm itself does not know yet."""


NODE: dict[str, Work] = {
    "ALLOCATED": Work.TAKEN,
    "BLOCKED": Work.TAKEN,  # by a job that has its switch for itself; from 24.05
    "CLOUD": Work.TAKEN,
    "COMPLETING": Work.TAKEN,
    "DYNAMIC": Work.TAKEN,  # 21.08
    "DYNAMIC_FUTURE": Work.TAKEN,
    "DYNAMIC_NORM": Work.TAKEN,
    "IDLE": Work.TAKEN,
    "MIXED": Work.TAKEN,
    "PLANNED": Work.TAKEN,
    "POWERING_UP": Work.TAKEN,
    "POWER_UP": Work.TAKEN,
    "REBOOT_CANCELED": Work.TAKEN,
    "RESERVED": Work.TAKEN,  # for those the reservation is for
    "RESUME": Work.TAKEN,
    "UNDRAIN": Work.TAKEN,
    "MAINTENANCE": Work.SET_ASIDE,
    "REBOOT_REQUESTED": Work.SET_ASIDE,  # until then it takes work, unless drained
    "DRAIN": Work.DRAINED,
    "DRAINED": Work.DRAINED,
    "DRAINING": Work.DRAINED,
    "DOWN": Work.REFUSED,
    "ERROR": Work.REFUSED,
    "EXTERNAL": Work.REFUSED,  # without a slurmd; from 25.05
    "FAIL": Work.REFUSED,
    "FAILING": Work.REFUSED,
    "FUTURE": Work.REFUSED,
    "INVALID_REG": Work.REFUSED,
    "NOT_RESPONDING": Work.REFUSED,
    "PERFCTRS": Work.REFUSED,  # its network counters are in use, which shuts others out; to 23.11
    "POWERED_DOWN": Work.REFUSED,
    "POWERING_DOWN": Work.REFUSED,
    "POWER_DOWN": Work.REFUSED,
    "POWER_DRAIN": Work.REFUSED,
    "REBOOT_ISSUED": Work.REFUSED,
    "INVALID": Work.UNSURE,
    "UNKNOWN": Work.UNSURE,
}

_SAME = {
    "CANCEL_REBOOT": "REBOOT_CANCELED",
    "INVAL": "INVALID_REG",
    "MAINT": "MAINTENANCE",
    "NO_RESPOND": "NOT_RESPONDING",
    "POWER": "POWERED_DOWN",  # scontrol of 20.11, for POWER_SAVE
    "REBOOT": "REBOOT_REQUESTED",
}
"""One state under another name, by version or by command."""

MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""What is put behind a word for a flag; `+` behind ALLOCATED is COMPLETING."""


class Job(enum.Enum):
    """How far a job is."""

    WAITS = enum.auto()
    RUNS = enum.auto()
    ENDED = enum.auto()


JOB: dict[str, Job] = {
    **dict.fromkeys(
        ("PENDING", "CONFIGURING", "POWER_UP_NODE", "REQUEUED", "REQUEUED_CRON", "REQUEUE_FED", "REQUEUE_HOLD",
         "RESV_DEL_HOLD", "SPECIAL_EXIT", "STOPPED", "SUSPENDED"), Job.WAITS),
    **dict.fromkeys(("RUNNING", "RESIZING", "SIGNALING"), Job.RUNS),
    **dict.fromkeys(
        ("BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
         "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "STAGE_OUT", "TIMEOUT"), Job.ENDED),
}  # fmt: skip
"""`squeue --format=%T`. REVOKED: a job of a federation that runs on another cluster."""


def node_words(text: str | Iterable[str]) -> tuple[str, ...]:
    """The states in what a command prints, each once, as scontrol of 22.05 and later writes them.

    >>> node_words("IDLE*+CLOUD+DRAIN"), node_words("drained$"), node_words(["IDLE", "DYNAMIC_NORM"])
    (('IDLE', 'NOT_RESPONDING', 'CLOUD', 'DRAIN'), ('DRAINED', 'MAINTENANCE'), ('IDLE', 'DYNAMIC_NORM'))
    """
    found: dict[str, None] = {}
    for piece in text.split("+") if isinstance(text, str) else text:
        word = piece.strip().upper()
        marks = ""
        while word and word[-1] in MARKS:
            word, marks = word[:-1], word[-1] + marks
        for name in (word, *(MARKS[mark] for mark in marks)):
            if name:
                found[_SAME.get(name, name)] = None
    return tuple(found)


def are(words: Iterable[str], *kinds: Work) -> list[str]:
    """Those of the words that mean one of the kinds, in order of the alphabet.

    Slurm gives work to a node that it powers up, and lists it as silent until its slurmd speaks: that is no fault.
    """
    said = set(words)
    if "POWERING_UP" in said:
        said.discard("NOT_RESPONDING")
    return sorted({word for word in said if _work(word) in kinds})


def unknown(words: Iterable[str]) -> list[str]:
    """Words that tell nothing: those no table has, and Slurm's own for not knowing."""
    return sorted({word for word in words if _work(word) in (Work.UNSURE, None)})


def _work(word: str) -> Work | None:
    return NODE.get(_SAME.get(word, word))
