"""The two ends of the model: embedding on the first virtual stage, head and loss on the last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.costs.states import StateBytes

if TYPE_CHECKING:
    from ilp_parallel.configuration import Zero
    from ilp_parallel.costs.hardware import Group
    from ilp_parallel.costs.layer import LayerCosting
    from ilp_parallel.costs.shapes import EndShapes
    from ilp_parallel.costs.states import StateCosting
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
    boundary_bytes: float  # what a stage receives: a hidden-size tensor, or two
    passing_bytes: float  # of it per microbatch alive: what the stage's blocks only look at
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
    """Price both ends for the microbatch and tensor degree of ``layer``, the model's last block.

    Encoder and decoder each embed their tokens. Both tensors cross every cut: in the encoder its
    own and the decoder's embedding, in the decoder its own and the encoder's output.
    """
    model, machine, group = layer.model, layer.machine, layer.group
    tokens, own, vocab = layer.tokens, layer.own_tokens, layer.shapes.vocab
    hidden, parallel = model.hidden, layer.sequence_parallel
    tensors = 1 + model.cross_attention  # the last block has it if any has
    dropout = 5.0 if model.dropout else 0.0
    positions = 4.0 if model.learned_positions else 0.0
    norm = 8.0 if model.embedding_norm else 0.0
    gather = group.gather_s(layer.hidden_bytes)
    embedding_moved = tokens * hidden * (4.0 + positions) + own * hidden * (dropout + norm)
    embedding_forward = machine.stream_s(embedding_moved, 2) + gather * (1 if parallel else 2)
    # read the output gradient; read and write fp32 rows of the weight gradient
    embedding_backward = machine.stream_s(embedding_moved + tokens * hidden * 8.0, 2)
    embedding_backward += gather if parallel else 0.0
    if layer.job.task == "lora":  # nothing below the first adapter has a gradient
        embedding_backward = 0.0
    scores = float(tokens) * vocab
    working = layer.activations.working_bytes()
    forward, backward = layer.head()
    return EndWork(
        embedding_forward_s=tensors * embedding_forward,
        embedding_backward_s=tensors * embedding_backward,
        head_forward_s=forward.device_s,
        head_backward_s=backward.device_s,
        embedding_bytes=tensors * own * hidden * ((1.0 if model.dropout else 0.0) + norm / 4),
        head_bytes=4.0 * own * hidden + 4.0 * scores,
        # the loss is over, its logits gone, before a block of the same stage runs backward
        head_transient_bytes=max(2.0 * scores + layer.hidden_bytes - working, -4.0 * scores),
        boundary_bytes=2.0 * tensors * own * hidden,
        passing_bytes=2.0 * (tensors - 1) * own * hidden,
        sent_bytes=tensors * layer.hidden_bytes / group.ranks,
        regather_s=0.0 if parallel else tensors * gather,
    )


def end_tail(
    costing: StateCosting,
    model: ModelSpec,
    shapes: EndShapes,
    group: Group,
    ends: Group,
    pipeline: int,
    frozen: bool,
) -> EndTail:
    """Price both ends' parameters; ``ends`` links the first and the last device group.

    Sharded as ZeRO 1 whenever data parallel (Megatron-LM's distributed optimizer). The embedding's
    gradient comes last and its weights are needed first, so its traffic is exposed; the head's
    comes first and is needed last, so it hides as far as traffic may. Frozen, they are there.
    """
    recipe, tied, ranks = costing.recipe, model.tied_embeddings, group.ranks
    zero: Zero = "1" if ranks > 1 else "0"
    own_output = 0 if tied and pipeline == 1 else shapes.output_parameters
    head = float(shapes.final_norm_parameters + own_output)
    embedding = float(shapes.embedding_parameters)
    if frozen:
        held = [
            StateBytes(costing.frozen_bytes(p, zero, ranks), 0.0, 0.0) for p in (embedding, head)
        ]
        return EndTail(0.0, 0.0, 0.0, *held)

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
