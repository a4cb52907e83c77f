"""One output for all verbs: the answer on stdout, everything else on stderr, in every mode, also when things go wrong.

A verb returns an Answer; `Session` turns it into text or into exactly one JSON document, and into an exit status.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import msgspec

from fairlead import __version__
from fairlead.base.files import disk_errors
from fairlead.base.shown import shown, shown_json
from fairlead.base.table import printable
from fairlead.base.trust import own_folder, private_opener
from fairlead.base.units import counted
from fairlead.cli.progress import Progress
from fairlead.cli.verbs import first_words
from fairlead.errors import ClusterError, Exit, FairleadError, MissingTool, SpecError
from fairlead.records.codec import builtins, to_json
from fairlead.records.event import Event
from fairlead.records.finding import Finding
from fairlead.records.history import past_run, remember
from fairlead.records.log import ROOT, Events, line_of, tell
from fairlead.records.runs import DEFAULT_KEEP, RunFolder, default_place, new_id, now_utc, prune, why_not_here
from fairlead.records.verdict import Verdict, exit_of, nagios_of

log = logging.getLogger("fairlead.cli")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a verb found out."""

    schema: str
    """Name and number of the document: `fairlead.check/1`."""
    text: str | Callable[[], str]
    """What a person reads on stdout."""
    verdict: Verdict = Verdict.PASS
    body: Mapping[str, Any] = field(default_factory=dict)
    """The document's own keys, after the common head."""
    hints: Sequence[str] = ()
    """Next commands, for stderr."""
    exit: int | None = None
    """An exit status of its own, where the verdict does not say it (`exec`)."""


class Session:
    """One run of the program: its mode, its id, its folder once a verb opens one."""

    def __init__(self, argv: Sequence[str], *, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.argv = list(argv)
        # a stream the caller closed (`>&-`) is None
        self.stdout = stdout or sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
        self.stderr = stderr or sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
        self.verb = argv[0] if argv and argv[0] in first_words() else "fairlead"
        # read before parsing, so that a usage error is also answered in the mode asked for
        before_command = list(argv[: argv.index("--")]) if "--" in argv else list(argv)
        self.json = "--json" in before_command
        self.quiet = bool({"-q", "--quiet"} & set(before_command))
        self.verbose = bool({"-v", "--verbose"} & set(before_command))
        self.nagios = "--exit=nagios" in before_command or _follows(before_command, "--exit") == "nagios"
        self.warn_as_fail = "--warn-as-fail" in before_command
        self.run_id = new_id(self.verb)
        self.start = now_utc()
        self.folder: RunFolder | None = None
        self.keep = DEFAULT_KEEP
        self._logs: list[logging.Handler] = []
        self._progress: Progress | None = None

    # ---- what verbs call -------------------------------------------------------------------------------------------

    def open_folder(self, place: Path | None = None, *, from_file: str = "", keep: int = DEFAULT_KEEP) -> RunFolder:
        """Claim this run's folder: `place` is the flag, `from_file` what the cluster file says."""
        where = self.runs_place(place, from_file=from_file)
        if where == default_place() and (why := why_not_here()):
            self.note(f"no run folder here: {why}")
        self.folder = RunFolder.create(where, self.verb, ["fairlead", *self.argv], self.run_id)
        self.run_id = self.folder.info.id
        self.keep = keep
        kept = self.folder
        self._log_to(Events(lambda event: kept.append("log.jsonl", builtins(event))))
        tell(log, "verb begins", verb=self.verb, argv=self.argv, run=self.run_id, version=__version__)
        return self.folder

    @staticmethod
    def runs_place(place: Path | None, *, from_file: str = "") -> Path:
        """Where run folders live: flag, environment, file, then the default."""
        env = os.environ.get("FAIRLEAD_RUNS", "")
        return place or (Path(env) if env else None) or (Path(from_file) if from_file else None) or default_place()

    def note(self, text: str) -> None:
        """One line for people, on stderr."""
        if not self.quiet:
            self._end_progress()
            self.say(text)

    def say(self, text: str, stream: TextIO | None = None) -> None:
        """One line at once, on stderr where nothing else is said; what cannot be seen in it is written out."""
        print(shown(text), file=stream or self.stderr, flush=True)

    def progress(self, what: str, done: int, total: int, *details: str) -> None:
        """How far we are; a live line on a terminal, a plain line at the start, every 30 s and at the end elsewhere.

        Details with the most important first: a narrow terminal has no room for the last ones.
        """
        if self.quiet:
            return
        if self._progress is None or self._progress.what != what:
            self._end_progress()
            self._progress = Progress(what, self.stderr)
        self._progress.show(done, total, details)

    # ---- what main calls -------------------------------------------------------------------------------------------

    def answer(self, answer: Answer) -> int:
        """Print an answer and return the exit status."""
        self._end_progress()
        status = answer.exit if answer.exit is not None else self._status(answer.verdict)
        tell(log, "verb ended", verb=self.verb, verdict=str(answer.verdict), exit=int(status))
        document = self._head(answer.schema, answer.verdict, status) | dict(builtins(answer.body))
        try:
            self._keep_result(document, answer.verdict, status)
        except FairleadError:
            # what was found out is not lost with the room to keep it; the error follows
            if not self.json:
                self._print_text(answer)
            raise
        if self.json:
            self._print(shown_json(to_json(document)))
        else:
            self._print_text(answer)
            if self.folder and not self.quiet:
                self.say(f"wrote    {self.folder.path}")
            for hint in answer.hints if not self.quiet else ():
                self.say(f"next     {hint}")
        return status

    def failed(self, error: BaseException) -> int:
        """Say why nothing could be answered and return the exit status. Never raises, never half a document."""
        self._end_progress()
        error = _missing_extra(error, self.verb) or error
        if isinstance(error, KeyboardInterrupt):
            code, message, hint, status = "cli/interrupted", str(error) or "interrupted", "", Exit.INTERRUPTED
        elif isinstance(error, FairleadError):
            code, message, hint, status = error.code, str(error), error.hint, error.exit
        else:
            place = self._write_traceback(error)
            code, status = "cli/bug", Exit.BUG
            message = f"this is a bug in fairlead: {type(error).__name__}: {error}"
            hint = f"report it with {place}"
        final = 3 if self.nagios and status is not Exit.INTERRUPTED else int(status)
        tell(log, f"verb failed: {message}", level=logging.ERROR, verb=self.verb, code=code, exit=final)
        problem: dict[str, Any] = {"code": code, "message": message, "hint": hint}
        if isinstance(error, SpecError):
            problem["problems"] = [
                {
                    "code": p.code,
                    "file": p.file,
                    "line": p.line,
                    "column": p.column,
                    "message": p.message,
                    "hint": p.hint,
                }
                for p in error.problems
            ]
        if isinstance(error, ClusterError) and error.nodes:
            problem["nodes"] = error.nodes
        document = self._head("fairlead.error/1", Verdict.UNKNOWN, final) | {"error": problem}
        with contextlib.suppress(FairleadError, OSError):
            self._keep_result(document, Verdict.UNKNOWN, final)
        # where even this cannot be written, the exit status still says it
        with contextlib.suppress(FairleadError, OSError):
            if self.json:
                self._print(shown_json(to_json(document)))
            else:
                self._explain(error, problem)
        return final

    def _explain(self, error: BaseException, problem: Mapping[str, Any]) -> None:
        """The same for people, on stderr."""
        lines = [f"fairlead: {problem['message']}"]
        if isinstance(error, SpecError):
            lines = [
                problem["message"],
                "; ".join(filter(None, (counted(len(error.problems), "problem"), problem["hint"]))),
            ]
        elif problem["hint"]:
            lines.append(f"next     {problem['hint']}")
        if problem["code"].partition("/")[0] != "cli" and not isinstance(error, SpecError):
            lines.append(f"more     fairlead explain {problem['code']}")
        self.say("\n".join(lines))

    def close(self) -> None:
        """Let go of log handlers."""
        for handler in self._logs:
            ROOT.removeHandler(handler)
            handler.close()
        self._logs.clear()
        ROOT.setLevel(logging.NOTSET)

    def log_to_stderr(self) -> None:
        """Every event as a line for people, for `-v`."""

        def show(event: Event) -> None:
            self._end_progress()
            self.say(printable(line_of(event)))

        self._log_to(Events(show))

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _status(self, verdict: Verdict) -> int:
        if self.nagios:
            return nagios_of(verdict, warn_as_fail=self.warn_as_fail)
        return int(exit_of(verdict, warn_as_fail=self.warn_as_fail))

    def _head(self, schema: str, verdict: Verdict, status: int) -> dict[str, Any]:
        return {
            "schema": schema,
            "version": __version__,
            "run": self.run_id,
            "start": self.start,
            "end": now_utc(),
            "verdict": str(verdict),
            "exit": status,
        }

    def _keep_result(self, document: Mapping[str, Any], verdict: Verdict, status: int) -> None:
        if self.folder:
            self.folder.finish(document, verdict=str(verdict), exit_code=status)
            place = self.folder.path.parent
            prune(place, self.keep)
            with contextlib.suppress(FairleadError, ValueError):  # the run itself is kept whole
                findings = msgspec.convert(document.get("findings", ()), tuple[Finding, ...])
                remember(place, past_run(self.folder.info, nodes=str(document.get("nodes", "")), findings=findings))

    def _print_text(self, answer: Answer) -> None:
        text = answer.text if isinstance(answer.text, str) else answer.text()
        if text:
            self._print(shown(text))

    def _print(self, text: str) -> None:
        try:
            self.stdout.write(text if text.endswith("\n") else text + "\n")
            self.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as exc:
            with disk_errors(Path("standard output")):
                raise exc from None

    def _end_progress(self) -> None:
        if self._progress:
            self._progress.end()
            self._progress = None

    def _log_to(self, handler: logging.Handler) -> None:
        self._logs.append(handler)
        ROOT.addHandler(handler)
        ROOT.setLevel(logging.DEBUG)

    def _write_traceback(self, error: BaseException) -> Path | str:
        text = "".join(traceback.format_exception(error))
        folder = self.folder.path if self.folder else default_place(Path("/")).parent
        path = folder / f"traceback-{self.run_id}.txt"
        try:
            own_folder(path.parent)
            with open(path, "x", encoding="utf-8", errors="backslashreplace", opener=private_opener) as file:
                file.write(text)
        except OSError:
            print(text, file=self.stderr)
            return "the traceback above"
        return path


def _missing_extra(error: BaseException, verb: str = "") -> MissingTool | None:
    """What to install, where a module is missing that an extra brings; any other missing module is a bug."""
    from fairlead.base.machine import extra_of, pip_install

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    module = cause.name or "" if cause else ""
    extra = extra_of(module, verb)
    if not extra:
        return None
    what = f"this needs {module}, which is not installed: the extra `{extra}` of fairlead brings it"
    return MissingTool("cli/missing-extra", what, hint=pip_install(extra))


def _follows(words: Sequence[str], flag: str) -> str:
    return next((b for a, b in pairwise(words) if a == flag), "")


_current: Session | None = None


def session() -> Session:
    """The session of this process."""
    assert _current is not None, "session() is for verbs, which main() calls"
    return _current


def begin(argv: Sequence[str]) -> Session:
    """Start the session of this process."""
    global _current
    _current = Session(argv)
    if _current.verbose:
        _current.log_to_stderr()
    return _current
