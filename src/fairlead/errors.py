"""Every error fairlead raises on purpose, and the exit code each becomes.

FairleadError                 code, message, hint, exit
├── UsageError                a flag or an argument is wrong
├── SpecError                 problems: all of them, each with file, line, column
├── ClusterError              nodes: the node set it is about
│   ├── Unreachable           no node could be reached at all
│   └── SchedulerError        Slurm said no, or is not there
├── LabError                  the lab cannot be built, entered or changed as asked
├── FabricError               a simulation or a transport cannot go on
│   ├── LocalProtocolError    this side broke the protocol
│   ├── RemoteProtocolError   the other side did
│   └── PathsExhausted        no path to the peer is left
├── TrainError                a model, a state or a budget that training cannot go on with
├── MissingTool               a program, package or kernel feature is not there
├── NotPermitted              a right is missing
├── DiskFull                  no room to write; temporary
└── RunError                  a run folder cannot be found, read or written

A code is `room/kebab-name`; findings share the same name space, and `fairlead explain CODE` knows every one.
A node that fails is a finding, never one of these: an exception means "I cannot go on".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Exit(enum.IntEnum):
    """What the caller should do next, as a process exit status."""

    OK = 0
    BUG = 1
    USAGE = 2
    FAIL = 3
    UNKNOWN = 4
    RETRY = 5
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """One line for people."""
        return _MEANING[self]


_MEANING = {
    Exit.OK: "done; the verdict is pass or warn",
    Exit.BUG: "a bug in fairlead; a traceback file was written",
    Exit.USAGE: "a bad flag or a bad file; fix it and run again",
    Exit.FAIL: "the verdict is fail",
    Exit.UNKNOWN: "could not judge: nodes out of reach, a tool or a right missing",
    Exit.RETRY: "temporary: disk full, timed out, busy; the same command may work later",
    Exit.INTERRUPTED: "stopped by the user",
}


class FairleadError(Exception):
    """Something fairlead cannot go on from: one sentence, and what to type next."""

    exit: Exit = Exit.UNKNOWN

    def __init__(self, code: str, message: str, *, hint: str = "", exit: Exit | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        if exit is not None:
            self.exit = exit

    def __str__(self) -> str:
        return self.message


class UsageError(FairleadError):
    """The command line is wrong."""

    exit = Exit.USAGE


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a file: where it stands and what to change. Lines and columns count from 1; 0 is unknown."""

    code: str
    message: str
    file: str
    line: int = 0
    column: int = 0
    length: int = 1
    source: str = ""
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        text = f"{where}: {self.message}"
        if self.source:
            caret = " " * (self.column - 1) + "^" * max(1, self.length)
            text += f"\n{self.line:5} | {self.source}\n      | {caret}" + (f" {self.hint}" if self.hint else "")
        elif self.hint:
            text += f" ({self.hint})"
        return text


class SpecError(FairleadError):
    """A file is wrong; `problems` holds every fault found in it, in the order of the file."""

    exit = Exit.USAGE

    def __init__(self, problems: list[Problem], *, hint: str = "") -> None:
        first = problems[0]
        num = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
        super().__init__(first.code, f"{first.file}: {num}", hint=hint)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.problems)


class QueryError(SpecError):
    """A query cannot be answered; its problems say where and what to write instead."""


class ClusterError(FairleadError):
    """Something about a set of nodes; `nodes` is folded text such as `h200-[000-003]`."""

    def __init__(self, code: str, message: str, *, nodes: str = "", hint: str = "", exit: Exit | None = None) -> None:
        super().__init__(code, message, hint=hint, exit=exit)
        self.nodes = nodes


class Unreachable(ClusterError):
    """No node answered, so nothing can be judged."""


class SchedulerError(ClusterError):
    """The scheduler refused, failed, or is not installed."""


class LabError(FairleadError):
    """The lab cannot be built, entered or changed as asked."""


class FabricError(FairleadError):
    """A simulation or a transport cannot go on."""


class LocalProtocolError(FabricError):
    """This side was asked to break the protocol."""


class RemoteProtocolError(FabricError):
    """The other side broke the protocol."""


class PathsExhausted(FabricError):
    """No path to the peer is left."""


class TrainError(FairleadError):
    """Training cannot begin, or cannot go on."""

    exit = Exit.USAGE


class MissingTool(FairleadError):
    """A program, a package or a kernel feature is not on this machine."""


class NotPermitted(FairleadError):
    """A right is missing."""


class DiskFull(FairleadError):
    """There is no room to write; nothing half-written is left."""

    exit = Exit.RETRY


class RunError(FairleadError):
    """A run folder cannot be found, read or written."""

    exit = Exit.USAGE
