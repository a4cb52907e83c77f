"""What `[slurm]` may hold: nothing of it becomes a line of the script or a second option."""

from __future__ import annotations

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.slurm import Ask, script_text
from fairlead.errors import SchedulerError, SpecError
from fairlead.spec.loader import read

FILE = """schema = 1
[[pool]]
name = "p"
size = "other"
nodes = "n[1-4]"
[access]
via = "slurm"
[slurm]
{}
"""


@pytest.fixture
def problems(tmp_path):
    """Line, code and message of each problem of a file with this setting."""

    def of(setting):
        path = tmp_path / "cluster.toml"
        path.write_text(FILE.format(setting))
        try:
            read(path, environ={})
        except SpecError as error:
            return [(p.line, p.code, p.message) for p in error.problems]
        return []

    return of


@pytest.mark.parametrize(
    "setting",
    [
        'partition = "gpu\\n#SBATCH --uid=0"',
        'account = "a\\rb"',
        'reservation = "r\\u2028s"',
        'partition = "gpu --uid=0"',
        'partition = "--uid=0"',
        'account = "$(id)"',
        'options = ["--mem=0\\nrm -rf /tmp/x"]',
        'options = ["exclusive"]',
        'options = ["--nodelist=n1"]',
        'options = ["-w n1"]',
        'options = ["-N2"]',
        'options = ["--time=5"]',
        'step_options = ["--exclude=n1"]',
        'step_options = ["--x\\u0000"]',
        'container = "img\\n"\ncontainer_runtime = "pyxis"',
        'container_mounts = ["/a:/b,/c:/d"]',
        'container_mounts = ["/a:b"]',
        'container_mounts = ["/a /b"]',
        'container_mounts = [""]',
    ],
)
def test_what_is_not_well_formed_is_refused_with_its_line(problems, setting):
    ((line, code, message),) = problems(setting)
    # control characters other than a line break are refused in every text of the file
    assert (line, code) in {(9, "cluster/slurm-setting"), (9, "spec/bad-text")}
    assert "\n" not in message


@pytest.mark.parametrize(
    "setting",
    [
        'partition = "gpu,hpc_2"\naccount = "team-a"\nreservation = "maint.1"',
        'options = ["--exclusive", "--mem=0", "-C h100", "--comment=for the gate", "--gres=gpu:8"]',
        'step_options = ["--network=x", "-v"]',
        'container = "nvcr.io#nvidia/x:25.01"\ncontainer_runtime = "pyxis"\ncontainer_mounts = ["/a:/b:ro+nodev"]',
        'container = "/my image.sif"\ncontainer_runtime = "apptainer"\ncontainer_mounts = ["/data", "tmpfs:/scratch"]',
    ],
)
def test_what_people_write_is_taken(problems, setting):
    assert problems(setting) == []


def test_an_ask_made_by_hand_is_held_to_the_same(tmp_path):
    for ask in (Ask(partition="gpu\nrm -rf /"), Ask(options=("--mem=0\necho hello",)), Ask(account="a b")):
        with pytest.raises(SchedulerError) as caught:
            script_text(ask, NodeSet("n1"), "fairlead-1a2b", tmp_path / "x.sbatch")
        assert caught.value.code == "cluster/slurm-setting"


def test_a_pools_own_container_is_one_line(problems):
    text = 'container_runtime = "pyxis"\n[[pool]]\nname = "q"\nsize = "other"\nnodes = "m1"\ncontainer = "a\\nb"'
    assert [(line, code) for line, code, _ in problems(text)] == [(14, "cluster/slurm-setting")]


def test_a_folder_with_a_line_break_in_its_name_adds_no_line_to_the_script(tmp_path):
    plain = script_text(Ask(), NodeSet("n1"), "fairlead-1a2b", tmp_path / "x.sbatch")
    for evil in ("a\n#SBATCH --uid=0\n", "a\r#SBATCH --uid=0", "a\u2028#SBATCH --uid=0", "a\x85#SBATCH --x"):
        text = script_text(Ask(), NodeSet("n1"), "fairlead-1a2b", tmp_path / evil / "x.sbatch")
        assert len(text.splitlines()) == len(plain.splitlines())
        assert sum(line.lstrip().startswith("#SBATCH") for line in text.splitlines()) == plain.count("#SBATCH")
