"""`fairlead`: finds the verb, calls it, answers. Light on purpose: nothing heavy is imported before a verb is known."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from fairlead import __version__
from fairlead.errors import Exit

if TYPE_CHECKING:
    from cyclopts import App

    from fairlead.cli.output import Answer

_SWITCHES = {"--json", "--quiet", "-q", "--verbose", "-v", "--warn-as-fail"}
_HELP = {"--help", "-h"}


def build() -> App:
    """The command tree; verbs are named, not imported."""
    from cyclopts import App

    from fairlead.cli.help import EPILOGUE, PlainHelp
    from fairlead.cli.verbs import verbs

    app = App(
        name="fairlead",
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        help_formatter=PlainHelp(),
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    families: dict[str, App] = {}
    for place, verb in enumerate(verbs()):
        *first, name = verb.name.split()
        home = families[first[0]] if first else app
        if verb.target:
            home.command(verb.target, name=name, sort_key=place)
        else:
            families[name] = App(
                name=name, help=verb.help, help_format="plaintext", result_action="return_value", sort_key=place
            )
            home.command(families[name])
    app.register_install_completion_command()
    return app


def run(argv: Sequence[str]) -> int:
    """Do what the words say; returns the exit status."""
    if list(argv) in (["--version"], ["-V"]):
        print(f"fairlead {__version__}")  # noqa: T201
        return 0
    from fairlead.base.trust import search_path
    from fairlead.cli import output

    # whatever is started from here on: never what lies in the current directory
    os.environ["PATH"] = search_path()
    words = _verb_first(argv)
    session = output.begin(words)
    try:
        return session.answer(_call(words))
    except BrokenPipeError:
        # the reader of a pipe left (`| head`); there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BaseException as error:  # noqa: BLE001 - the one place that turns anything into an exit status
        if isinstance(error, SystemExit) and error.code == 0:
            return 0  # a verb whose work another task of the same job step does; a library that exits is a bug
        return session.failed(error)
    finally:
        session.close()


def _call(words: list[str]) -> Answer:
    """The answer of the verb, of a help flag, or of `--version`. Raises what the verb raises."""
    from fairlead.cli.help import help_text, overview, width_here
    from fairlead.cli.output import Answer, session
    from fairlead.errors import UsageError

    _known_verb(words)
    ours = words[: words.index("--")] if "--" in words else words
    if _HELP & set(ours) or _wants_a_verb(words):
        path = [w for w in ours if not w.startswith("-")]
        text = help_text(build(), path, width=width_here()) if path else overview(width_here())
        return Answer(schema="fairlead.help/1", text=text, body={"help": text})
    if words[0] in {"--version", "-V"}:
        return Answer(schema="fairlead.version/1", text=f"fairlead {__version__}")
    from cyclopts import CycloptsError, MissingArgumentError, UnusedCliTokensError

    try:
        answer = build()(words, exit_on_error=False, print_error=False)
    except UnusedCliTokensError as error:
        verb, left = " ".join(error.command_chain or ()), " ".join(error.unused_tokens or ())
        is_file = left.endswith(".toml") and " " not in left
        hint = f"fairlead {verb} -f {left}" if is_file else f"fairlead {verb} --help"
        raise UsageError("cli/usage", f"`fairlead {verb}` has no place for `{left}`", hint=hint) from None
    except CycloptsError as error:
        verb = " ".join(error.command_chain or ()) or session().verb
        hint = f"fairlead {verb} --help" if verb != "fairlead" else "fairlead --help"
        text = " ".join(str(error).split())
        missed = error.argument if isinstance(error, MissingArgumentError) and not error.keyword else None
        if missed is not None and missed.index is not None:
            name = missed.name.lstrip("-").replace("-", "_").upper()  # as the help says it
            text = f"`fairlead {verb}` needs {name}"
        raise UsageError("cli/usage", text, hint=hint) from None
    return answer if isinstance(answer, Answer) else Answer(schema="fairlead.done/1", text="")


def _verb_first(argv: Sequence[str]) -> list[str]:
    """`fairlead --json probe` is `fairlead probe --json`: switches in front of the verb go behind it."""
    words = list(argv)
    first = next((i for i, word in enumerate(words) if word not in _SWITCHES), len(words))
    return [*words[first : first + 1], *words[:first], *words[first + 1 :]]


def _known_verb(words: Sequence[str]) -> None:
    """Refuse an unknown verb by name, before the parser reads flags it cannot place."""
    from fairlead.base.suggest import did_you_mean
    from fairlead.cli.verbs import first_words
    from fairlead.errors import UsageError

    names = first_words()
    if words and not words[0].startswith("-") and words[0] not in names:
        raise UsageError("cli/usage", f"no verb `{words[0]}`; {did_you_mean(words[0], names)}", hint="fairlead --help")


def _wants_a_verb(words: Sequence[str]) -> bool:
    """Nothing but switches, behind nothing or behind a verb that has verbs of its own."""
    from fairlead.cli.verbs import verbs

    families = {v.name for v in verbs() if not v.target}
    return not set(words[1:] if words and words[0] in families else words) - _SWITCHES


def main() -> NoReturn:
    """The program."""
    # a scheduler stops its prologs with SIGTERM, a closed terminal says SIGHUP: same clean way out as Ctrl-C
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that lacks a character shows an escape; it must not turn an answer into a failure
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        # a second interrupt, while the first was being answered
        os._exit(Exit.INTERRUPTED)


def _stop(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt(f"stopped by {signal.Signals(signum).name}")
