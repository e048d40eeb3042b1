"""What one rank holds: with one rank all of the model, with several at least its share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ilp_parallel.costs.constants import VOCAB_MULTIPLE
from ilp_parallel.costs.shapes import end_shapes, rank_shapes
from ilp_parallel.specs.model import Experts
from ilp_parallel.specs.readers import load_model, model_names
from tests.costs.cases import LLAMA


@pytest.mark.parametrize("name", model_names())
def test_one_rank_holds_all_of_a_block(name: str) -> None:
    """The cost layer's matrices and vectors and the model's count of them are made apart."""
    for view in load_model(name).views:
        shapes = rank_shapes(view, 1)
        assert shapes.own.trained_matrices == view.layer_matrix_parameters
        assert shapes.routed_parameters == view.routed_parameters
        assert shapes.layer_parameters + shapes.routed_parameters == view.layer_parameters


@pytest.mark.parametrize("name", model_names())
def test_one_rank_holds_both_ends(name: str) -> None:
    model = load_model(name)
    ends = end_shapes(model, 1)
    padded = -(-model.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    blocks = sum(view.layers * view.layer_parameters for view in model.views)
    output = 0 if model.tied_embeddings else ends.output_parameters
    held = ends.embedding_parameters + ends.final_norm_parameters + output
    copies = 1 + (not model.tied_embeddings)
    more = (padded - model.vocab) * (copies * model.hidden + model.output_transform)
    assert held == model.parameters - blocks + more


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "nemotron-h-8b", "t5-11b"])
@pytest.mark.parametrize("tensor", [2, 4])
def test_ranks_together_hold_at_least_the_block(name: str, tensor: int) -> None:
    for view in load_model(name).views:
        whole, part = rank_shapes(view, 1), rank_shapes(view, tensor)
        assert part.layer_parameters < whole.layer_parameters
        assert tensor * part.layer_parameters >= whole.layer_parameters


def test_experts_fold_over_their_own_degrees() -> None:
    model = replace(LLAMA, experts=Experts(8, 2, 14336))
    whole = rank_shapes(model, 4)
    for expert, inside in ((2, 1), (8, 1), (2, 4), (1, 2)):
        shapes = rank_shapes(model, 4, expert, inside)
        assert shapes.routed_parameters * expert * inside == whole.routed_parameters
        assert shapes.layer_parameters == whole.layer_parameters  # nothing else is touched


def test_latents_are_whole_on_every_rank() -> None:
    view = load_model("deepseek-v3").of_kind(0)
    one, eight = rank_shapes(view, 1), rank_shapes(view, 8)
    assert one.mixer is not None
    assert eight.mixer is not None
    assert one.mixer.own == eight.mixer.own
    assert one.mixer.gathered == eight.mixer.gathered == 1536 + 512 + 64
    assert one.query == 128 * (128 + 64) == 8 * eight.query
