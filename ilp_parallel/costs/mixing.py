"""What mixes the tokens of a sequence: core attention, and the scan of a state space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.costs import constants as c
from ilp_parallel.costs.work import NO_WORK, Work
from ilp_parallel.specs.job import FLASH

if TYPE_CHECKING:
    from ilp_parallel.costs.hardware import Group, Machine
    from ilp_parallel.costs.shapes import RankShapes
    from ilp_parallel.costs.work import Passes
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec


def mean_keys(model: ModelSpec, job: JobSpec, tile: int = 0) -> float:
    """Keys that a query of a block sees, on average over the sequence, times two.

    Twice, because a causal query sees half of its document's ``l`` tokens on average: ``l`` whole
    numbers stay whole. A causal window of ``w`` tokens leaves ``2 w - w^2 / l`` of them: the first
    ``w`` queries see fewer. A kernel computes whole tiles, so a window grows by one ``tile``.
    """
    seen = 0.0
    for length in job.documents:
        window = model.window + tile if model.window else length
        if not model.causal:
            seen += length * 2 * min(window, length)
        elif window >= length:
            seen += length * length
        else:
            seen += 2 * window * length - window * window
    return seen / job.sequence_length


@dataclass(frozen=True, slots=True)
class MixingCosting:
    """Prices the mixing of one block for a fixed split of its work."""

    model: ModelSpec
    job: JobSpec
    machine: Machine
    shapes: RankShapes
    tokens: int  # of one microbatch on a rank
    ring: Group  # the context-parallel ranks

    def passes(self) -> Passes:
        """Forward and backward, the context-parallel ranks' exposed traffic included."""
        if self.model.mixer == "none":
            return NO_WORK
        if self.model.mixer == "state-space":
            return self._scan()
        own = self._attention(mean_keys(self.model, self.job, c.FLASH_TILE_KEYS))
        if not self.model.cross_attention:
            return own
        # every query sees all of the encoder's tokens, of which there are as many
        crossing = self._attention(2.0 * self.job.sequence_length)
        return own[0] + crossing[0], own[1] + crossing[1]

    def matrix_flops(self) -> float:
        """Forward FLOPs, attention counted in full: as if a query saw all keys around it."""
        if self.model.mixer == "none":
            return 0.0
        if self.model.mixer == "state-space":
            return self._scan_flops()
        length, shapes = self.job.sequence_length, self.shapes
        keys = min(self.model.window or length, length)
        keys += length * self.model.cross_attention
        return 2.0 * self.tokens * keys * (shapes.query + shapes.context)

    def _attention(self, doubled_keys: float) -> Passes:
        flash = self.job.attention in FLASH
        forward, backward = self._flash(doubled_keys) if flash else self._scores()
        # all keys and values
        keys = 2.0 * (self.shapes.key + self.shapes.value) * self.tokens * self.ring.ranks
        ring = self.ring.gather_s(keys)
        exposed = self.machine.exposed_s
        hiding = forward.compute_s, backward.compute_s
        return (
            forward + Work(context_traffic_s=exposed(ring, hiding[0])),
            backward + Work(context_traffic_s=exposed(2 * ring, hiding[1])),
        )

    def _flash(self, doubled_keys: float) -> Passes:
        """Flash attention; a ring calls it once per block of keys, each of a rank's length."""
        machine, shapes, calls = self.machine, self.shapes, self.ring.ranks
        documents = self.job.documents
        length = sum(n * n for n in documents) / self.job.sequence_length
        block = length / calls
        share = block / (block + c.FLASH_SEQUENCE_HALF)
        share *= min(1.0, shapes.query / shapes.heads / c.FLASH_HEAD_DIM_FULL) ** 0.25
        flops = self.tokens * doubled_keys * (shapes.query + shapes.context)
        forward = flops / (machine.flash_forward_flops * share)
        backward = flops * c.FLASH_BACKWARD_FACTOR / (machine.flash_backward_flops * share)
        launch = calls * c.KERNEL_LAUNCH_S
        return (
            Work(attention_s=forward + launch, kernels=calls),
            Work(attention_s=backward + launch, kernels=2 * calls),
        )

    def _scores(self) -> Passes:
        """Two matmuls around a softmax, every score written out, masked ones too.

        Bytes a score moves, fused: written, softmax read + write, read by the second matmul: 8;
        dropout reads and writes once more and writes its mask: 5. Backward: dP written, softmax
        reads two and writes one, two matmuls read it, one reads P: 14. Eager kernels scale, mask
        and cast to fp32 and back in between: 18 more, backward 16.
        """
        machine, shapes, length = self.machine, self.shapes, self.job.sequence_length
        scores = float(shapes.heads * length * self.tokens)
        aligned = 1.0 if self.model.head_dim % 8 == 0 else c.MISALIGNED_SHARE
        widths = shapes.query + shapes.context
        products = 2.0 * self.tokens * length * widths / (machine.batched_flops * aligned)
        dropout = 5.0 if self.model.dropout else 0.0
        eager = self.job.attention == "eager"
        forward = machine.stream_s(scores * (8.0 + dropout + 18.0 * eager), 3 + 5 * eager)
        backward = machine.stream_s(scores * (14.0 + dropout + 16.0 * eager), 5 + 5 * eager)
        return (
            Work(attention_s=products + forward, kernels=5 + 5 * eager),
            Work(attention_s=2 * products + backward, kernels=8 + 5 * eager),
        )

    def _scan_flops(self) -> float:
        """FLOPs of the chunked scan: scores and outputs in a chunk, states into and out of it.

        Dao and Gu 2024 (arXiv 2405.21060), section 6: blocks of ``SCAN_CHUNK`` tokens, computed in
        full as matrix products; per token ``2 Q (G N + P H)`` inside, ``4 N P H`` across.
        """
        space, shapes = self.model.state_space, self.shapes
        if space is None:
            raise AssertionError("check_model lets no such model pass")
        inside = 2.0 * c.SCAN_CHUNK * (shapes.states + shapes.inner)
        return self.tokens * (inside + 4.0 * space.state * shapes.inner)

    def _scan(self) -> Passes:
        """Convolution and scan; context ranks exchange tokens for channels before and after.

        Bytes a channel moves: gate, input, B and C read, the convolution's output written and
        read, the scan's output written, read by the gated norm and written again.
        """
        machine, shapes, tokens = self.machine, self.shapes, self.tokens
        projected = 2 * shapes.inner + 2 * shapes.states + shapes.heads
        moved = 2.0 * tokens * (projected + 2 * (shapes.inner + 2 * shapes.states))
        moved += 6.0 * tokens * shapes.inner
        exchanged = self.ring.gather_s(2.0 * tokens * projected)
        exchanged += self.ring.gather_s(2.0 * tokens * shapes.inner)
        products = self._scan_flops() / (machine.flash_forward_flops * c.SCAN_SHARE)
        traffic = Work(context_traffic_s=exchanged)
        streams = machine.stream_s(moved, 4), machine.stream_s(2 * moved, 8)
        forward = Work(attention_s=products, memory_bound_s=streams[0], kernels=8)
        products *= c.FLASH_BACKWARD_FACTOR
        backward = Work(attention_s=products, memory_bound_s=streams[1], kernels=16)
        return forward + traffic, backward + traffic
