"""From files to the answer, by the command line: import, facts of the job, the lines that matter, text and pictures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fairlead.cli.app import run
from fairlead.logs.diagnose.model import Line
from fairlead.logs.diagnose.signatures import read
from support.captures import captures_root
from support.wrecks import fallen_gpu, spread

SACCT = """JobID|JobName|State|ExitCode|Start|End|NodeList|NTasks
4711|train|FAILED|1:0|2026-03-02T10:00:00|2026-03-02T11:00:00|gpu[01-04]|
4711.batch|batch|FAILED|1:0|2026-03-02T10:00:00|2026-03-02T11:00:00|gpu01|1
4711.0|python|FAILED|1:0|2026-03-02T10:00:00|2026-03-02T11:00:00|gpu[01-04]|16
"""


def ask(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    run(["logs", *map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.requires("chdb")
@pytest.mark.parametrize("told_by", ["sacct", "slurmctld"])
def test_from_files_to_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str], told_by: str) -> None:
    logs, store = spread(fallen_gpu(), tmp_path), tmp_path / "store"
    assert ask(capsys, "import", "--store", store, "--by-folder", logs)["exit"] == 0
    if told_by == "sacct":
        (tmp_path / "sacct.txt").write_text(SACCT)
        assert ask(capsys, "import", "--store", store, tmp_path / "sacct.txt")["exit"] == 0
    found = ask(capsys, "diagnose", "4711", "--store", store, "--out", tmp_path / "why.html")
    assert found["exit"] == 3
    said = found["diagnosis"]
    assert (said["what"], said["nodes"], said["confidence"], said["state"]) == ("gpu-bus", ["gpu02"], "high", "FAILED")
    # slurmctld's lines do not say how many ranks a node has
    assert said["victims"] == ("gpu[01,03-04]" if told_by == "sacct" else "")
    page = (tmp_path / "why.html").read_text()
    assert "fallen off the bus" in page
    assert "\x1b" not in page
    run(["logs", "diagnose", "4711", "--store", str(store), "--out", str(tmp_path / "why.svg")])
    shown = capsys.readouterr().out
    assert "root     2026-03-02T10:50:00.000Z  gpu02  kernel  NVRM: Xid" in shown
    assert (tmp_path / "why.svg").read_text().startswith("<svg")
    assert ask(capsys, "diagnose", "99", "--store", store)["error"]["code"] == "logs/no-job"


@pytest.mark.requires("chdb")
def test_a_line_that_nobody_knows_is_shown_where_no_cause_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = fallen_gpu()
    rows = made.files["gpu02", "syslog"]
    made.files = {("gpu02", "syslog"): rows[1:], ("ctl", "slurmctld"): made.files["ctl", "slurmctld"]}
    for node in made.job.nodes:
        made.kernel(node, -4000, "usb 1-1: reset failed 12 times")
        made.kernel(node, 3000, "usb 1-1: reset failed 13 times")
    logs, store = spread(made, tmp_path), tmp_path / "store"
    ask(capsys, "import", "--store", store, "--by-folder", logs)
    found = ask(capsys, "diagnose", "4711", "--store", store)
    assert (found["exit"], found["diagnosis"]["what"]) == (4, "not-in-the-logs")
    unusual = found["diagnosis"]["unusual"]
    assert any("capacitor failed" in line for line in unusual)
    assert not any("usb" in line for line in unusual), "it was there before"
    run(["logs", "diagnose", "4711", "--store", str(store)])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.requires("chdb")
@pytest.mark.parametrize(
    ("after", "what"),
    [
        pytest.param(
            "step 1 loss 2.5\n" * 6, "program-error", id="slow ranks print the step that others printed before"
        ),
        pytest.param("".join(f"step {n} loss 2.5\n" for n in range(2, 9)), "not-in-the-logs", id="steps go on"),
        pytest.param("".join(f"Epoch 0 {n}/80 3.1it/s\n" for n in range(2, 9)), "not-in-the-logs", id="one epoch"),
    ],
)
def test_a_step_that_several_ranks_print_is_one_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], after: str, what: str
) -> None:
    place, store = tmp_path / "logs" / "gpu01", tmp_path / "store"
    place.mkdir(parents=True)
    out = place / "slurm-4711.out"
    out.write_text("step 1 loss 2.5\nsrun: error: gpu02: task 1: Segmentation fault\n" + after)
    os.utime(out, (1772449200, 1772449200))  # 2026-03-02T11:00:00Z
    (tmp_path / "sacct.txt").write_text(SACCT)
    assert ask(capsys, "import", "--store", store, "--by-folder", tmp_path / "logs")["exit"] == 0
    assert ask(capsys, "import", "--store", store, tmp_path / "sacct.txt")["exit"] == 0
    said = ask(capsys, "diagnose", "4711", "--store", store)["diagnosis"]
    assert (said["what"], said["at"]) == (what, "gpu02" if what == "program-error" else "")


ROOT = captures_root()
LOGS = sorted([*ROOT.glob("*/log.txt"), *ROOT.glob("*/tree/dev/kmsg")]) if ROOT else []


@pytest.mark.skipif(ROOT is None, reason="the captures are not here")
def test_kernel_logs_of_others_hold_no_cause_that_is_enough_by_itself() -> None:
    """Boots, reloads and revocations of real machines: none of them ended a job. A revoked function may be one."""
    seen = 0
    for path in LOGS:
        for text in path.read_text("utf-8", "backslashreplace").splitlines():
            seen += 1
            found = read(Line("n", 0, text, "dmesg_raw_CL"))
            if found is not None and found.signature.cls:
                assert found.signature.role != "cause", (path, text)
                assert found.signature.id in {"vf-away", "mlx5-link-down"}, (path, text)
    assert seen > 1000
