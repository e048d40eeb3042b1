"""A plan as settings of a Megatron-Bridge ``ConfigContainer``.

Attribute names: Megatron-Bridge commit 067f987d, src/megatron/bridge/training/config.py and
docs/parallelisms.md. Everything follows from the options of Megatron-LM, whose rules hold here
too; the two differ in words only, but for three things: the number of virtual stages is given, not
their size; a pipeline needs the dtype of what it sends; and the settings of evaluation repeat those
of training, because an evaluation batch must divide in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.export import megatron
from ilp_parallel.export.base import Exporter, ExportFile, Note, Written, common_notes
from ilp_parallel.export.megatron_blocks import predicted_layers
from ilp_parallel.export.megatron_flags import MegatronFlags
from ilp_parallel.export.megatron_rules import validate_megatron
from ilp_parallel.export.python_file import Expression, Value, assignments, comments
from ilp_parallel.export.python_file import read_assignments as read_python
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.export.megatron_flags import MegatronExport
    from ilp_parallel.plan import Plan

_INTEGERS = {
    "--tensor-model-parallel-size": "model.tensor_model_parallel_size",
    "--pipeline-model-parallel-size": "model.pipeline_model_parallel_size",
    "--context-parallel-size": "model.context_parallel_size",
    "--expert-model-parallel-size": "model.expert_model_parallel_size",
    "--expert-tensor-parallel-size": "model.expert_tensor_parallel_size",
    "--decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
    "--num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "--recompute-num-layers": "model.recompute_num_layers",
    "--seq-length": "model.seq_length",
    "--micro-batch-size": "train.micro_batch_size",
    "--global-batch-size": "train.global_batch_size",
}
_TEXTS = {
    "--pipeline-model-parallel-layout": "model.pipeline_model_parallel_layout",
    "--recompute-granularity": "model.recompute_granularity",
    "--recompute-method": "model.recompute_method",
    "--data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "--ckpt-format": "checkpoint.ckpt_format",
}
_SWITCHES = {
    "--sequence-parallel": "model.sequence_parallel",
    "--use-distributed-optimizer": "ddp.use_distributed_optimizer",
    "--overlap-grad-reduce": "ddp.overlap_grad_reduce",
    "--overlap-param-gather": "ddp.overlap_param_gather",
    "--use-megatron-fsdp": "ddp.use_megatron_fsdp",
}
_MODULES = "model.recompute_modules"
_CLEARED = (
    "model.virtual_pipeline_model_parallel_size",
    "model.num_layers_in_first_pipeline_stage",
    "model.num_layers_in_last_pipeline_stage",
    "model.pipeline_model_parallel_layout",
    "model.recompute_granularity",
    "model.recompute_method",
    "model.recompute_num_layers",
)
"""Settings a recipe may have made and the plan does not: they are set to None."""

_MIXED_PRECISION = {
    "megatron-bf16": "bf16_mixed",
    "megatron-fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
}
"""Names of Megatron-Bridge's precision recipes (training/mixed_precision.py)."""


def settings(plan: Plan) -> dict[str, Value]:
    """Attributes of the container that make it run a plan."""
    flags = dict(megatron.megatron_export(plan).flags.items)
    chunks = plan.configuration.chunks
    if "--num-layers-per-virtual-pipeline-stage" in flags:
        flags["--num-virtual-stages-per-pipeline-rank"] = (str(chunks),)
    found: dict[str, Value] = dict.fromkeys(_CLEARED)
    found["model.context_parallel_size"] = 1
    found |= {_INTEGERS[name]: int(v[0]) for name, v in flags.items() if name in _INTEGERS}
    found |= {_TEXTS[name]: v[0] for name, v in flags.items() if name in _TEXTS}
    found |= {name: switch in flags for switch, name in _SWITCHES.items()}
    found["optimizer.use_distributed_optimizer"] = "--use-distributed-optimizer" in flags
    found["dist.use_megatron_fsdp"] = "--use-megatron-fsdp" in flags
    if "--recompute-modules" in flags:
        found[_MODULES] = list(flags["--recompute-modules"])
    if "--use-megatron-fsdp" in flags:
        found["model.gradient_accumulation_fusion"] = False
    if plan.configuration.pipeline > 1:
        sixteen = "float16" if plan.job.precision == "megatron-fp16" else "bfloat16"
        found["model.pipeline_dtype"] = Expression(f"torch.{sixteen}")
    if plan.job.precision in _MIXED_PRECISION:
        found["mixed_precision"] = _MIXED_PRECISION[plan.job.precision]
    found["dataset.seq_length"] = plan.job.sequence_length
    found["validation.eval_micro_batch_size"] = plan.configuration.microbatch
    found["validation.eval_global_batch_size"] = plan.job.global_batch
    return found


def read_settings(text: str, layers: int, experts: int = 0) -> MegatronFlags:
    """Megatron-LM's options that mean the same as the settings in a Python file.

    ``layers`` and ``experts`` are the numbers of the recipe's model, prediction layers left out.

    Raises
    ------
    InputError
        ``MALFORMED_PYTHON``, or ``WRONG_TYPE`` for a value that is no literal.
    """
    found = read_python(text, "cfg")
    words = ["--num-layers", str(layers)]
    words += ["--num-experts", str(experts)] if experts else []
    for names, kind in ((_INTEGERS, int), (_TEXTS, str)):
        for flag, name in names.items():
            value = found.get(name)
            if value is None:
                continue
            if type(value) is not kind:
                raise InputError(
                    "WRONG_TYPE", f"{name} is {shown(repr(value)[:200])}", f"give a {kind.__name__}"
                )
            words += [flag, str(value)]
    words += [flag for flag, name in _SWITCHES.items() if found.get(name) is True]
    modules = found.get(_MODULES)
    if isinstance(modules, list):
        words += ["--recompute-modules", *map(str, modules)]
    return MegatronFlags.from_arguments(words)


def _lacks(plan: Plan) -> Iterator[str]:
    yield from megatron.lacks(plan)
    if plan.job.precision == "bf16-moments":
        yield "bf16 moments (set them in the optimizer's own configuration)"


def _notes(plan: Plan, export: MegatronExport) -> Iterator[Note]:
    yield Note(
        "RECIPE_NEEDED",
        "Call apply_plan on the container of a recipe for this model "
        f"({plan.model.name}: {plan.model.layers} layers, hidden {plan.model.hidden}).",
    )
    if plan.model.has_experts:
        yield Note("ROUTER_LOAD", "The load of the experts was taken to be even.")
    exports = " ".join(f"{name}={value}" for name, value in export.environment)
    yield Note("ENVIRONMENT", f"Set in the environment: {exports}.")
    launch = f"torchrun --nnodes {export.nodes} --nproc-per-node {export.devices_per_node}"
    yield Note("LAUNCH", f"Start with {launch}.")
    yield from common_notes(plan, "megatron", "Megatron-Bridge")


def _write(plan: Plan) -> Written:
    export = megatron.megatron_export(plan)
    notes = tuple(_notes(plan, export))
    found = settings(plan)
    layers = plan.model.layers - predicted_layers(plan.model)
    imports = "import torch\n\n\n" if plan.configuration.pipeline > 1 else "\n"
    text = (
        f'"""{plan.model.name} on {plan.configuration.devices} devices: Megatron-Bridge."""\n\n'
        f"{comments(notes)}\n{imports}def apply_plan(cfg):\n"
        '    """Set what the plan decides on a ConfigContainer."""\n'
        f"    if cfg.model.num_layers != {layers}:\n"
        f'        raise ValueError("the plan is for a model of {layers} layers")\n'
        f"{assignments('cfg', found)}    return cfg\n"
    )
    return Written((ExportFile("apply_plan.py", text),), notes, validate_megatron(export))


EXPORTER = Exporter(
    "megatron-bridge",
    "Megatron-Bridge",
    _lacks,
    megatron.recomputations,
    megatron.precision,
    _write,
    megatron.ADVICE,
    experts=True,
)
