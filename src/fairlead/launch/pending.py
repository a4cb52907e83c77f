"""A step of ranks that Slurm has not begun: heard from what srun says of it, explained by what squeue says. Pure."""

from __future__ import annotations

import re

_SAID = re.compile(
    r"srun: (?:error: )?[jJ]ob (\d+) "
    r"(?:queued and waiting for resources|step creation (?:temporarily|still) disabled.*)"
)


def heard(text: str) -> str:
    """The job that waits, by a line of srun's own; empty for any other line.

    >>> heard("srun: job 12 queued and waiting for resources")
    '12'
    >>> heard("srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)")
    '7'
    """
    found = _SAID.match(text)
    return found[1] if found else ""


def question(job: str) -> tuple[str, ...]:
    """The command that says why a job waits."""
    return ("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T|%r")
