"""Routed experts of one block on one rank: router, exchange of tokens, grouped matmuls.

Every rank routes the tokens it holds outside the tensor-parallel regions (its share of the sequence
where sequence parallelism splits it). A token goes to ``active`` experts, as so many copies. The
copies of a rank are exchanged over the expert group (all-to-all), gathered over the expert tensor
group, sorted by local expert, multiplied, and go back the same way (Megatron-Core, MoE layer with
its all-to-all dispatcher, ``megatron/core/transformer/moe/token_dispatcher.py``). The load is taken
to be even: each of ``count`` experts gets the same number of copies, as with forced or
auxiliary-loss-free balancing. The exchange is exposed: nothing else runs beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.costs.work import Work

if TYPE_CHECKING:
    from ilp_parallel.costs.hardware import AllToAll, Group, Machine
    from ilp_parallel.costs.shapes import Part, RankShapes
    from ilp_parallel.specs.model import Experts


@dataclass(frozen=True, slots=True)
class ExpertCosting:
    """Prices the routed experts of one block for a fixed split."""

    experts: Experts
    shapes: RankShapes
    machine: Machine
    gradient_bytes: float  # of one parameter
    frozen: bool  # whether adapters alone are trained
    hidden: int
    own_tokens: float  # that this rank routes
    exchange: AllToAll  # the expert-parallel ranks
    inside: Group  # the expert-tensor ranks

    @property
    def copies(self) -> float:
        """Copies of tokens that a rank sends, and on average receives."""
        return self.own_tokens * self.experts.active

    @property
    def rows(self) -> float:
        """Rows of the grouped matmuls: copies of all ranks that share these experts' matrices."""
        return self.copies * self.inside.ranks

    @property
    def part(self) -> Part:
        """The matrices of one expert."""
        part = self.shapes.expert_mlp
        if part is None:
            raise AssertionError("the block has experts")
        return part

    def forward(self) -> Work:
        """Everything from the router to the weighted sum."""
        matmuls = (*self.part.matrices, *self.part.adapters)
        products = sum(self._grouped_s(n, k) for n, k in matmuls)
        return self._router() + self._moved() + self._work(products, 1)

    def backward(self) -> Work:
        """Gradients of every product, activations, and the way back of both exchanges."""
        matrices, adapters = self.part.matrices, self.part.adapters
        inputs = sum(self._grouped_s(k, n) for n, k in (*matrices, *adapters))
        trained = adapters if self.frozen else matrices
        weights = sum(self._grouped_weight_s(n, k) for n, k in trained)
        router = self._router()
        # each weight gradient is written, read and added to its sum
        moved_each = 4.0 + 2.0 * self.gradient_bytes
        summed = self.machine.stream_s(moved_each * self.shapes.routed.trained_matrices, 0)
        work = router + router + self._moved() + self._work(inputs + weights, 2)
        return work + Work(memory_bound_s=summed)

    def matmul_flops(self) -> float:
        """Forward FLOPs of the grouped matmuls of a rank."""
        matmuls = (*self.part.matrices, *self.part.adapters)
        return sum(2.0 * self.rows * n * k for n, k in matmuls)

    def stored_bytes(self, saved: float) -> float:
        """Kept for backward: scores, inputs of both matmuls, output of the first.

        ``saved`` is the bytes of a matmul's saved input.
        """
        shapes = self.shapes
        per_row = saved * (self.hidden + shapes.expert_ffn) + 2.0 * shapes.expert_ffn_in
        return self.rows * per_row + 4.0 * self.own_tokens * self.experts.count

    def working_bytes(self) -> float:
        """Largest gradients alive: of both hidden tensors and of the rows."""
        shapes = self.shapes
        return 2.0 * self.rows * (shapes.expert_ffn_in + shapes.expert_ffn + self.hidden)

    def _grouped_s(self, columns: float, inner: float) -> float:
        """One product for every local expert, in one kernel over all of them."""
        rows = self.rows / self.shapes.experts
        return self.machine.grouped_matmul_s(self.shapes.experts, rows, columns, inner)

    def _grouped_weight_s(self, columns: float, inner: float) -> float:
        rows = self.rows / self.shapes.experts
        return self.machine.grouped_matmul_s(self.shapes.experts, inner, columns, rows)

    def _router(self) -> Work:
        """Scores in fp32, softmax or sigmoid, and the choice of the largest."""
        count = self.experts.count
        seconds = self.machine.matmul_s(self.own_tokens, count, self.hidden)
        stream = self.machine.stream_s(16.0 * self.own_tokens * count, 3)
        return Work(matmul_s=seconds, memory_bound_s=stream, kernels=4)

    def _moved(self) -> Work:
        """Permutation, exchange and gathering of copies, and the way back."""
        size = 2.0 * self.copies * self.hidden
        gathered = size * self.inside.ranks
        traffic = 2 * self.exchange.exchange_s(size) + 2 * self.inside.gather_s(gathered)
        # each pass reads and writes every copy; with several local experts they are sorted as well
        sorts = self.shapes.experts > 1 and self.exchange.ranks > 1
        stream = self.machine.stream_s(4 * size + 4 * gathered * sorts, 2 + 2 * sorts)
        return Work(memory_bound_s=stream, expert_traffic_s=traffic, kernels=4 + 2 * sorts)

    def _work(self, products_s: float, passes: int) -> Work:
        """Grouped products, casts of what enters them, and the activation between them.

        ``passes`` is 1 forward and 2 backward, which has two products for each of forward's.
        """
        shapes, machine = self.shapes, self.machine
        moved = 2.0 * self.rows * (passes * shapes.expert_ffn_in + shapes.expert_ffn)
        kernels = 2 * passes + 1
        stream = machine.stream_s(moved, 1)
        if machine.matrix_bytes == 1:  # plain and transposed copies: read 2, write 1 + 1
            entering = sum((k, n)[passes - 1] for n, k in self.part.matrices)
            stream += machine.stream_s(4.0 * self.rows * entering, 2)
            kernels += 2
        return Work(matmul_s=products_s, memory_bound_s=stream, kernels=kernels)
