"""How `fairlead train` answers about steps that there are not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.cli.app import run as fairlead
from fairlead.cli.train import resume, run
from fairlead.errors import UsageError
from support.runs import prepare, steps_told

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("steps", [0, -5])
def test_a_number_of_steps_that_is_none_is_refused_before_anything_is_made(steps, tmp_path) -> None:
    toml = prepare(tmp_path)
    for verb in (run, resume):
        with pytest.raises(UsageError, match=f"--steps {steps}: at least 1"):
            verb(toml, steps=steps)
    assert not (tmp_path / "store").exists()


def test_more_steps_done_than_asked_for_is_said_so(tmp_path, capsys) -> None:
    assert fairlead(["train", "run", str(prepare(tmp_path, optimizer_schedule="constant")), "--steps", "2"]) == 0
    toml = prepare(tmp_path, optimizer_schedule="constant", run_steps=1)
    capsys.readouterr()
    assert fairlead(["train", "resume", str(toml)]) == 0
    assert capsys.readouterr().out == "nothing to do: 2 steps are done, and `run.steps` is 1\n"
    assert steps_told(tmp_path) == [0, 1]
