"""What a stage has done so far, on disk, so that a later run goes on from there.

    state = StageState(state_place() / "weights" / "llama.json", Spread, schema="fairlead.weights-state/1")
    with state.turn():                       # one run at a time
        done = state.read() or Spread()
        state.write(done)                    # whole or not at all, as often as something is done

The file says which schema it is of. One of another schema, or one that does not read, is an error that says how to
start afresh: it is never half understood.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from fairlead import __version__
from fairlead.base.files import disk_errors, not_ours, own_place, write_atomic
from fairlead.base.trust import PRIVATE_FILE, NotOurs, own_folder, read_file
from fairlead.errors import Exit, RunError
from fairlead.records.codec import builtins, from_json, to_json
from fairlead.records.journal import locked
from fairlead.records.runs import now_utc

T = TypeVar("T")

MAX_BYTES = 1 << 28
"""What a state can be at most."""


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    schema: str
    version: str
    """Of the fairlead that wrote it."""
    written: str
    """UTC."""
    state: Any
    digest: str = ""
    """Of the state; earlier versions wrote none."""


def _digest(state: Any) -> str:
    """Of a state as it is written, so also as it is read."""
    return hashlib.sha256(to_json(state, indent=0).encode()).hexdigest()[:16]


class StageState(Generic[T]):
    """The state of one piece of work of one stage."""

    def __init__(self, path: Path, kind: type[T], *, schema: str) -> None:
        """`schema` is the state's name and number, `fairlead.weights-state/1`: raise it when the fields change."""
        self.path, self.schema = path, schema
        self._kind = kind

    def read(self) -> T | None:
        """What an earlier run left; None where there is none. Raises RunError for one that cannot be gone on from."""
        try:
            if not self.path.parent.exists():
                return None
            own_folder(self.path.parent, make=False)
            kept = from_json(read_file(self.path, MAX_BYTES, ours=True), _Kept)
        except FileNotFoundError:
            return None
        except NotOurs as error:
            raise not_ours(error) from error
        except (OSError, ValueError) as error:
            raise self._unusable("run/state-damaged", f"does not read: {error}") from error
        if kept.schema != self.schema:
            what = f"is {kept.schema}, written by fairlead {kept.version}; this fairlead goes on from {self.schema}"
            raise self._unusable("run/state-schema", what)
        if kept.digest and kept.digest != _digest(kept.state):
            raise self._unusable("run/state-damaged", "is not what was written")
        try:
            return msgspec.convert(kept.state, self._kind)
        except msgspec.ValidationError as error:
            raise self._unusable("run/state-damaged", f"does not read: {error}") from error

    def write(self, state: T) -> None:
        """Keep the state. Raises DiskFull or NotPermitted; the state before is then still there, whole."""
        plain = builtins(state)
        kept = _Kept(schema=self.schema, version=__version__, written=now_utc(), state=plain, digest=_digest(plain))
        own_place(self.path.parent)
        write_atomic(self.path, to_json(kept), mode=PRIVATE_FILE)

    def clear(self) -> None:
        """Forget it: the work is done, or begins anew."""
        with disk_errors(self.path):
            self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def turn(self, limit_s: float = 0.0) -> Iterator[None]:
        """Nobody else works on it meanwhile; a run that is killed gives its turn back. Raises RunError (exit 5)."""
        own_place(self.path.parent)
        lock = self.path.with_suffix(".lock")
        with contextlib.ExitStack() as held:
            with disk_errors(lock):
                is_mine = held.enter_context(locked(lock, limit_s))
            if not is_mine:
                text = f"another run of fairlead is at work on {self.path}"
                raise RunError(
                    "run/state-busy", text, hint=f"wait for it; who it is says: fuser {lock}", exit=Exit.RETRY
                )
            yield

    def _unusable(self, code: str, what: str) -> RunError:
        text = f"what an earlier run left in {self.path} {what}"
        return RunError(code, text, hint=f"to start afresh: rm {self.path}")
