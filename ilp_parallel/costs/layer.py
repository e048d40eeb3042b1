"""One block on one rank: time by kind of work, and stored activations by operator.

A block runs its parts one after the other: what joins two inputs (a prediction block), the mixer of
tokens, attention over an encoder, the MLP or the shared experts, the routed experts. Each but the
last is a tensor-parallel region of its own (:class:`~ilp_parallel.costs.shapes.Part`). Arrays
``[R]`` run over ``RECOMPUTE_SETS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.configuration import RECOMPUTE_SETS
from ilp_parallel.costs import constants as c
from ilp_parallel.costs.activations import ActivationCosting, StoredBytes
from ilp_parallel.costs.experts import ExpertCosting
from ilp_parallel.costs.mixing import MixingCosting
from ilp_parallel.costs.work import NO_WORK, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.costs.hardware import AllToAll, Group, Machine
    from ilp_parallel.costs.shapes import Part, RankShapes
    from ilp_parallel.costs.work import Passes
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec

FloatArray = npt.NDArray[np.float64]


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
class ExpertGroups:
    """Ranks among which the routed experts of a block are split."""

    exchange: AllToAll  # the expert-parallel ranks
    inside: Group  # the expert-tensor ranks


@dataclass(frozen=True, slots=True)
class LayerCosting:
    """Prices one block for a fixed split of its work: tensor, context, microbatch, sequence."""

    model: ModelSpec  # with blocks of one kind
    job: JobSpec
    machine: Machine
    shapes: RankShapes
    group: Group  # the tensor-parallel ranks
    ring: Group  # the context-parallel ranks
    experts: ExpertGroups | None  # None: the block has no routed experts
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
            routed=self._routed,
        )

    @property
    def _routed(self) -> ExpertCosting | None:
        """The routed experts, if the block has any."""
        experts = self.model.experts
        if experts is None or self.experts is None:
            return None
        return ExpertCosting(
            experts=experts,
            shapes=self.shapes,
            machine=self.machine,
            gradient_bytes=c.RECIPES[self.job.precision].gradient,
            frozen=self._frozen,
            hidden=self.model.hidden,
            own_tokens=self.own_tokens,
            exchange=self.experts.exchange,
            inside=self.experts.inside,
        )

    @property
    def _mixing(self) -> MixingCosting:
        return MixingCosting(
            self.model, self.job, self.machine, self.shapes, self.tokens, self.ring
        )

    def own_passes(self) -> Passes:
        """Forward and backward of all but the routed experts."""
        core = self._mixing.passes()
        forward = self._attention_half(core[0]) + self._mlp() + self._norms()
        loss = self._own_loss()
        backward = self._backward(core[1])
        return forward + self._residuals()[0] + loss[0], backward + loss[1]

    def routed_passes(self) -> Passes:
        """Forward and backward of the routed experts: router, exchange, products."""
        routed = self._routed
        return NO_WORK if routed is None else (routed.forward(), routed.backward())

    def part(self, own: Passes | None = None, routed: Passes | None = None) -> LayerPart:
        """Everything about the block.

        ``own`` and ``routed`` are what :meth:`own_passes` and :meth:`routed_passes` said, where
        that is known.
        """
        own, routed = own or self.own_passes(), routed or self.routed_passes()
        costing = self.activations
        stored, working = costing.stored(), costing.working_bytes()
        forward, backward = own[0] + routed[0], own[1] + routed[1]
        recomputed = self._recomputed_s(routed[0])
        flops = self._module_flops()
        return LayerPart(
            forward=forward,
            backward=backward,
            forward_s=self.machine.pass_s(forward),
            backward_s=self.machine.pass_s(backward),
            stored=stored,
            recompute_s=_per_set(lambda r: sum(recomputed[name] for name in r)),
            recompute_flops=_per_set(lambda r: sum(flops[name] for name in r)),
            activation_bytes=_per_set(stored.kept),
            transient_bytes=_per_set(lambda r: stored.rebuilt(r) + working),
        )

    def _recomputed_s(self, routed: Work) -> dict[str, float]:
        """Seconds that each module takes again; a loss is never computed twice."""
        core, mlp, norms = self._mixing.passes()[0], self._mlp(), self._norms()
        block = self._attention_half(core) + mlp + norms + self._residuals()[0] + routed
        modules = {"core_attn": core, "layernorm": norms, "mlp": mlp + routed, "full": block}
        return {name: self.machine.pass_s(work) for name, work in modules.items()}

    def head(self) -> Passes:
        """Final norm, what transforms its output, output matrix and loss: forward and backward."""
        machine, group, hidden = self.machine, self.group, self.model.hidden
        tokens, own, vocab = self.tokens, self.own_tokens, self.shapes.vocab
        transforms = self.model.output_transform
        transform_s = machine.matmul_s(own, hidden, hidden) if transforms else 0.0
        scores = float(tokens) * vocab
        gather = group.gather_s(self.hidden_bytes) if self.sequence_parallel else 0.0
        statistics = 3 * group.all_reduce_s(4.0 * tokens)  # maximum, target logit, sum
        forward = Work(
            matmul_s=machine.matmul_s(tokens, vocab, hidden) + transform_s,
            # cast 2 + 4; maximum 4; exponential 8; sum 4: bytes per logit
            memory_bound_s=machine.stream_s(4.0 * own * hidden, 1)
            + machine.stream_s(scores * 22.0, 4),
            tensor_traffic_s=statistics + gather,
        )
        input_s = machine.matmul_s(tokens, hidden, vocab)
        weight_s = 0.0 if self._frozen else machine.matmul_s(hidden, vocab, tokens)
        backward = Work(
            matmul_s=input_s + weight_s + 2 * transform_s,
            # gradient of the loss in place 8, cast 4 + 2: bytes per logit
            memory_bound_s=machine.stream_s(scores * 14.0, 2)
            + machine.stream_s(6.0 * own * hidden, 1),
            tensor_traffic_s=self._column_traffic_s(self.hidden_bytes, input_s, weight_s),
        )
        return forward, backward

    def _own_loss(self) -> Passes:
        """Embedding of the tokens to come and loss of a block that predicts; nothing of others."""
        if not self.model.predicts:
            return NO_WORK
        forward, backward = self.head()
        lookup = self._stream(4.0 * self.tokens * self.model.hidden, 1)
        if self._frozen:
            return forward + lookup, backward
        # read the output gradient; read and write fp32 rows of the weight gradient
        return forward + lookup, backward + self._stream(12.0 * self.tokens * self.model.hidden, 2)

    def _stream(self, traffic_bytes: float, kernels: int) -> Work:
        """Memory-bound kernels."""
        seconds = self.machine.stream_s(traffic_bytes, kernels)
        return Work(memory_bound_s=seconds, kernels=kernels)

    def _rows(self, part: Part) -> list[tuple[float, int, int]]:
        """Rows, columns and inner dimension of every matmul of a part; adapters come last."""
        own = [(self.own_tokens, n, k) for n, k in part.own]
        others = (*part.matrices[len(part.own) :], *part.adapters)
        return own + [(float(self.tokens), n, k) for n, k in others]

    @property
    def _frozen(self) -> bool:
        """Whether adapters alone are trained."""
        return self.job.task == "lora"

    def _forward_part(self, part: Part) -> Work:
        """The matmuls of a part, the casts of their inputs, and its traffic.

        Traffic: an all-reduce, or an all-gather and a reduce-scatter. Without sequence parallelism
        nothing is gathered: all ranks hold the same tensors, and the output is all-reduced.
        """
        products = self._rows(part)
        seconds = sum(self.machine.matmul_s(*product) for product in products)
        leaving = self.group.gather_s(self.hidden_bytes)
        entering = leaving
        if self.sequence_parallel:
            entering = self.group.gather_s(2.0 * self.tokens * part.gathered)
        exposed = entering + leaving
        work = Work(
            matmul_s=seconds, tensor_traffic_s=exposed, kernels=len(products) + (exposed > 0)
        )
        return work + self._casts(sum(rows * inner for rows, _, inner in products))

    def _casts(self, elements: float) -> Work:
        """Fp8 copies of the inputs of matmuls, plain and transposed: read 2, write 1 + 1."""
        if self.machine.matrix_bytes == 2:
            return Work()
        return self._stream(4.0 * elements, 2)

    def _attention_half(self, core: Work) -> Work:
        """All that comes before the MLP."""
        shapes = self.shapes
        work = Work()
        for part in (shapes.joined, shapes.mixer, shapes.crossing):
            if part is not None:
                work += self._forward_part(part)
        return work + core + self._rotary() + self._head_norms(4.0)

    def _mlp(self) -> Work:
        """MLP or shared experts."""
        if self.shapes.mlp is None:
            return Work()
        moved = 2.0 * self.tokens * (self.shapes.ffn_in + self.shapes.ffn)
        return self._forward_part(self.shapes.mlp) + self._stream(moved, 1)

    def _norms(self, backward: bool = False) -> Work:
        """The norms, each reading and writing a hidden-size tensor.

        Eager ones run in fp32, an operation at a time: to fp32 (2 + 4), square (4 + 4), mean (4),
        scale (4 + 4), back (4 + 2), weight (2 + 2) bytes; about twice that backward.
        """
        bytes_each, kernels = (6.0, 1) if backward else (4.0, 1)
        if self.job.norm_kernel == "eager":
            bytes_each, kernels = (72.0, 10) if backward else (36.0, 6)
        count = self.model.norms
        moved = count * bytes_each * self.own_tokens * self.model.hidden
        return self._stream(moved, count * kernels)

    def _head_norms(self, bytes_each: float) -> Work:
        """Norms over queries and keys, and over latents."""
        work, shapes = Work(), self.shapes
        if self.model.qk_norm and self.model.mixer == "attention":
            work += self._stream(bytes_each * self.tokens * (shapes.query + shapes.key), 2)
        if shapes.latent:
            work += self._stream(bytes_each * self.own_tokens * shapes.latent, 2)
        return work

    def _residuals(self) -> Passes:
        """Bias, dropout and residual additions, one for each norm: forward and backward."""
        hidden = self.own_tokens * self.model.hidden
        mask = 1.0 if self.model.dropout else 0.0
        count = self.model.residuals
        forward = self._stream(count * hidden * (6.0 + mask), count)
        return forward, self._stream(count * hidden * (6.0 + (4.0 + mask) * mask), count)

    def _rotary(self) -> Work:
        if not self.model.rotates:
            return Work()
        return self._stream(4.0 * self.tokens * (self.shapes.query + self.shapes.key), 1)

    def _backward(self, core: Work) -> Work:
        """Backward of all but the routed experts: gradients of every matmul, and traffic."""
        machine, shapes = self.machine, self.shapes
        products = [self._rows(part) for part in shapes.parts]
        matmuls = [product for part in products for product in part]
        input_s = [machine.matmul_s(rows, k, n) for rows, n, k in matmuls]
        trained = matmuls
        if self._frozen:
            trained = [(float(self.tokens), *m) for part in shapes.parts for m in part.adapters]
        weight_s = [machine.matmul_s(k, n, rows) for rows, n, k in trained]
        traffic = sum(map(self._backward_traffic_s, shapes.parts))
        both = Work(
            matmul_s=sum(input_s) + sum(weight_s),
            tensor_traffic_s=traffic,
            kernels=2 * len(matmuls) + len(trained) + len(products) * (traffic > 0),
        )
        # each weight gradient is written, read and added to its sum
        moved_each = 4.0 + 2.0 * c.RECIPES[self.job.precision].gradient
        summed = self._stream(moved_each * shapes.own.trained_matrices, 0)
        casts = self._casts(sum(rows * n for rows, n, _ in matmuls))
        others = self._norms(backward=True)
        if shapes.mlp is not None:
            others += self._stream(2.0 * self.tokens * (2 * shapes.ffn_in + shapes.ffn), 1)
        others += self._rotary()
        work = both + summed + casts + others + core + self._residuals()[1]
        return work + self._head_norms(6.0)

    def _backward_traffic_s(self, part: Part) -> float:
        """Exposed backward traffic of a part.

        Reducing the input gradient hides behind the weight gradient, and with sequence parallelism
        regathering the input hides behind the input gradient; gathering the output gradient of a
        row-parallel matmul hides behind nothing (Korthikanti et al. 2022, section 4.2.2).
        """
        machine, tokens = self.machine, self.tokens
        input_s = sum(machine.matmul_s(tokens, k, n) for n, k in part.columns)
        trained = () if self._frozen else part.columns
        weight_s = sum(machine.matmul_s(k, n, tokens) for n, k in trained)
        leaving = self.group.gather_s(self.hidden_bytes) if self.sequence_parallel else 0.0
        entering = 2.0 * tokens * part.gathered
        return self._column_traffic_s(entering, input_s, weight_s, before_s=leaving)

    def _column_traffic_s(
        self, size_bytes: float, input_s: float, weight_s: float, before_s: float = 0.0
    ) -> float:
        """Exposed traffic of column-parallel matmuls: their input again, and its gradient."""
        gather, exposed = self.group.gather_s(size_bytes), self.machine.tensor_exposed_s
        if not self.sequence_parallel:
            return before_s + exposed(2.0 * gather, weight_s)
        return before_s + exposed(gather, input_s) + exposed(gather, weight_s)

    def _module_flops(self) -> dict[str, float]:
        """Matrix FLOPs of each module's forward, attention counted in full."""
        shapes, routed = self.shapes, self._routed
        before = [part for part in (shapes.joined, shapes.mixer, shapes.crossing) if part]
        mlp = self._part_flops(shapes.mlp) if shapes.mlp is not None else 0.0
        mlp += routed.matmul_flops() if routed is not None else 0.0
        attention = self._mixing.matrix_flops()
        full = sum(map(self._part_flops, before)) + mlp + attention
        return {"core_attn": attention, "layernorm": 0.0, "mlp": mlp, "full": full}

    def _part_flops(self, part: Part) -> float:
        return sum(2.0 * rows * n * k for rows, n, k in self._rows(part))


def _per_set(value: Callable[[tuple[str, ...]], float]) -> FloatArray:
    return np.array([value(modules) for modules in RECOMPUTE_SETS], dtype=np.float64)
