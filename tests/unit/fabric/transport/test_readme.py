"""The example of the README runs and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import fairlead.fabric.transport


def test_the_example_does_what_it_says(capsys) -> None:
    text = (Path(fairlead.fabric.transport.__file__).parent / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == re.findall(r"# (SUCCESS .*)", code)[0]
