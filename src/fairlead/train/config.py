"""The configuration of one training run, a TOML file. Paths are seen from the file's folder.

Must not know: torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.spec.decode import decode_file
from fairlead.spec.problems import Problems
from fairlead.train.layout import ParamGroup

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]


class Model(Struct, frozen=True, kw_only=True):
    """What is trained."""

    path: str = ""
    """A Hugging Face model directory: `config.json`, and safetensors of any number and size."""
    init: Literal["weights", "random"] = "weights"
    """Begin with the directory's weights, or with random ones by the model's own rules."""
    compute: Literal["fp32", "bf16"] = "bf16"
    """What forward and backward compute in; moments are fp32 always."""
    parameters: Literal["fp32", "bf16"] = "fp32"
    """What parameters are kept in; with `bf16` two bytes less each, and updates are rounded by chance, without bias."""
    frozen: tuple[str, ...] = ()
    """Patterns of names of parameters that stay as they are: `model.embed_tokens.*`."""


class Lora(Struct, frozen=True, kw_only=True):
    """Adapters of low rank, which alone are trained; `train export` writes them as the peft library does."""

    rank: Natural = 0
    """Columns of A and rows of B; 0: no adapters, the whole model is trained."""
    alpha: Natural = 0
    """What adapters add is scaled by alpha / rank; 0: twice the rank."""
    dropout: Fraction = 0.0
    """Of what comes to an adapter."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """Last parts of the names of linear layers that get one."""


class Data(Struct, frozen=True, kw_only=True):
    """What it is trained on."""

    tokens: str = ""
    """A `.npy` file, int64 `[samples, tokens]`; it is mapped, never read whole. Or `text` instead."""
    text: str = ""
    """A JSONL file of `{"text"}`, `{"prompt", "completion"}` or `{"messages"}`; its tokens lie beside the store."""
    tokenizer: str = ""
    """A folder with the tokenizer of `text`; without it that of the model directory."""
    length: Annotated[int, Meta(ge=2)] = 2048
    """Tokens of a row made of `text`."""
    pack: bool = True
    """Several samples of `text` in a row, none of which sees another; else one a row, padded. A model of a family that
    is not known to keep them apart is refused."""
    prompts: Literal["masked", "learned"] = "masked"
    """Whether prompts, and what users say in messages, are targets too."""
    labels: str = ""
    """The same shape; -100 is no target. Without it every token is predicted from those before it."""
    attention_mask: str = ""
    """The same shape, 1 for real tokens and 0 for padding."""
    position_ids: str = ""
    """The same shape; where it begins anew another text does, packed into the same sample, and sees none before it.
    For families of models that keep such texts apart; others are refused. Not beside a mask."""
    order: Literal["file", "shuffled"] = "shuffled"
    """Samples as they come, or each epoch in another order that the seed decides."""


class Run(Struct, frozen=True, kw_only=True):
    """How long, and in what portions."""

    steps: Count = 100
    """Updates in all."""
    rows: Count = 1
    """Samples of a micro-batch."""
    accumulation: Count = 1
    """Micro-batches of a step; each layer sees all of them before the next layer."""
    seed: Natural = 0
    """Of first weights, order and dropout."""
    keep: Literal["disk", "memory", "auto"] = "disk"
    """Where the state lives: in the store, every step committed; or in host memory, with snapshots in the store. With
    `auto` the machine is measured for some seconds, and the planner places layers on a GPU, in memory or on disk."""
    store: str = "store"
    """The folder: 16 bytes a parameter and a slot more than layers, or two snapshots of 12 bytes a parameter."""
    save_every: Natural = 0
    """Where the state is kept in memory: steps between snapshots, and what a kill can cost; 0: at the end alone."""
    metrics: str = "metrics.jsonl"
    """One line a step; a run that is resumed goes on after its last committed step."""


class Optimizer(Struct, frozen=True, kw_only=True):
    """How gradients become updates: torch's fused AdamW or SGD."""

    kind: Literal["adamw", "sgd"] = "adamw"
    """`sgd` keeps its momentum where AdamW keeps `m`; the store has the same size."""
    lr: Positive = 1e-4
    """The highest learning rate."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: Positive = 1e-8
    momentum: Fraction = 0.9
    """Of SGD."""
    nesterov: bool = False
    """Of SGD; needs momentum."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.1
    """Of all parameters but those of `no_decay`."""
    no_decay: tuple[str, ...] = ("*norm*", "*.ln_*", "*bias")
    """Patterns of names of parameters without weight decay; `ln_1`, `ln_f` are the norms of GPT-2 and its kin."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """The rate after warm-up."""
    warmup: Natural = 0
    """Steps until the rate is at its highest."""
    floor: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The last rate, as a part of the highest."""
    clip: Annotated[float, Meta(ge=0)] = 1.0
    """The largest global norm of gradients; 0 clips nothing."""


class Memory(Struct, frozen=True, kw_only=True):
    """Where it is computed, and with how much at once."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; auto: the first GPU, else the CPU."""
    device_gib: Annotated[float, Meta(ge=0)] = 0.0
    """What may be taken of a GPU's memory; 0: all that is free. A plan that needs more is refused before it begins."""
    host_gib: Annotated[float, Meta(ge=0)] = 0.0
    """What may be taken of the host's memory beyond torch itself; 0: all that is free."""
    slots: Natural = 0
    """Layers whose weights are on the device at once; 0: three, or what fits of two and one."""
    ends: Literal["auto", "stay", "stream"] = "auto"
    """Embedding and head: they `stay` on the device, or `stream` through a slot of their own as layers do, with the
    same bits; `auto`: where they do not fit else."""
    head_tokens: Natural = 0
    """Rows of logits at a time; 0: all of a micro-batch, to the bit as without streaming."""


class Config(Struct, frozen=True, kw_only=True):
    """One training run."""

    model: Model = Model()
    lora: Lora = Lora()
    data: Data = Data()
    run: Run = Run()
    optimizer: Optimizer = Optimizer()
    memory: Memory = Memory()

    @property
    def groups(self) -> tuple[ParamGroup, ...]:
        """Parameter groups; the first match counts."""
        decay = self.optimizer.weight_decay
        none = self.optimizer.no_decay
        frozen = [ParamGroup(pattern, 0.0, trainable=False) for pattern in self.model.frozen]
        return (*frozen, *(ParamGroup(pattern, 0.0) for pattern in none), ParamGroup("*", decay))


def load(path: Path) -> Config:
    """Read a configuration. Raises SpecError with every problem, each with its line."""
    return decode_file(path, Config, checks=[_complete], what="training configuration").value


def _complete(config: Config, report: Problems) -> None:
    for key, name, value in (
        ("model", "path", config.model.path),
        ("data", "tokens", config.data.tokens or config.data.text),
    ):
        if not value:
            report((key,), "train/config", f"`{key}.{name}` is missing", hint=f'{name} = "..."')
    if config.data.text:
        for name in ("tokens", "labels", "attention_mask", "position_ids"):
            if getattr(config.data, name):
                said = f"`data.{name}` and `data.text` exclude each other"
                report(("data", name), "train/config", said, hint="name tokens, or texts that become tokens")
    if config.optimizer.kind == "sgd" and config.optimizer.nesterov and not config.optimizer.momentum:
        report(("optimizer", "nesterov"), "train/config", "`nesterov` needs momentum", hint="momentum = 0.9")
    if config.model.parameters == "bf16" and config.model.compute == "fp32":
        said = '`parameters = "bf16"` needs `compute = "bf16"`: there is nothing wider to compute with'
        report(("model", "parameters"), "train/config", said, hint='compute = "bf16"')
    if config.lora.rank and config.model.frozen:
        said = "`model.frozen` and `lora` exclude each other: with adapters all else is frozen"
        report(("model", "frozen"), "train/config", said, hint="leave it out")
    if config.lora.rank and not config.lora.targets:
        report(("lora", "targets"), "train/config", "`lora.targets` is empty", hint='targets = ["q_proj", "v_proj"]')
    if config.optimizer.warmup > config.run.steps:
        report(
            ("optimizer", "warmup"), "train/config", "`optimizer.warmup` is longer than the run", hint="make it shorter"
        )
