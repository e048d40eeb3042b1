"""The two ends of the model: embedding on the first virtual stage, head and loss on the last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ilp_parallel.configuration import Zero
    from ilp_parallel.costs.hardware import Group
    from ilp_parallel.costs.layer import LayerCosting
    from ilp_parallel.costs.shapes import RankShapes
    from ilp_parallel.costs.states import StateBytes, StateCosting
    from ilp_parallel.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class EndWork:
    """Seconds and bytes per microbatch on one rank."""

    embedding_forward_s: float
    embedding_backward_s: float
    head_forward_s: float
    head_backward_s: float
    embedding_bytes: float  # per microbatch alive
    head_bytes: float  # per microbatch alive: inputs, and the loss's fp32 logits
    head_transient_bytes: float  # once, beyond a block's working bytes; below zero if those exceed
    boundary_bytes: float  # one hidden-size tensor as a stage receives it
    sent_bytes: float  # what of it one rank sends: tensor-parallel ranks share the work
    regather_s: float  # putting it together again, where each rank needs the whole


@dataclass(frozen=True, slots=True)
class EndTail:
    """Once-per-step seconds and persistent bytes on one rank."""

    embedding_s: float
    head_s: float
    tied_s: float  # all-reduce between the two copies; 0 when there is one copy
    embedding: StateBytes
    head: StateBytes


def end_work(layer: LayerCosting) -> EndWork:
    """Price both ends for the microbatch and tensor degree of ``layer``."""
    model, machine, group = layer.model, layer.machine, layer.group
    tokens, own, vocab = layer.tokens, layer.own_tokens, layer.shapes.vocab
    hidden, parallel = model.hidden, layer.sequence_parallel
    dropout = 5.0 if model.dropout else 0.0
    positions = 4.0 if model.learned_positions else 0.0
    norm = 8.0 if model.embedding_norm else 0.0
    gather = group.gather_s(layer.hidden_bytes)
    embedding_moved = tokens * hidden * (4.0 + positions) + own * hidden * (dropout + norm)
    embedding_forward = machine.stream_s(embedding_moved, 2) + gather * (1 if parallel else 2)
    # read the output gradient; read and write fp32 rows of the weight gradient
    embedding_backward = machine.stream_s(embedding_moved + tokens * hidden * 8.0, 2)
    scores = float(tokens) * vocab
    working = layer.activations.working_bytes()
    statistics = 3 * group.all_reduce_s(4.0 * tokens)  # maximum, target logit, sum
    head_forward = (
        machine.stream_s(4.0 * own * hidden, 1)
        + machine.matmul_s(tokens, vocab, hidden)
        # cast 2 + 4; maximum 4; exponential 8; sum 4: bytes per logit
        + machine.stream_s(scores * 22.0, 4)
        + statistics
        + (gather if parallel else 0.0)
    )
    input_s = machine.matmul_s(tokens, hidden, vocab)
    weight_s = machine.matmul_s(hidden, vocab, tokens)
    if parallel:
        traffic = machine.tensor_exposed_s(gather, input_s) + machine.tensor_exposed_s(
            gather, weight_s
        )
    else:
        traffic = machine.tensor_exposed_s(2 * gather, weight_s)
    head_backward = (
        input_s
        + weight_s
        # gradient of the loss in place 8, cast 4 + 2: bytes per logit
        + machine.stream_s(scores * 14.0, 2)
        + machine.stream_s(6.0 * own * hidden, 1)
        + traffic
    )
    return EndWork(
        embedding_forward_s=embedding_forward,
        embedding_backward_s=embedding_backward + (gather if parallel else 0.0),
        head_forward_s=head_forward,
        head_backward_s=head_backward,
        embedding_bytes=own * hidden * ((1.0 if model.dropout else 0.0) + norm / 4),
        head_bytes=4.0 * own * hidden + 4.0 * scores,
        # the loss is over, its logits gone, before a block of the same stage runs backward
        head_transient_bytes=max(2.0 * scores + layer.hidden_bytes - working, -4.0 * scores),
        boundary_bytes=2.0 * own * hidden,
        sent_bytes=layer.hidden_bytes / group.ranks,
        regather_s=0.0 if parallel else gather,
    )


def end_tail(
    costing: StateCosting,
    model: ModelSpec,
    shapes: RankShapes,
    group: Group,
    ends: Group,
    pipeline: int,
) -> EndTail:
    """Price both ends' parameters; ``ends`` links the first and the last device group.

    Sharded as ZeRO 1 whenever data parallel (Megatron-LM's distributed optimizer). The embedding's
    gradient comes last and its weights are needed first, so its traffic is exposed; the head's
    comes first and is needed last, so it hides as far as traffic may.
    """
    recipe, tied, ranks = costing.recipe, model.tied_embeddings, group.ranks
    zero: Zero = "1" if ranks > 1 else "0"
    own_output = 0 if tied and pipeline == 1 else shapes.output_parameters
    head = float(shapes.final_norm_parameters + own_output)
    embedding = float(shapes.embedding_parameters)

    def traffic_s(parameters: float) -> float:
        scatter = group.gather_s(parameters * recipe.gradient)
        return scatter + group.gather_s(parameters * recipe.refreshed)

    copies = tied and pipeline > 1
    return EndTail(
        embedding_s=traffic_s(embedding) + costing.optimizer_s(embedding, zero, ranks),
        head_s=(1 - costing.overlap) * traffic_s(head) + costing.optimizer_s(head, zero, ranks),
        tied_s=ends.all_reduce_s(shapes.output_parameters * recipe.gradient) if copies else 0.0,
        embedding=costing.state(embedding, zero, ranks),
        head=costing.state(head, zero, ranks),
    )
