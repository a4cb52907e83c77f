"""What a job needs: memory, GPUs, bytes a second. Arithmetic over `[plan]` and numbers.toml; nothing is guessed.

A number that is not given stays None, and whoever judges by it says that it was not given.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources

import msgspec
from msgspec import Struct

from fairlead.plan.table import Job, PlanTable
from fairlead.records.limit import Judges, Limit
from fairlead.spec.model import Spec

_STATE = {"training": "train", "finetuning": "train", "inference": "serve"}


class Number(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of numbers.toml."""

    value: float
    unit: str
    judges: Judges
    what: str
    source: str
    code: str


@functools.cache
def numbers() -> Mapping[str, Number]:
    """All of numbers.toml by name."""
    text = resources.files("fairlead.plan.choice").joinpath("numbers.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Number])


def limits(spec: Spec) -> Iterator[Limit]:
    """For `fairlead limits`: every number of the choice, the cluster file's own before numbers.toml."""
    own = spec.table(PlanTable).numbers
    for name, number in numbers().items():
        yield Limit(
            name=name,
            what=number.what,
            judges=number.judges,
            value=own.get(name, number.value),
            unit=number.unit,
            source="the cluster file" if name in own else number.source,
            key=f"plan.numbers.{name}",
            code=number.code,
        )


class Need(Struct, frozen=True, kw_only=True):
    """What is asked for, in units of the names."""

    job: Job = "training"
    parameters: float | None = None
    """How many, not billions."""
    gpus: int | None = None
    nodes: int | None = None
    """As many as the cluster file has; None where it has no say."""
    gpu_vendor: str = "any"
    rdma_aware: bool = True
    region: str = ""
    prices: Mapping[str, float] = {}
    """VM size in small letters -> price of one VM for an hour."""
    budget_per_hour: float | None = None
    checkpoint_s: float = 60.0
    dataset_tib: float = 0.0
    dataset_mbs: float = 0.0
    filesystem_tib: float = 0.0
    numbers: Mapping[str, float] = {}

    def number(self, name: str) -> float:
        """A number in force."""
        return self.numbers.get(name, numbers()[name].value)

    def source(self, name: str) -> str:
        """Where a number in force comes from."""
        return "the cluster file" if name in self.numbers else numbers()[name].source

    @property
    def bytes_per_parameter(self) -> str:
        """The name of the number that says what a parameter takes in GPU memory; empty where no model is held."""
        kind = _STATE.get(self.job, "")
        return f"{kind}_bytes_per_parameter" if kind else ""

    @property
    def state_bytes(self) -> float | None:
        """GPU memory that the model takes over all GPUs; None where no model is named."""
        if self.parameters is None or not self.bytes_per_parameter:
            return None
        return self.parameters * self.number(self.bytes_per_parameter)

    @property
    def checkpoint_bytes(self) -> float | None:
        """Size of one checkpoint; None where none is written."""
        if self.parameters is None or self.job not in ("training", "finetuning"):
            return None
        return self.parameters * self.number("checkpoint_bytes_per_parameter")

    @property
    def gradient_bytes(self) -> float | None:
        """Size of all gradients; None where there are none."""
        if self.parameters is None or self.job not in ("training", "finetuning"):
            return None
        return self.parameters * self.number("gradient_bytes_per_parameter")


def need_of(said: PlanTable, *, nodes: int | None = None) -> Need:
    """What `[plan]` asks for."""
    return Need(
        job=said.job,
        parameters=None if said.parameters_b is None else said.parameters_b * 1e9,
        gpus=said.gpus,
        nodes=nodes,
        gpu_vendor=said.gpu_vendor,
        rdma_aware=said.rdma_aware,
        region=said.region,
        prices={name.casefold(): price for name, price in said.prices.items()},
        budget_per_hour=said.budget_per_hour,
        checkpoint_s=said.checkpoint_s,
        dataset_tib=said.dataset_tib,
        dataset_mbs=said.dataset_mbs,
        filesystem_tib=said.filesystem_tib,
        numbers=said.numbers,
    )
