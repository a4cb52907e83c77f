"""The example of the room's README runs and prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

import fairlead.fabric.mrc

README = Path(fairlead.fabric.mrc.__file__).parent / "README.md"


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code = README.read_text().split("```python\n")[1].split("```")[0]
    exec(compile(code, str(README), "exec"), {})
    assert capsys.readouterr().out.strip() == code.rstrip().rsplit("# ", 1)[1]


def test_every_file_it_names_is_there() -> None:
    text = README.read_text()
    room = README.parent
    files = {path.stem for path in room.glob("*.py")} - {"__init__"}
    assert {name for name in files if name not in text} == set()
