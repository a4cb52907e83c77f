"""Why a rank could not start, in words, and what to do: for whoever judges ranks of any stage. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Why(NamedTuple):
    """One reason: what it means, and what to type; `{python}` and `{nodes}` are filled in."""

    means: str
    remedy: str


WHY: Mapping[str, Why] = {
    "no-torch": Why(
        "torch cannot be imported by {python}",
        "fairlead exec -w '{nodes}' -- {python} -m pip install torch; or name the Python that has it: `python` in "
        "[[pool]], or another container image",
    ),
    "no-device": Why(
        "torch reaches no GPU",
        "fairlead exec -w '{nodes}' -- nvidia-smi -L; a torch built for this GPU and driver, and a container that is "
        "given the devices",
    ),
    "no-backend": Why(
        "torch lacks the backend that was asked for",
        "another `backend`, or a build of torch that has it; {python} -m torch.utils.collect_env shows what there is",
    ),
    "no-address": Why(
        "rank 0 cannot listen at its own address",
        "fairlead exec -w '{nodes}' -- ip -br address; the address that the probe found may have gone",
    ),
    "no-fairlead": Why(
        "{python} has not the fairlead that starts the run, with its train extra",
        "fairlead exec -w '{nodes}' -- {python} -m pip install 'fairlead[train]', of the same version",
    ),
    "no-rank": Why(
        "a process does not know which rank it is",
        "start ranks with srun or through fairlead: SLURM_PROCID or RANK must be set; a container must pass it on",
    ),
}
"""Word of `failed` -> its meaning."""


def explained(why: str, *, python: str, nodes: str) -> Why:
    """The words for a reason, filled in; one that is not known stands for itself."""
    known = WHY.get(why, Why(why, "fairlead exec -w '{nodes}' -- {python} -c 'import torch'"))
    return Why(*(text.format(python=python, nodes=nodes) for text in known))
