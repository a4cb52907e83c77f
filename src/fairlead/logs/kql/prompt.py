"""Asking query after query at a terminal: completion, history, several lines.

A line that leaves a bracket open or ends in `|` goes on; an empty answer ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from fairlead.base.files import own_place
from fairlead.base.trust import PRIVATE_FILE
from fairlead.logs.kql.complete import candidates, word_at
from fairlead.logs.kql.script import is_open


class Words(Completer):
    """Completion from the catalogue and the tables of the store."""

    def __init__(self, tables: Iterable[str]) -> None:
        self.tables = tuple(tables)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """As prompt_toolkit asks for them."""
        text = document.text_before_cursor
        for name in candidates(text, self.tables):
            yield Completion(name, start_position=-len(word_at(text)))


def ask(
    answered: Callable[[str], None],
    history: Path,
    tables: Iterable[str] = (),
    *,
    input: Input | None = None,
    output: Output | None = None,
) -> None:
    """Every query that is typed goes to `answered`, until Ctrl-D, or an empty line."""
    own_place(history.parent)
    history.touch(mode=PRIVATE_FILE, exist_ok=True)
    keys = KeyBindings()

    @keys.add("enter")
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.text.strip() and is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    session: PromptSession[str] = PromptSession(
        "kql> ", completer=Words(tables), complete_while_typing=False, history=FileHistory(str(history)),
        multiline=True, key_bindings=keys, input=input, output=output,
    )  # fmt: skip
    while True:
        try:
            text = session.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if not text.strip():
            return
        answered(text)
