"""`fairlead`: finds the verb, calls it, answers. Light on purpose: nothing heavy is imported before a verb is known."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fairlead import __version__

if TYPE_CHECKING:
    from cyclopts import App

_PROLOGUE = (
    "fairlead takes an AI cluster with an RDMA-capable network from booted machines to a running, debuggable job."
)
_EPILOGUE = "Exit codes: 0 ok, 1 bug, 2 usage, 3 verdict fail, 4 could not judge, 5 temporary, 130 interrupted."


def build() -> App:
    """The command tree; verbs are named, not imported."""
    from cyclopts import App

    from fairlead.cli.verbs import VERBS

    app = App(
        name="fairlead",
        help=_PROLOGUE,
        help_epilogue=_EPILOGUE,
        help_format="plaintext",
        help_formatter="plain",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for verb in VERBS:
        app.command(verb.target, name=verb.name, help=verb.help)
    app.register_install_completion_command()
    return app


def run(argv: Sequence[str]) -> int:
    """Do what the words say; returns the exit status."""
    if list(argv) in (["--version"], ["-V"]):
        print(f"fairlead {__version__}")  # noqa: T201
        return 0
    from cyclopts import CycloptsError

    from fairlead.cli import output
    from fairlead.errors import UsageError

    session = output.begin(argv)
    try:
        _known_verb(argv)
        answer: Any = build()(list(argv), exit_on_error=False, print_error=False)
        return session.answer(answer) if isinstance(answer, output.Answer) else 0
    except CycloptsError as error:
        words = " ".join(str(error).split())
        known = session.verb if session.verb != "fairlead" else ""
        return session.failed(UsageError("cli/usage", words, hint=f"fairlead {known} --help".replace("  ", " ")))
    except BrokenPipeError:
        # the reader of a pipe left (`| head`); there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as leaving:
        return int(leaving.code or 0) if isinstance(leaving.code, int | None) else 1
    except BaseException as error:  # noqa: BLE001 - the one place that turns anything into an exit status
        return session.failed(error)
    finally:
        session.close()


def _known_verb(argv: Sequence[str]) -> None:
    """Refuse an unknown verb by name, before the parser reads flags it cannot place."""
    from fairlead.base.suggest import did_you_mean
    from fairlead.cli.verbs import VERBS
    from fairlead.errors import UsageError

    names = [v.name for v in VERBS]
    if argv and not argv[0].startswith("-") and argv[0] not in names:
        raise UsageError("cli/usage", f"no verb `{argv[0]}`; {did_you_mean(argv[0], names)}", hint="fairlead --help")


def main() -> NoReturn:
    """The program."""
    # a scheduler stops its prologs with SIGTERM: same clean way out as Ctrl-C
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:]))


def _terminate(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt(f"stopped by {signal.Signals(signum).name}")
