"""One block on one rank: time by kind of work, and stored activations by operator.

Arrays ``[R]`` run over ``RECOMPUTE_SETS``. Bytes per operator follow Korthikanti et al. 2022
(arXiv 2205.05198), section 4, generalised to grouped queries, gated MLPs, no dropout and flash
attention; which tensors a recomputed module drops follows Megatron-LM's ``--recompute-modules``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.configuration import RECOMPUTE_SETS
from ilp_parallel.costs import constants as c
from ilp_parallel.costs.hardware import exposed_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.costs.hardware import Group, Machine
    from ilp_parallel.costs.shapes import RankShapes
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one pass, by kind of work."""

    matmul_s: float = 0.0
    attention_s: float = 0.0
    memory_bound_s: float = 0.0
    tensor_traffic_s: float = 0.0  # what stays exposed

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))

    @property
    def compute_s(self) -> float:
        """Seconds without traffic."""
        return self.matmul_s + self.attention_s + self.memory_bound_s

    @property
    def total_s(self) -> float:
        """Seconds of everything."""
        return self.compute_s + self.tensor_traffic_s


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Bytes one block keeps for backward, per microbatch and rank."""

    block_input: float  # what full recomputation keeps
    norm_inputs: float
    norm_outputs: float  # inputs of the QKV and of the first MLP matmul
    qkv: float
    core_attention: float  # softmax and its dropout, or flash attention's log-sum-exp
    projection_input: float
    mlp_hidden: float  # inputs of the activation and of the second MLP matmul
    dropout_masks: float

    @property
    def total(self) -> float:
        """Bytes without any recomputation."""
        return (
            self.norm_inputs
            + self.norm_outputs
            + self.qkv
            + self.core_attention
            + self.projection_input
            + self.mlp_hidden
            + self.dropout_masks
        )

    def dropped(self, module: str) -> float:
        """Bytes a recomputed module does not keep (and rebuilds in backward)."""
        if module == "core_attn":
            return self.core_attention
        return self.norm_outputs if module == "layernorm" else self.mlp_hidden

    def kept(self, recompute: tuple[str, ...]) -> float:
        """Bytes kept when these modules are recomputed."""
        if "full" in recompute:
            return self.block_input
        return self.total - sum(self.dropped(module) for module in recompute)

    def rebuilt(self, recompute: tuple[str, ...]) -> float:
        """Bytes alive at once while one block is recomputed: one half of it at a time."""
        if "full" in recompute:
            return self.total
        inside = max((self.dropped(name) for name in recompute if name != "layernorm"), default=0.0)
        return inside + (self.norm_outputs / 2 if "layernorm" in recompute else 0.0)


@dataclass(frozen=True, slots=True)
class LayerPart:
    """All of a block that data parallelism and ZeRO do not touch."""

    forward: Work
    backward: Work  # without recomputation
    stored: StoredBytes
    recompute_s: FloatArray  # [R]
    recompute_flops: FloatArray  # [R] per rank and microbatch
    activation_bytes: FloatArray  # [R]
    transient_bytes: FloatArray  # [R] rebuilt tensors and working buffers of one block


@dataclass(frozen=True, slots=True)
class LayerCosting:
    """Prices one block for a fixed tensor degree, microbatch and sequence parallelism."""

    model: ModelSpec
    job: JobSpec
    machine: Machine
    shapes: RankShapes
    group: Group  # the tensor-parallel ranks
    microbatch: int
    sequence_parallel: bool

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch."""
        return self.microbatch * self.job.sequence_length

    @property
    def own_tokens(self) -> float:
        """Tokens a rank holds outside the tensor-parallel regions."""
        return self.tokens / (self.group.ranks if self.sequence_parallel else 1)

    @property
    def hidden_bytes(self) -> float:
        """Bytes of one hidden-size tensor of the whole microbatch, two bytes an element."""
        return 2.0 * self.tokens * self.model.hidden

    def part(self) -> LayerPart:
        """Everything about the block."""
        stored = self.stored()
        attention, mlp, norms = self._attention_half(), self._mlp_half(), self._norms()
        core = Work(attention_s=self._attention_s()[0])
        rest = Work(memory_bound_s=self._residual_s()[0])
        forward = attention + mlp + norms + rest
        modules = {"core_attn": core, "layernorm": norms, "mlp": mlp, "full": forward}
        flops = self._module_flops()
        working = self._working_bytes()
        return LayerPart(
            forward=forward,
            backward=self._backward(),
            stored=stored,
            recompute_s=_per_set(lambda r: sum(modules[name].total_s for name in r)),
            recompute_flops=_per_set(lambda r: sum(flops[name] for name in r)),
            activation_bytes=_per_set(stored.kept),
            transient_bytes=_per_set(lambda r: stored.rebuilt(r) + working),
        )

    def stored(self) -> StoredBytes:
        """Activation bytes by operator."""
        model, job, shapes = self.model, self.job, self.shapes
        saved = self.machine.matrix_bytes
        hidden = model.hidden * self.own_tokens
        scores = shapes.heads * job.sequence_length * self.tokens
        context = shapes.query * self.tokens
        if job.attention == "flash":
            core = 4.0 * shapes.heads * self.tokens
            projection_input = context * (2.0 if saved == 2 else 2.0 + saved)
        else:
            core = scores * (5.0 if model.dropout else 2.0)
            projection_input = context * float(saved)
        gate_copies = c.STORED_GATE_COPIES[job.stack] if model.gated_mlp else 0
        return StoredBytes(
            block_input=2.0 * hidden,
            norm_inputs=4.0 * hidden,
            norm_outputs=2.0 * saved * hidden,
            qkv=2.0 * (shapes.query + 2 * shapes.kv) * self.tokens,
            core_attention=core,
            projection_input=projection_input,
            mlp_hidden=self.tokens
            * (2.0 * shapes.ffn_in + saved * shapes.ffn + 2.0 * gate_copies * shapes.ffn),
            dropout_masks=2.0 * hidden if model.dropout else 0.0,
        )

    def _working_bytes(self) -> float:
        """Largest gradients alive inside one block's backward, and the gathered input."""
        shapes, job = self.shapes, self.job
        mlp = 2.0 * self.tokens * (shapes.ffn_in + shapes.ffn)
        attention = 2.0 * self.tokens * (2 * shapes.query + 2 * shapes.kv)
        if job.attention == "unfused":
            attention += 4.0 * shapes.heads * job.sequence_length * self.tokens
        return max(mlp, attention) + self.hidden_bytes

    def _matmuls(self) -> tuple[tuple[float, float], ...]:
        """``(columns, inner)`` of the four matmuls: QKV, projection, MLP in, MLP out."""
        shapes, hidden = self.shapes, self.model.hidden
        return (
            (shapes.query + 2 * shapes.kv, hidden),
            (hidden, shapes.query),
            (shapes.ffn_in, hidden),
            (hidden, shapes.ffn),
        )

    def _forward_matmul_s(self, columns: float, inner: float) -> float:
        return self.machine.matmul_s(self.tokens, columns, inner)

    def _half_traffic_s(self) -> float:
        """Forward traffic of one half: an all-reduce, or an all-gather and a reduce-scatter."""
        return self.group.all_reduce_s(self.hidden_bytes)

    def _attention_half(self) -> Work:
        qkv, projection = self._matmuls()[:2]
        return Work(
            matmul_s=self._forward_matmul_s(*qkv) + self._forward_matmul_s(*projection),
            attention_s=self._attention_s()[0],
            memory_bound_s=self._rotary_s(),
            tensor_traffic_s=self._half_traffic_s(),
        )

    def _mlp_half(self) -> Work:
        first, second = self._matmuls()[2:]
        moved = 2.0 * self.tokens * (self.shapes.ffn_in + self.shapes.ffn)
        return Work(
            matmul_s=self._forward_matmul_s(*first) + self._forward_matmul_s(*second),
            memory_bound_s=self.machine.stream_s(moved, 1),
            tensor_traffic_s=self._half_traffic_s(),
        )

    def _norms(self) -> Work:
        """Two norms, each reading and writing a hidden-size tensor."""
        moved = 2 * 4.0 * self.own_tokens * self.model.hidden
        return Work(memory_bound_s=self.machine.stream_s(moved, 2))

    def _residual_s(self) -> tuple[float, float]:
        """Bias, dropout and residual additions, twice: forward and backward seconds."""
        hidden = self.own_tokens * self.model.hidden
        mask = 1.0 if self.model.dropout else 0.0
        forward = self.machine.stream_s(2 * hidden * (6.0 + mask), 2)
        backward = self.machine.stream_s(2 * hidden * (6.0 + (4.0 + mask) * mask), 2)
        return forward, backward

    def _rotary_s(self) -> float:
        if self.model.learned_positions:
            return 0.0
        moved = 4.0 * self.tokens * (self.shapes.query + self.shapes.kv)
        return self.machine.stream_s(moved, 1)

    def _attention_s(self) -> tuple[float, float]:
        """Core attention: forward and backward seconds."""
        machine, shapes, length = self.machine, self.shapes, self.job.sequence_length
        full_flops = 4.0 * self.tokens * length * shapes.query
        launch = c.KERNEL_LAUNCH_S
        if self.job.attention == "flash":
            share = length / (length + c.FLASH_SEQUENCE_HALF)
            share *= min(1.0, self.model.head_dim / c.FLASH_HEAD_DIM_FULL) ** 0.25
            causal = full_flops / 2
            forward = causal / (machine.flash_forward_flops * share)
            backward = causal * c.FLASH_BACKWARD_FACTOR / (machine.flash_backward_flops * share)
            return forward + launch, backward + launch
        scores = float(shapes.heads * length * self.tokens)
        # bytes a score moves: write, softmax read + write, read by the second matmul; dropout
        # reads and writes once more and writes its mask
        dropout = 5.0 if self.model.dropout else 0.0
        matmuls = full_flops / machine.batched_flops
        forward = matmuls + machine.stream_s(scores * (8.0 + dropout), 3)
        # dP written, softmax backward reads two and writes one, two matmuls read it, one reads P
        backward = 2 * matmuls + machine.stream_s(scores * (14.0 + dropout), 5)
        return forward, backward

    def _backward(self) -> Work:
        """Backward of the block: both gradients of every matmul, and its traffic."""
        machine, tokens = self.machine, self.tokens
        input_gradients = [machine.matmul_s(tokens, k, n) for n, k in self._matmuls()]
        weight_gradients = [machine.matmul_s(k, n, tokens) for n, k in self._matmuls()]
        hidden = self.own_tokens * self.model.hidden
        norms = machine.stream_s(2 * 6.0 * hidden, 2)
        moved = 2.0 * tokens * (2 * self.shapes.ffn_in + self.shapes.ffn)
        activation = machine.stream_s(moved, 1)
        return Work(
            matmul_s=sum(input_gradients) + sum(weight_gradients),
            attention_s=self._attention_s()[1],
            memory_bound_s=norms + activation + self._residual_s()[1] + self._rotary_s(),
            tensor_traffic_s=self._backward_traffic_s(input_gradients, weight_gradients),
        )

    def _backward_traffic_s(self, input_s: list[float], weight_s: list[float]) -> float:
        """Exposed backward traffic of the two column-parallel and two row-parallel matmuls.

        Reducing the input gradient hides behind the weight gradient, and with sequence parallelism
        regathering the input hides behind the input gradient; gathering the output gradient of a
        row-parallel matmul hides behind nothing (Korthikanti et al. 2022, section 4.2.2).
        """
        columns = (0, 2)
        gather = self.group.gather_s(self.hidden_bytes)
        if not self.sequence_parallel:
            return sum(exposed_s(2.0 * gather, weight_s[i]) for i in columns)
        return sum(
            gather + exposed_s(gather, input_s[i]) + exposed_s(gather, weight_s[i]) for i in columns
        )

    def _module_flops(self) -> dict[str, float]:
        """Matrix FLOPs of each module's forward, attention counted in full."""
        products = [2.0 * self.tokens * n * k for n, k in self._matmuls()]
        attention = 4.0 * self.tokens * self.job.sequence_length * self.shapes.query
        mlp = products[2] + products[3]
        full = sum(products) + attention
        return {"core_attn": attention, "layernorm": 0.0, "mlp": mlp, "full": full}


def _per_set(value: Callable[[tuple[str, ...]], float]) -> FloatArray:
    return np.array([value(modules) for modules in RECOMPUTE_SETS], dtype=np.float64)
