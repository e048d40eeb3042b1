"""Situations that users reported, about validity, splits and rules: each with a fixture of its own.

Named after the public thread each was reported in. Cases about memory and numbers of devices are in
``test_cases_of_memory.py``. The table they were collected from is read only to see that none is
left out, from the folder that ILP_PARALLEL_CASES names.

Expectations of the table that were found wrong, or that hold only with an assumption:

* GPT-NeoX issue 606 (20.55 B parameters on 40 GB cards) expects 9 cards: that is the states
  alone, 20.55e9 x 16 bytes / 40e9 = 8.2. On 9, 10 and 11 cards every way to split leaves at most
  35, 39 and 43 of the 44 layers placed, once context and allocator slack are taken off; 12 cards
  do.
* llm-foundry issue 437 (30 B, one moment, 16 GB cards) expects 24 cards: 12 bytes x 30e9 = 360 GB
  of 24 x 16 = 384 GB. The same 24 cards may allocate 302 GB once context and slack are off; 32
  do, which is what the maintainers recommend.
* Megatron-LM issue 381 expects 3 + 4 layers of 7. That is the optimum where both ends are light;
  with 50,000 tokens of vocabulary on 1,024 channels the output matrix weighs as much as four
  layers, and 6 + 1 is faster.
* s1 issue 13 (32.8 B, 16 devices of 80 GB, 20,000 tokens, plain FSDP) fits in practice and is
  priced 80 GiB here, 68 usable: the cost model does not shard the embedding and the output
  matrix, and counts whole fp32 logits. The test of it is marked as a known miss.
* TRL pull requests 6845 and 6846 train 1,048,576 tokens on 8 devices with offloaded activations
  and a loss in chunks. Neither is modelled: here the job is infeasible, short by just these two.

Experts, adapters and offloading have no dimension in a plan yet: of cases about them the rules are
tested, the bytes of adapters and offloaded states are not (ms-swift issues 6476 and 9403).
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.costs.model import CostModel
from ilp_parallel.costs.shapes import rank_shapes
from ilp_parallel.diagnosis.expert_rules import read_expert_degrees
from ilp_parallel.diagnosis.explaining import explain_job
from ilp_parallel.diagnosis.feasibility import Question
from ilp_parallel.diagnosis.findings import file_findings, plan_findings
from ilp_parallel.export.accelerate import AccelerateRun, validate_accelerate
from ilp_parallel.export.deepspeed import document
from ilp_parallel.export.megatron import export_megatron
from ilp_parallel.export.megatron_flags import MegatronFlags
from ilp_parallel.export.megatron_layout import read_layout
from ilp_parallel.export.megatron_reader import stage_sizes
from ilp_parallel.export.registry import export_plan
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.plan_words import plan_from_words
from ilp_parallel.planner import ANY_SCHEDULE, SearchOptions, search
from ilp_parallel.predicting import step_shares
from ilp_parallel.spaces import Pins, Refusal, enumerate_configurations, get_space
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.readers import load_cluster, load_model
from tests.costs.cases import GPT, LLAMA
from tests.export.plans import plan_of

FOLDER = os.environ.get("ILP_PARALLEL_CASES", "")
TABLE = Path(FOLDER) / "user_cases.jsonl"
HERE = Path(__file__).parent
SHARDED = Strategy("1", ())


@pytest.mark.skipif(not TABLE.is_file(), reason="ILP_PARALLEL_CASES names no user_cases.jsonl")
def test_every_complete_case_has_a_test() -> None:
    written = (HERE / "test_cases_of_users.py").read_text()
    written += (HERE / "test_cases_of_memory.py").read_text()
    rows = [json.loads(line) for line in TABLE.read_text().splitlines()]
    complete = [row["source"] for row in rows if row["numbers_complete"]]
    assert len(complete) == 41
    assert [source for source in complete if source not in written] == []


def codes(script: str, devices: int, per_node: int = 8) -> set[str]:
    """Codes of the rules that options of Megatron-LM break."""
    words = f"{script} --micro-batch-size 1 --seq-length 4096"
    if "--hidden-size" not in words:
        words += " --hidden-size 1024 --num-attention-heads 16"
    nodes = max(1, devices // per_node)
    cluster = load_cluster(f"h100-80gb:{nodes}x{min(per_node, devices)}")
    return {found.code for found in file_findings(words, "megatron", cluster, None)}


# --- stages ---------------------------------------------------------------------------------------


def test_seven_layers_on_two_stages() -> None:
    """NVIDIA/Megatron-LM#381: as even as can be where the ends are light, and it is exported."""
    light = replace(GPT, layers=7, vocab=128, learned_positions=2048)
    job = JobSpec(global_batch=16, sequence_length=2048)
    options = SearchOptions("megatron", pins=Pins.parse(("pp=2",), ()))
    found = search(light, load_cluster("a100-80gb:1x2"), job, options)
    assert found.status == "optimal"
    assert found.plan is not None
    assert sorted(found.plan.sizes) == [3, 4]
    flags = export_megatron(found.plan).flags
    assert stage_sizes(flags) == found.plan.sizes
    assert flags.integer("--decoder-first-pipeline-num-layers") == found.plan.sizes[0]


def test_forty_layers_on_sixteen_stages() -> None:
    """NVIDIA/Megatron-LM#1303: at most 3 a stage, by a layout; 8 stages are a choice as well."""
    model = replace(load_model("gpt3"), layers=40, hidden=5120, heads=40, kv_heads=40)
    model = replace(model, head_dim=128, ffn_hidden=20480)
    job, cluster = JobSpec(global_batch=512, sequence_length=2048), load_cluster("a100-80gb:2x8")
    options = SearchOptions("megatron", pins=Pins.parse(("pp=16", "tp=1"), ()))
    found = search(model, cluster, job, options)
    assert found.plan is not None
    assert max(found.plan.sizes) == 3
    flags = export_megatron(found.plan).flags
    assert read_layout(flags.text("--pipeline-model-parallel-layout", "")) == found.plan.sizes
    fewer = replace(options, pins=Pins.parse(("pp=8", "tp=1"), ()))
    eight = search(model, cluster, job, fewer)
    assert eight.plan is not None
    assert eight.plan.sizes == (5,) * 8 or max(eight.plan.sizes) <= 6


def test_own_numbers_for_the_ends_without_a_pipeline() -> None:
    """NVIDIA/Megatron-LM#1778: silently trains one layer of twenty."""
    words = "--num-layers 20 --decoder-last-pipeline-num-layers 1"
    assert codes(words, 8) == {"FIRST_LAST_WITH_PP1"}
    assert codes("--num-layers 20", 8) == set()


def test_llama_405b_interleaved() -> None:
    """pytorch/torchtitan#986: 126 layers and two ends make 16 virtual stages of 8."""
    model = load_model("llama3-405b")
    plan = plan_of(
        (7, *(8,) * 14, 7),
        (Strategy("3-keep", ()),) * model.layers,
        pipeline=8,
        tensor=8,
        data=8,
        microbatches=16,
        sequence_parallel=True,
    )
    plan = replace(plan, model=model, job=replace(plan.job, precision="fsdp-fp32-master"))
    assert model.layers + 2 == 16 * 8
    assert plan_findings(plan, "torchtitan") == ()
    one_chunk = replace(plan.configuration, chunks=1, schedule="1f1b")
    even = replace(plan, configuration=one_chunk, sizes=(16, *(15, 16) * 3, 17))
    assert plan_findings(even, "torchtitan") == ()


def test_stages_of_a_94_layer_model() -> None:
    """modelscope/ms-swift#6476: the last of four stages has 22; sequence parallelism is no use."""
    words = (
        "--num-layers 94 --pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 22 "
        "--num-experts 128 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1 "
        "--global-batch-size 64"
    )
    assert stage_sizes(MegatronFlags.from_arguments(words.split())) == (24, 24, 24, 22)
    assert codes(words, 16) == set()
    assert codes(f"{words} --sequence-parallel", 16) == {"SEQUENCE_PARALLEL_WITHOUT_TP"}


# --- bubbles and batches --------------------------------------------------------------------------


def test_a_pipeline_of_twelve_fills_at_a_batch_of_384() -> None:
    """bigscience-workshop/bigscience#70: 384 = 12 x 2 x 16, and 11 of 23 parts are bubble."""
    job = CompleteJob(
        replace(load_model("bloom-176b"), layers=72, vocab=128),  # equal stages, light ends
        load_cluster("a100-80gb:48x8"),
        JobSpec(global_batch=384, sequence_length=2048),
        (),
    )
    plan = plan_from_words(job, "pp=12 tp=2 mbs=2")
    g = plan.configuration
    assert (g.data, g.microbatches) == (16, 12)
    prediction = CostModel(plan.model, plan.cluster, plan.job).terms(plan)
    shares = step_shares(g, prediction)
    bubble = sum(share.seconds for share in shares if share.part == "bubble")
    work = sum(share.seconds for share in shares if share.part == "microbatches")
    assert bubble / (bubble + work) == pytest.approx(11 / 23, abs=0.005)
    both = [stage.forward_s + stage.backward_s for stage in prediction.stages[1:-1]]
    even = (g.pipeline - 1) / (g.microbatches + g.pipeline - 1)
    assert even == 11 / 23
    assert max(both) / min(both) < 1.01


def test_more_stages_than_microbatches() -> None:
    """modelscope/ms-swift#9191: 78 layers on 8 stages, 4 microbatches; fewer stages are better."""
    model = replace(load_model("llama3-70b"), layers=78)
    job, cluster = JobSpec(global_batch=64, sequence_length=8192), load_cluster("h200-141gb:64x8")
    pins = Pins.parse(("tp=4", "pp=8", "mbs=1", "cp=1"), ())
    space = get_space("megatron")
    found = list(enumerate_configurations(model, cluster, job, space, pins, ANY_SCHEDULE))
    left = [item for item in found if isinstance(item, Configuration)]
    assert {(item.data, item.microbatches, item.chunks) for item in left} == {(16, 4, 1)}
    (g, *_) = left
    assert (g.pipeline - 1) / (g.microbatches + g.pipeline - 1) == pytest.approx(0.64, abs=0.005)
    even = replace(model, layers=80)  # chunks would be equal, but rounds of microbatches would not
    refused = enumerate_configurations(even, cluster, job, space, pins, ANY_SCHEDULE)
    rounds = [r for r in refused if isinstance(r, Refusal) and "pp=8 tp=4 cp=1 dp=16" in r.degrees]
    assert {r.code for r in rounds} >= {"MICROBATCHES_NOT_DIVISIBLE_BY_PP"}
    fixed = SearchOptions("megatron", pins=pins)
    asked, free = (search(model, cluster, job, o) for o in (fixed, SearchOptions("megatron")))
    assert asked.plan is not None
    assert free.plan is not None
    assert max(asked.plan.sizes) == 10
    assert free.plan.configuration.pipeline < 8
    ours, theirs = asked.certificate.objective_ticks, free.certificate.objective_ticks
    assert ours is not None
    assert theirs is not None
    assert ours > 1.2 * theirs


# --- ZeRO -----------------------------------------------------------------------------------------


def test_zero_two_with_a_pipeline() -> None:
    """hpcaitech/ColossalAI HybridParallelPlugin: not beside a pipeline."""
    strategies = (Strategy("2-scatter", ()),) * 4
    plan = plan_of((2, 2), strategies, pipeline=2)
    plan = replace(plan, job=replace(plan.job, precision="deepspeed-bf16"))
    for framework in ("colossalai", "deepspeed"):
        assert [f.code for f in plan_findings(plan, framework)] == ["ZERO_GE2_WITH_PP"]
    alone = plan_of((4,), strategies, pipeline=1)
    alone = replace(alone, job=replace(alone.job, precision="deepspeed-bf16"))
    assert plan_findings(alone, "colossalai") == ()


def test_no_pipeline_engine_where_there_is_no_pipeline() -> None:
    """EleutherAI/gpt-neox#1172: one stage must not mean a pipeline of one, or ZeRO 2 is refused.

    GPT-NeoX has no exporter; DeepSpeed's, which it is built on, leaves the section out.
    """
    plan = plan_of((4,), (Strategy("2-scatter", ()),) * 4, pipeline=1)
    assert "pipeline" not in document(plan)
    assert "pipeline" in document(plan_of((2, 2), (SHARDED,) * 4, pipeline=2))


def test_replicas_beside_tensor_ranks() -> None:
    """huggingface/accelerate parallelism_config.py: replicas need sharding."""
    sizes = {"dp_replicate": 2, "dp_shard": 1, "tp": 2}
    config = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
    whole: dict[str, object] = {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_version": 2},
        "num_processes": 4,
        "parallelism_config": config,
    }
    run = AccelerateRun(whole, 16, 16, 2048)
    assert [v.code for v in validate_accelerate(run)] == ["ACCELERATE_DDP_WITH_TP"]
    config |= {"parallelism_config_dp_replicate_size": 1, "parallelism_config_dp_shard_size": 2}
    assert validate_accelerate(run) == ()


# --- what must divide what ------------------------------------------------------------------------


@pytest.mark.parametrize("tensor", [4, 8])
def test_two_key_heads(tensor: int) -> None:
    """pytorch/torchtitan PR#2577, #4016: no more tensor ranks than key heads, unless replicated."""
    plan = plan_of(
        (4,), (Strategy("3-regather", ()),) * 4, pipeline=1, tensor=tensor, sequence_parallel=True
    )
    model = replace(plan.model, kv_heads=2, tied_embeddings=False)
    job = replace(plan.job, precision="fsdp-fp32-master")
    plan = replace(plan, model=model, job=job)
    assert [f.code for f in plan_findings(plan, "torchtitan")] == ["KV_HEADS_NOT_DIVISIBLE_BY_TP"]
    native = replace(plan, job=replace(job, precision="megatron-bf16"))
    assert plan_findings(native, "megatron") == ()
    two = plan_of((4,), plan.strategies, pipeline=1, tensor=2, sequence_parallel=True)
    assert plan_findings(replace(two, model=model, job=job), "torchtitan") == ()


def test_three_tensor_ranks_of_sixty_four_heads() -> None:
    """vllm-project/vllm#52435: only divisors; here it is the one requirement that cannot be met."""
    model = replace(LLAMA, heads=64, hidden=8192)
    cluster = replace(load_cluster("h100-80gb:1x8"), devices_per_node=6)
    job = JobSpec(global_batch=24, sequence_length=2048)
    space, pins = get_space("megatron"), Pins.parse(("tp=3",), ())
    found = explain_job(Question(model, cluster, job, space, pins, ANY_SCHEDULE), lambda _: None)
    assert found.conflict is not None
    assert [member.text for member in found.conflict.members] == ["--fix tp=3"]
    assert found.codes[0] == "HEADS_NOT_DIVISIBLE_BY_TP"
    assert found.relaxations[0].plan is not None


def test_padded_vocabularies() -> None:
    """NVIDIA/Megatron-LM#1754 and epfLLM/Megatron-LLM#103: a multiple of 128 x tp rows."""
    rows = {t: rank_shapes(replace(GPT, vocab=50257), t).vocab * t for t in (1, 2, 8)}
    assert rows == {1: 50304, 2: 50432, 8: 51200}
    assert rank_shapes(replace(LLAMA, vocab=32000), 2).vocab * 2 == 32000
    assert rank_shapes(replace(LLAMA, vocab=32002), 2).vocab * 2 == 32256
    for tensor in (1, 2, 8):
        plan = plan_of((4,), (SHARDED,) * 4, pipeline=1, tensor=tensor)
        assert export_megatron(plan).flags.integer("--make-vocab-size-divisible-by") == 128


def test_colossal_ai_pads_by_sixty_four() -> None:
    """hpcaitech/ColossalAI#6167, #6124: 128,256 rows become 128,512 on 8 ranks."""
    plan = plan_of((4,), (SHARDED,) * 4, pipeline=1, tensor=8, data=2)
    text = export_plan(plan, "colossalai").text
    multiple = int(text.partition("make_vocab_size_divisible_by=")[2].partition(",")[0]) * 8
    assert -(-128256 // multiple) * multiple == 128512


def test_sequences_that_tensor_ranks_cannot_split() -> None:
    """pytorch/torchtitan#1306: a multiple of twice tp x cp."""
    toml = "[training]\nlocal_batch_size=1\nseq_len={}\n[parallelism]\ntensor_parallel_degree=4\n"
    cluster = load_cluster("h100-80gb:1x8")
    for length, broken in ((2046, True), (2044, True), (2048, False)):
        found = file_findings(toml.format(length), "torchtitan", cluster, LLAMA)
        assert ([f.code for f in found] == ["SEQ_NOT_DIVISIBLE"]) == broken


# --- experts --------------------------------------------------------------------------------------


def expert_words(**degrees: int) -> str:
    names = {
        "tp": "--tensor-model-parallel-size",
        "pp": "--pipeline-model-parallel-size",
        "cp": "--context-parallel-size",
        "ep": "--expert-model-parallel-size",
        "etp": "--expert-tensor-parallel-size",
        "experts": "--num-experts",
    }
    words = [f"{names[name]} {value}" for name, value in degrees.items()]
    return " ".join((*words, *(("--sequence-parallel",) if degrees.get("tp", 1) > 1 else ())))


def test_expert_groups_of_an_uneven_pipeline() -> None:
    """modelscope/ms-swift#5737: 64 devices do, 32 do not; 46 layers are 11, 12, 12, 11."""
    ends = "--decoder-first-pipeline-num-layers 11 --decoder-last-pipeline-num-layers 11"
    words = f"--num-layers 46 {ends} {expert_words(tp=8, pp=4, ep=16, etp=1, experts=128)}"
    flags = MegatronFlags.from_arguments(words.split())
    degrees = read_expert_degrees(flags)
    assert stage_sizes(flags) == (11, 12, 12, 11)
    assert degrees.world_multiple == 64
    assert degrees.expert_data(64) == 1
    assert codes(f"{words} --global-batch-size 16", 64) == set()
    assert codes(f"{words} --global-batch-size 16", 32) == {"EXPERT_GROUP_NOT_DIVIDING_WORLD"}


def test_the_product_is_printed_with_the_values_used() -> None:
    """NVIDIA-NeMo/Speech#14838: 4 divides 4, but 24 chunks on 2 ranks are more than 24 layers."""
    words = f"--num-layers 24 {expert_words(pp=2, ep=2, etp=1, experts=32)}"
    assert codes(words, 4) == set()
    chunks = f"{words} --num-virtual-stages-per-pipeline-rank 24"
    assert codes(chunks, 4) == {"TOO_MANY_VIRTUAL_STAGES"}
    other = words.replace("--expert-model-parallel-size 2", "--expert-model-parallel-size 4")
    found = file_findings(
        f"{other} --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --seq-length 64",
        "megatron",
        load_cluster("h100-80gb:1x4"),
        None,
    )
    assert [f.message.partition(";")[0] for f in found] == ["devices=4, etp*ep*pp=1*4*2=8"]


def test_the_expert_tensor_degree_must_be_said() -> None:
    """NVIDIA-NeMo/Megatron-Bridge#546: absent it is the tensor degree, and 16 ranks are needed."""
    words = f"--num-layers 48 {expert_words(tp=4, ep=4, experts=128)}"
    assert codes(words, 4) == {"EXPERT_GROUP_NOT_DIVIDING_WORLD"}
    said = f"{words} --expert-tensor-parallel-size 1"
    assert codes(said, 4) == set()
    assert read_expert_degrees(MegatronFlags.from_arguments(said.split())).expert_data(4) == 1


@pytest.mark.parametrize(("experts_by", "copies"), [(16, 2), (32, 1)])
def test_expert_ranks_fold_over_context_ranks(experts_by: int, copies: int) -> None:
    """NVIDIA-NeMo/Megatron-Bridge#4980: 32 ways with 2 data ranks, since 16 context ranks count."""
    words = f"--num-layers 48 {expert_words(cp=16, ep=experts_by, etp=1, experts=256)}"
    assert codes(words, 32) == set()
    degrees = read_expert_degrees(MegatronFlags.from_arguments(words.split()))
    assert degrees.expert_data(32) == copies
    assert 256 // experts_by == 8 * copies


def test_the_world_that_thirty_two_expert_ranks_need() -> None:
    """verl-project/verl PR#1467: a multiple of lcm(4, 64)."""
    words = f"--num-layers 94 {expert_words(tp=2, pp=2, ep=32, etp=1, experts=128)}"
    flags = MegatronFlags.from_arguments(words.split())
    assert read_expert_degrees(flags).world_multiple == 64
    assert stage_sizes(flags) == (47, 47)
    answers = {n: codes(words, n) for n in (32, 64, 96, 128)}
    wrong = {"EXPERT_GROUP_NOT_DIVIDING_WORLD"}
    assert answers == {32: wrong, 64: set(), 96: wrong, 128: set()}


def test_the_experts_of_a_rank_are_what_failed_to_be_allocated() -> None:
    """modelscope/ms-swift#9403: 47 layers of 16 experts in two bytes each, a second time."""
    words = f"--num-layers 94 {expert_words(tp=4, pp=2, ep=8, etp=1, experts=128)}"
    assert codes(f"{words} --global-batch-size 16", 32) == set()
    model = load_model("qwen3-235b-a22b")
    shapes = rank_shapes(model, tensor=4, expert=8, expert_tensor=1)
    assert shapes.experts == 16
    assert 47 * shapes.routed_parameters * 2 / 2**30 == 26.4375
