"""What the words of a row mean: devices, precisions, kernels, networks and model families.

Sources write the same thing in many ways. Known spellings are in ``conventions.py``; the rules here
read others by what they contain, and refuse what they cannot read.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ilp_parallel.measured import conventions as known
from ilp_parallel.specs.job import FLASH
from ilp_parallel.specs.readers import load_model

if TYPE_CHECKING:
    from ilp_parallel.measured.conventions import Family, Habit
    from ilp_parallel.specs.job import Attention, NormKernel, Precision
    from ilp_parallel.specs.model import ModelSpec


class NotCoveredError(Exception):
    """A run that the cost model does not describe; the message says why."""


_GBIT_PER_NODE = re.compile(r"(\d+(?:\.\d+)?)\s*Gb(?:ps|/s|it/s)?[^,;]*(?:/|per )\s*node", re.I)
_ADAPTERS = re.compile(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*Gb", re.I)
_FLASH = ("flash", "sdpa", "cudnn", "triton", "transformer engine", "te ")
_WRITTEN_OUT = ("unfused", "fused softmax", "megatron softmax")
_EAGER = ("eager", "naive", "math", "torch")


def habit_of(framework: str) -> Habit:
    """How a framework was used where its rows do not say.

    Raises
    ------
    NotCoveredError
        If no part of its name is known.
    """
    for name, habit in known.HABITS:
        if name.lower() in framework.lower():
            return habit
    raise NotCoveredError(f"framework {framework}")


def device_of(gpu: str, memory_gb: float | None) -> str:
    """Name of our device.

    Raises
    ------
    NotCoveredError
        If we have none.
    """
    memory = None if memory_gb is None else int(memory_gb)
    for name in sorted({name for name, _ in known.DEVICES}, key=len, reverse=True):
        if name in gpu.upper():
            return known.DEVICES.get((name, memory)) or known.DEVICES[name, None]
    raise NotCoveredError(f"device {gpu}")


def family_of(family: str, model: str, gated: bool) -> Family:
    """Parts of a block that shapes do not tell: by family, by model name, or by its MLP."""
    if family in known.FAMILIES:
        return known.FAMILIES[family]
    named = (found for name, found in known.NAMED_FAMILIES if name in model.lower())
    return next(named, known.LLAMA if gated else known.GPT)


def mixture_of(name: str) -> ModelSpec:
    """The preset of a model with experts; what is said in brackets may change it.

    Raises
    ------
    NotCoveredError
        If there is none, or tokens beyond the capacity of an expert are dropped.
    """
    plain, _, remark = name.lower().partition("(")
    preset = known.MIXTURES.get(plain.strip())
    if preset is None:
        raise NotCoveredError("moe model without a preset")
    if "tokendrop" in remark:
        raise NotCoveredError("tokens dropped")
    model = load_model(preset)
    if "w/o mtp" not in remark:
        return model
    order = tuple(index for index in model.order if not model.kinds[index].predicts)
    return replace(model, layers=len(order), kinds=model.kinds[: max(order) + 1], order=order)


def precision_of(text: str | None, habit: Habit) -> Precision:
    """The precision recipe.

    Raises
    ------
    NotCoveredError
        Where nothing is said, or what is said is not modelled.
    """
    name = (text or "").lower()
    if name in known.PRECISIONS:
        return known.PRECISIONS[name]
    if "fp8" in name and "fp4" not in name:
        return habit.fp8
    if name in ("bf16", "bfloat16", "bf16-mixed"):
        return habit.bf16
    if name in ("float16", "half", "fp16-mixed"):
        return "megatron-fp16"
    raise NotCoveredError(f"precision {text}")


def kernels_of(text: str | None, habit: Habit) -> tuple[Attention, NormKernel]:
    """Attention and norm kernels.

    Raises
    ------
    NotCoveredError
        If the words say nothing known.
    """
    if text is None:
        return habit.attention, habit.norm_kernel
    if text in known.ATTENTION:
        return known.ATTENTION[text]
    name = text.lower()
    if any(word in name for word in _WRITTEN_OUT):
        return "unfused", habit.norm_kernel
    if any(word in name for word in _FLASH):
        flash = habit.attention in FLASH
        return habit.attention if flash else "flash", habit.norm_kernel
    if any(word in name for word in _EAGER):
        return "eager", habit.norm_kernel
    raise NotCoveredError(f"attention kernel {text}")


def network_bytes_per_s(text: str | None, devices_per_node: int) -> float | None:
    """Bandwidth per device and direction; None where the words state none."""
    if text is None:
        return None
    if text in known.NETWORKS_GB_S:
        return known.NETWORKS_GB_S[text] * 1e9
    adapters = _ADAPTERS.search(text)
    if adapters:
        gbit = float(adapters[1]) * float(adapters[2])
    else:
        node = _GBIT_PER_NODE.search(text)
        if node is None:
            return None
        gbit = float(node[1])
    return gbit * 1e9 / 8 / devices_per_node
