"""One block on one rank: time by kind of work, and stored activations by operator.

Arrays ``[R]`` run over ``RECOMPUTE_SETS``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.configuration import RECOMPUTE_SETS
from ilp_parallel.costs import constants as c
from ilp_parallel.costs.activations import ActivationCosting, StoredBytes
from ilp_parallel.specs.job import FLASH

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
    context_traffic_s: float = 0.0  # what stays exposed
    kernels: float = 0.0  # that the host issues one by one

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))

    @property
    def compute_s(self) -> float:
        """Seconds without traffic."""
        return self.matmul_s + self.attention_s + self.memory_bound_s

    @property
    def device_s(self) -> float:
        """Seconds of everything on the device."""
        return self.compute_s + self.tensor_traffic_s + self.context_traffic_s

    def launch_s(self, host_s: float) -> float:
        """Seconds the device waits for a host that needs ``host_s`` per kernel."""
        return max(0.0, self.kernels * host_s - self.device_s)


@dataclass(frozen=True, slots=True)
class LayerPart:
    """All of a block that data parallelism and ZeRO do not touch. The host's gaps are included."""

    forward: Work
    backward: Work  # without recomputation
    forward_s: float
    backward_s: float  # without recomputation
    stored: StoredBytes
    recompute_s: FloatArray  # [R]
    recompute_flops: FloatArray  # [R] per rank and microbatch
    activation_bytes: FloatArray  # [R]
    transient_bytes: FloatArray  # [R] rebuilt tensors and working buffers of one block


@dataclass(frozen=True, slots=True)
class LayerCosting:
    """Prices one block for a fixed split of its work: tensor, context, microbatch, sequence."""

    model: ModelSpec
    job: JobSpec
    machine: Machine
    shapes: RankShapes
    group: Group  # the tensor-parallel ranks
    ring: Group  # the context-parallel ranks
    microbatch: int
    sequence_parallel: bool

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on a rank (context parallelism divides them)."""
        return -(-self.microbatch * self.job.sequence_length // self.ring.ranks)

    @property
    def own_tokens(self) -> float:
        """Tokens a rank holds outside the tensor-parallel regions."""
        return self.tokens / (self.group.ranks if self.sequence_parallel else 1)

    @property
    def hidden_bytes(self) -> float:
        """Bytes of one hidden-size tensor of the whole microbatch, two bytes an element."""
        return 2.0 * self.tokens * self.model.hidden

    @property
    def activations(self) -> ActivationCosting:
        """What the block keeps."""
        return ActivationCosting(
            model=self.model,
            job=self.job,
            shapes=self.shapes,
            matrix_bytes=self.machine.matrix_bytes,
            tokens=self.tokens,
            own_tokens=self.own_tokens,
        )

    def part(self) -> LayerPart:
        """Everything about the block."""
        costing = self.activations
        stored, working = costing.stored(), costing.working_bytes()
        attention, mlp, norms = self._attention_half(), self._mlp_half(), self._norms()
        forward = attention + mlp + norms + self._residuals()[0]
        backward = self._backward()
        core = self._core_attention()[0]
        modules = {"core_attn": core, "layernorm": norms, "mlp": mlp, "full": forward}
        flops = self._module_flops()
        return LayerPart(
            forward=forward,
            backward=backward,
            forward_s=self.seconds(forward),
            backward_s=self.seconds(backward),
            stored=stored,
            recompute_s=_per_set(lambda r: sum(self.seconds(modules[name]) for name in r)),
            recompute_flops=_per_set(lambda r: sum(flops[name] for name in r)),
            activation_bytes=_per_set(stored.kept),
            transient_bytes=_per_set(lambda r: stored.rebuilt(r) + working),
        )

    def seconds(self, work: Work) -> float:
        """Seconds of a pass: the device's, the host's where it is slower, and stragglers."""
        machine = self.machine
        return (work.device_s + work.launch_s(machine.rates.host_s)) * machine.straggling

    def _stream(self, traffic_bytes: float, kernels: int) -> Work:
        """Memory-bound kernels."""
        seconds = self.machine.stream_s(traffic_bytes, kernels)
        return Work(memory_bound_s=seconds, kernels=kernels)

    def _matmuls(self) -> tuple[tuple[float, float], ...]:
        """``(columns, inner)`` of the four matmuls: QKV, projection, MLP in, MLP out."""
        shapes, hidden = self.shapes, self.model.hidden
        return (
            (shapes.query + 2 * shapes.kv, hidden),
            (hidden, shapes.query),
            (shapes.ffn_in, hidden),
            (hidden, shapes.ffn),
        )

    def _forward_matmuls(self, first: int) -> Work:
        """The two matmuls of a half, the casts of their inputs, and the half's traffic.

        Traffic: an all-reduce, or an all-gather and a reduce-scatter.
        """
        pair = self._matmuls()[first : first + 2]
        seconds = sum(self.machine.matmul_s(self.tokens, *shape) for shape in pair)
        exposed = self.group.all_reduce_s(self.hidden_bytes)
        work = Work(matmul_s=seconds, tensor_traffic_s=exposed, kernels=2 + (exposed > 0))
        return work + self._casts(sum(inner for _, inner in pair))

    def _casts(self, elements: float) -> Work:
        """Fp8 copies of the inputs of matmuls, plain and transposed: read 2, write 1 + 1."""
        if self.machine.matrix_bytes == 2:
            return Work()
        return self._stream(4.0 * self.tokens * elements, 2)

    def _attention_half(self) -> Work:
        return self._forward_matmuls(0) + self._core_attention()[0] + self._rotary()

    def _mlp_half(self) -> Work:
        moved = 2.0 * self.tokens * (self.shapes.ffn_in + self.shapes.ffn)
        return self._forward_matmuls(2) + self._stream(moved, 1)

    def _norms(self, backward: bool = False) -> Work:
        """Two norms, each reading and writing a hidden-size tensor.

        Eager ones run in fp32, an operation at a time: to fp32 (2 + 4), square (4 + 4), mean (4),
        scale (4 + 4), back (4 + 2), weight (2 + 2) bytes; about twice that backward.
        """
        bytes_each, kernels = (6.0, 2) if backward else (4.0, 2)
        if self.job.norm_kernel == "eager":
            bytes_each, kernels = (72.0, 20) if backward else (36.0, 12)
        return self._stream(2 * bytes_each * self.own_tokens * self.model.hidden, kernels)

    def _residuals(self) -> tuple[Work, Work]:
        """Bias, dropout and residual additions, twice: forward and backward."""
        hidden = self.own_tokens * self.model.hidden
        mask = 1.0 if self.model.dropout else 0.0
        forward = self._stream(2 * hidden * (6.0 + mask), 2)
        return forward, self._stream(2 * hidden * (6.0 + (4.0 + mask) * mask), 2)

    def _rotary(self) -> Work:
        if self.model.learned_positions:
            return Work()
        return self._stream(4.0 * self.tokens * (self.shapes.query + self.shapes.kv), 1)

    def _core_attention(self) -> tuple[Work, Work]:
        """Core attention: forward and backward, the ring's exposed traffic included."""
        flash = self.job.attention in FLASH
        forward, backward = self._flash() if flash else self._scores()
        keys = 2.0 * 2 * self.shapes.kv * self.tokens * self.ring.ranks  # all keys and values
        ring = self.ring.gather_s(keys)
        exposed = self.machine.exposed_s
        hiding = forward.compute_s, backward.compute_s
        return (
            forward + Work(context_traffic_s=exposed(ring, hiding[0])),
            backward + Work(context_traffic_s=exposed(2 * ring, hiding[1])),
        )

    def _flash(self) -> tuple[Work, Work]:
        """Flash attention; a ring calls it once per block of keys, each of a rank's length."""
        machine, length, calls = self.machine, self.job.sequence_length, self.ring.ranks
        block = length / calls
        share = block / (block + c.FLASH_SEQUENCE_HALF)
        share *= min(1.0, self.model.head_dim / c.FLASH_HEAD_DIM_FULL) ** 0.25
        causal = 2.0 * self.tokens * length * self.shapes.query
        forward = causal / (machine.flash_forward_flops * share)
        backward = causal * c.FLASH_BACKWARD_FACTOR / (machine.flash_backward_flops * share)
        launch = calls * c.KERNEL_LAUNCH_S
        return (
            Work(attention_s=forward + launch, kernels=calls),
            Work(attention_s=backward + launch, kernels=2 * calls),
        )

    def _scores(self) -> tuple[Work, Work]:
        """Two matmuls around a softmax, every score written out.

        Bytes a score moves, fused: written, softmax read + write, read by the second matmul: 8;
        dropout reads and writes once more and writes its mask: 5. Backward: dP written, softmax
        reads two and writes one, two matmuls read it, one reads P: 14. Eager kernels scale, mask
        and cast to fp32 and back in between: 18 more, backward 16.
        """
        machine, shapes, length = self.machine, self.shapes, self.job.sequence_length
        scores = float(shapes.heads * length * self.tokens)
        aligned = 1.0 if self.model.head_dim % 8 == 0 else c.MISALIGNED_SHARE
        products = 4.0 * self.tokens * length * shapes.query / (machine.batched_flops * aligned)
        dropout = 5.0 if self.model.dropout else 0.0
        eager = self.job.attention == "eager"
        forward = machine.stream_s(scores * (8.0 + dropout + 18.0 * eager), 3 + 5 * eager)
        backward = machine.stream_s(scores * (14.0 + dropout + 16.0 * eager), 5 + 5 * eager)
        return (
            Work(attention_s=products + forward, kernels=5 + 5 * eager),
            Work(attention_s=2 * products + backward, kernels=8 + 5 * eager),
        )

    def _backward(self) -> Work:
        """Backward of the block: both gradients of every matmul, and its traffic."""
        machine, tokens = self.machine, self.tokens
        input_gradients = [machine.matmul_s(tokens, k, n) for n, k in self._matmuls()]
        weight_gradients = [machine.matmul_s(k, n, tokens) for n, k in self._matmuls()]
        moved = 2.0 * tokens * (2 * self.shapes.ffn_in + self.shapes.ffn)
        traffic = self._backward_traffic_s(input_gradients, weight_gradients)
        products = Work(
            matmul_s=sum(input_gradients) + sum(weight_gradients),
            tensor_traffic_s=traffic,
            kernels=12 + 2 * (traffic > 0),
        )
        # each weight gradient is written, read and added to its sum
        moved_each = 4.0 + 2.0 * c.RECIPES[self.job.precision].gradient
        summed = self._stream(moved_each * self.shapes.layer_matrix_parameters, 0)
        casts = self._casts(sum(n for n, _ in self._matmuls()))
        others = self._norms(backward=True) + self._stream(moved, 1) + self._rotary()
        return products + summed + casts + others + self._core_attention()[1] + self._residuals()[1]

    def _backward_traffic_s(self, input_s: list[float], weight_s: list[float]) -> float:
        """Exposed backward traffic of the two column-parallel and two row-parallel matmuls.

        Reducing the input gradient hides behind the weight gradient, and with sequence parallelism
        regathering the input hides behind the input gradient; gathering the output gradient of a
        row-parallel matmul hides behind nothing (Korthikanti et al. 2022, section 4.2.2).
        """
        columns, exposed = (0, 2), self.machine.tensor_exposed_s
        gather = self.group.gather_s(self.hidden_bytes)
        if not self.sequence_parallel:
            return sum(exposed(2.0 * gather, weight_s[i]) for i in columns)
        return sum(
            gather + exposed(gather, input_s[i]) + exposed(gather, weight_s[i]) for i in columns
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
