"""Megatron-LM scripts and argument lists: stated, open, refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from ilp_parallel.errors import InputError
from ilp_parallel.export.registry import export_plan
from ilp_parallel.imports.megatron import read_megatron
from ilp_parallel.imports.shell import read_launch
from tests.export.plans import plans
from tests.export.test_megatron import as_megatron_runs_it
from tests.imports.runs import SCRIPT

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan


def test_a_script_states_its_run() -> None:
    found = read_megatron(SCRIPT, "run.sh", None)
    assert (found.devices, found.pipeline, found.tensor, found.data) == (16, 4, 2, 2)
    assert (found.global_batch, found.microbatch, found.microbatches) == (64, 1, 32)
    assert (found.sizes, found.zero, found.sequence_parallel) == ((3, 3, 3, 3), ("1",), True)
    assert (found.precision, found.optimizer, found.attention) == ("megatron-bf16", "adam", None)
    assert found.shapes["ffn_hidden"] == 4096
    assert found.shapes["learned_positions"] == 2048
    assert "vocab" not in found.shapes


@settings(max_examples=150, deadline=None)
@given(plans)
def test_our_own_script_is_read_back(plan: Plan) -> None:
    found = read_megatron(export_plan(plan, "megatron").text, "run.sh", None)
    g = plan.configuration
    assert found.devices == g.devices
    assert (found.pipeline, found.tensor, found.context, found.data) == (
        *(g.pipeline, g.tensor, g.context, g.data),
    )
    assert (found.microbatch, found.microbatches, found.chunks, found.schedule) == (
        *(g.microbatch, g.microbatches, g.chunks, g.schedule),
    )
    assert found.sizes == plan.sizes
    assert found.zero == (as_megatron_runs_it(plan.strategies[0]).zero,)
    assert found.recompute == tuple(strategy.recompute for strategy in plan.strategies)
    model = plan.model
    for name, value in found.shapes.items():
        assert getattr(model, name) == value


def test_an_argument_list_needs_no_script() -> None:
    words = read_launch("--num-layers 4 \\\n --swiglu --lr 1e-4 # a comment")
    assert words.words == ("--num-layers", "4", "--swiglu", "--lr", "1e-4")
    assert words.devices is None


MINIMAL = (
    "--num-layers 6 --hidden-size 96 --num-attention-heads 6 --micro-batch-size 1 "
    "--global-batch-size 8 --seq-length 128 --max-position-embeddings 128"
)


def stages(added: str) -> tuple[int, ...] | None:
    return read_megatron(f"{MINIMAL} --pipeline-model-parallel-size 4 {added}", "args", 4).sizes


def test_ends_counted_as_layers() -> None:
    both = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    assert stages(both) == (1, 2, 2, 1)
    with pytest.raises(InputError) as caught:
        stages("--account-for-loss-in-pipeline-split")
    assert caught.value.code == "MEGATRON_SIZES_DISAGREE"


def test_defaults_of_megatron() -> None:
    found = read_megatron(f"{MINIMAL} --swiglu --recompute-activations --fp16", "args", 8)
    assert found.shapes["ffn_hidden"] == int(4 * 96 * 2 / 3 / 64) * 64
    assert found.recompute == (("core_attn",),) * 6
    assert found.precision == "megatron-fp16"
    assert (found.data, found.microbatches) == (8, 1)
    without = read_megatron(MINIMAL.replace("--global-batch-size 8", ""), "args", 4)
    assert without.global_batch == 4


def test_a_ramp_of_the_batch_is_passed_over_and_said() -> None:
    found = read_megatron(f"{MINIMAL} --rampup-batch-size 2 2 100", "args", 4)
    assert found.global_batch == 8
    assert found.notes == ("batch ramp not planned: the plan is for the full batch",)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("NO_LAUNCH_COMMAND", "#!/bin/bash\necho hello\n"),
        ("NO_LAUNCH_COMMAND", "python train.py positional\n"),
        ("MALFORMED_SCRIPT", f"--num-layers '4 {MINIMAL}"),
        ("MEGATRON_VALUE_NOT_STATIC", f"{MINIMAL} --num-layers $(nproc)"),
        ("MEGATRON_VALUE_NOT_STATIC", f"torchrun pretrain.py {MINIMAL} --num-layers $UNSET"),
        ("MISSING_MEGATRON_FLAG", "--num-layers 4"),
        ("SIZES_DISAGREE", f"{MINIMAL} --tensor-model-parallel-size 3"),
        ("MEGATRON_SIZES_DISAGREE", f"{MINIMAL} --num-layers 99999999"),
        ("MEGATRON_FLAG_NOT_READ", f"{MINIMAL} --hybrid-override-pattern M*M*M*"),
        ("MEGATRON_FLAG_NOT_READ", f"{MINIMAL} --num-experts 8 --moe-latent-size 16"),
        ("MEGATRON_FLAG_NOT_READ", f"{MINIMAL} --optimizer muon"),
        (
            "MEGATRON_FLAG_NOT_READ",
            f"{MINIMAL} --microbatch-group-size-per-virtual-pipeline-stage 2",
        ),
        ("SCRIPT_TOO_LONG", "# \n" * 100_000),
    ],
)
def test_refusals(code: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_megatron(text, "run.sh", 4)
    assert caught.value.code == code
    assert str(caught.value).isprintable()


def test_another_number_of_devices_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        read_megatron(SCRIPT, "run.sh", 8)
    assert caught.value.code == "DEVICES_DIFFER"


def test_variables_that_grow_without_end_do_not() -> None:
    grow = "A=xxxxxxxxxx\n" + "".join(f"A=$A$A{i}$A$A\n" for i in range(40))
    with pytest.raises(InputError):
        read_megatron(f"{grow}torchrun pretrain.py --num-layers $A {MINIMAL}", "run.sh", 4)


def test_many_keywords_are_read_one_by_one() -> None:
    text = "then " * 40_000 + f"torchrun pretrain.py {MINIMAL}"
    assert read_megatron(text, "run.sh", 4).shapes["layers"] == 6


def test_a_huge_sum_is_no_number() -> None:
    power = "*".join(["999999999"] * 20)
    text = f"torchrun pretrain.py {MINIMAL} --num-layers $(({power}))"
    with pytest.raises(InputError) as caught:
        read_megatron(text, "run.sh", 4)
    assert caught.value.code in ("MEGATRON_VALUE_NOT_STATIC", "MALFORMED_MEGATRON_ARGUMENTS")


def script(body: str, words: str = "") -> str:
    return f"#!/bin/bash\n{body}\ntorchrun pretrain_gpt.py {MINIMAL} {words}\n"


@pytest.mark.parametrize(
    ("body", "layers"),
    [
        ('T=a\nif [[ "$T" == "a" ]]; then\n  N=8\nelse\n  N=9\nfi', 8),
        ("T=b\nif [ $T = a ]; then N=8; else N=9; fi", 9),
        ("T=c\nif [ $T = a ]\nthen\nN=8\nelif [ $T != b ]; then\nN=9\nelse\nN=10\nfi", 9),
        ("N=7\nif [ -z $UNSET ]; then N=8; fi", 8),
        ("N=7\nif [ -n $UNSET ] && [ 1 -eq 1 ]; then N=8; fi", 7),
        ("N=7\nif [ 2 -gt 1 ] || [ -f x ]; then N=8; fi", 8),
        ("N=7\nif [ 2 -lt 1 ]; then\n if [ -f x ]; then N=9; fi\n N=8\nfi", 7),
    ],
)
def test_branches_on_comparisons_are_followed(body: str, layers: int) -> None:
    assert read_megatron(script(body, "--num-layers $N"), "run.sh", 4).shapes["layers"] == layers


@pytest.mark.parametrize(
    "body",
    [
        "N=7\nif [ -f x ]; then N=8; fi",
        "N=7\nif [ $1 == a ]; then\nN=8\nfi",
        "N=7\nif [ -f x ]; then M=1; else N=8; fi",
        "for N in 1 2; do\nN=$N\ndone",
    ],
)
def test_what_only_a_shell_would_know_is_asked_for(body: str) -> None:
    with pytest.raises(InputError) as caught:
        read_megatron(script(body, "--num-layers $N"), "run.sh", 4)
    assert caught.value.code == "MEGATRON_VALUE_NOT_STATIC"


def test_options_added_to_arrays() -> None:
    body = 'A=(--num-layers 8)\nB=(--swiglu)\nA+=("${B[@]}")\nA+=(\n  "--seq-length 64"\n)'
    found = read_megatron(script(body, "${A[@]}"), "run.sh", 4)
    assert (found.shapes["layers"], found.shapes["gated_mlp"]) == (8, True)
    assert (found.sequence_length, found.notes) == (64, ())
    under = "A=()\nif [ -f x ]; then A+=(--swiglu); fi"
    found = read_megatron(script(under, "${A[@]}"), "run.sh", 4)
    assert found.shapes["gated_mlp"] is True
    assert found.notes == ("options added to A under a condition are taken",)
