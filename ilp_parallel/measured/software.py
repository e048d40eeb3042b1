"""The cost model with what the software of a measured run is known to hold and do besides.

What a framework keeps and sends beyond its stack is a fact of that framework's code, not a choice
of a job; it belongs to comparing runs, and planning knows nothing of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.configuration import RECOMPUTE_SETS
from ilp_parallel.costs.model import CostModel
from ilp_parallel.costs.shapes import vocab_share
from ilp_parallel.costs.states import StateCosting
from ilp_parallel.costs.work import Work
from ilp_parallel.measured import conventions as known

if TYPE_CHECKING:
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.costs.ends import EndTail, EndWork
    from ilp_parallel.costs.layer import LayerPart
    from ilp_parallel.costs.states import ZeroPart
    from ilp_parallel.plan import Plan


class MeasuredCosts(CostModel):
    """The cost model of one measured plan, with what its software is known to hold besides.

    Parameters
    ----------
    plan
        The plan.
    software
        What the framework holds beyond the job's stack.
    """

    def __init__(self, plan: Plan, software: known.Software) -> None:
        super().__init__(plan.model, plan.cluster, plan.job)
        self._software = software
        self._plan = plan
        if software.bf16 is not None and plan.job.precision.endswith("bf16"):
            self.states = StateCosting(plan.job, self.machine, software.bf16)

    def prediction(self) -> Prediction:
        """The plan's step and memory."""
        return self.terms(self._plan)

    def layer_part(self, configuration: Configuration, kind: int = 0) -> LayerPart:
        """A block's time and activations, with what the software keeps and sends besides."""
        part = super().layer_part(configuration, kind)
        if self._software.separate_gate and not configuration.sequence_parallel:
            layer = self._costing(configuration, kind)
            again = Work(tensor_traffic_s=layer.group.all_reduce_s(layer.hidden_bytes))
            backward = part.backward + again
            part = replace(part, backward=backward, backward_s=self.machine.pass_s(backward))
        if self._software.keeps is None:
            return part
        costing = replace(
            self._costing(configuration, kind).activations, keeps=self._software.keeps
        )
        stored, working = costing.stored(), costing.working_bytes()
        return replace(
            part,
            stored=stored,
            activation_bytes=np.array([stored.kept(r) for r in RECOMPUTE_SETS]),
            transient_bytes=np.array([stored.rebuilt(r) + working for r in RECOMPUTE_SETS]),
        )

    def zero_part(self, configuration: Configuration, kind: int = 0) -> ZeroPart:
        """States and ZeRO traffic; gradients all-reduced where the software does so."""
        part = super().zero_part(configuration, kind)
        if not self._software.all_reduces or len(part.variants) == 1:
            return part
        traffic = part.last_backward_traffic_s.copy()
        traffic[part.variants.index("1")] = traffic[part.variants.index("0")]
        return replace(part, last_backward_traffic_s=traffic)

    def end_work(self, configuration: Configuration) -> EndWork:
        """Embedding and head; PyTorch's loss on whole logits where the software computes it.

        Bytes per logit: 2 of the logits, 4 of their logarithm in fp32, 4 + 4 of gradients; the
        pipeline engine holds the logits of the microbatch before (2) until they are overwritten.
        Seconds: the logits are gathered, and every rank does the loss's work on all of them.
        """
        work = super().end_work(configuration)
        if not self._software.whole_logits:
            return work
        layer = self._costing(configuration, self.last_kind)
        logits = float(layer.tokens) * vocab_share(self.model, 1)
        more = logits - float(layer.tokens) * layer.shapes.vocab
        working = self.layer_part(configuration, self.last_kind).transient_bytes[0]
        before = 2.0 if configuration.microbatches > 1 else 0.0
        transient = (10.0 + before) * logits + layer.hidden_bytes - working
        gather_s, stream_s = layer.group.gather_s(2.0 * logits), self.machine.stream_s
        return replace(
            work,
            head_forward_s=work.head_forward_s + gather_s + stream_s(22.0 * more, 0),
            head_backward_s=work.head_backward_s + stream_s(14.0 * more, 0),
            head_bytes=4.0 * (layer.own_tokens * self.model.hidden + logits),
            head_transient_bytes=max(transient, -4.0 * logits),
        )

    def end_tail(self, configuration: Configuration) -> EndTail:
        """Both ends' states; replicated like the blocks' where the plan shards nothing."""
        tail = super().end_tail(configuration)
        if any(strategy.zero != "0" for strategy in self._plan.strategies):
            return tail
        ranks = configuration.shards
        embedding = replace(tail.embedding, optimizer=tail.embedding.optimizer * ranks)
        head = replace(tail.head, optimizer=tail.head.optimizer * ranks)
        return replace(tail, embedding=embedding, head=head)


def software_of(framework: str) -> known.Software:
    """What a framework is known to hold beyond the stack it is priced as."""
    return next((s for part, s in known.SOFTWARE if part in framework), known.Software())
