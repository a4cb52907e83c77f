"""What a setting of `[slurm]` may look like: it becomes a line of a batch script or a word for srun. Pure.

A line break would become a line of the script, a blank a second option, and a node list of its own would undo what
fairlead asks for. Refused here, with the line of the cluster file, rather than by Slurm in the middle of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_BREAKS = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_WORD = re.compile(r"[^\s\"'`$\\;&|<>#-][^\s\"'`$\\;&|<>#]*")
"""A partition, account or reservation, or several with commas."""
_OPTION = re.compile(r"(--[A-Za-z][A-Za-z0-9-]*(=.*)?|-[A-Za-z].*)", re.DOTALL)
_MOUNT = re.compile(r"[^\s:,]+(:/[^\s:,]*(:[A-Za-z][A-Za-z0-9+_-]*)?)?")
"""`SOURCE[:TARGET[:FLAGS]]`: srun's --container-mounts (pyxis) and apptainer's --bind; a comma would begin another."""
_OURS = {
    "--nodelist": "it holds the nodes of the run: -w NODES",
    "-w": "it holds the nodes of the run: -w NODES",
    "--nodes": "it holds the nodes of the run: -w NODES",
    "-N": "it holds the nodes of the run: -w NODES",
    "--exclude": "leave nodes out of the run: -x NODES",
    "-x": "leave nodes out of the run: -x NODES",
    "--job-name": "the job is found by its name when it is to be cancelled",
    "-J": "the job is found by its name when it is to be cancelled",
    "--time": "write time_limit_min",
    "-t": "write time_limit_min",
    "--array": "one job holds the nodes",
    "-a": "one job holds the nodes",
    "--wrap": "the job runs a script of fairlead's",
}
"""Options that fairlead sets itself, and what to do instead."""


class Wrong(NamedTuple):
    """One setting that cannot stay as it is."""

    path: tuple[str | int, ...]
    """Below `[slurm]`."""
    message: str
    hint: str


def wrong_settings(words: Mapping[str, str], lists: Mapping[str, Sequence[str]]) -> Iterator[Wrong]:
    """What is not well formed: `words` are single settings, `lists` are options and mounts, by their names."""
    for key, value in words.items():
        if _BREAKS.search(value):
            yield Wrong((key,), f"`{key}` holds a line break or another control character", "write it on one line")
        elif value and key != "container" and not _WORD.fullmatch(value):
            yield Wrong((key,), f"`{key}` is not one word: {value!a}", "one name, or several with commas")
    for key, values in lists.items():
        for number, value in enumerate(values):
            if said := _wrong_item(key, value):
                yield Wrong((key, number), *said)


def _wrong_item(key: str, value: str) -> tuple[str, str] | None:
    if _BREAKS.search(value):
        return f"`{key}` holds a line break or another control character", "one option or mount in each string"
    if key == "container_mounts":
        if _MOUNT.fullmatch(value):
            return None
        return f"{value!a} is no mount", 'write "/on/node:/in/container" or "/on/node:/in/container:ro"'
    if not _OPTION.fullmatch(value):
        return f"{value!a} is no option", 'write "--exclusive" or "--mem=0", each in a string of its own'
    name = re.split(r"[=\s]", value, maxsplit=1)[0]
    name = name if name.startswith("--") else name[:2]
    return (f"`{name}` is fairlead's to set: {why}", "leave it out") if (why := _OURS.get(name)) else None
