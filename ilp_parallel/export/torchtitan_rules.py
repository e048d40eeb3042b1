"""What torchtitan demands of its configuration.

Sources in torchtitan commit b5bcd76c: ``dims`` is torchtitan/distributed/parallel_dims.py,
``decoder`` torchtitan/models/common/decoder.py, ``parallelize``
torchtitan/models/llama3/infra/parallelize.py, ``pipeline`` torchtitan/distributed/
pipeline_parallel.py; numbers with # are issues of the project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ilp_parallel.errors import InputError
from ilp_parallel.export.base import Violation


@dataclass(frozen=True, slots=True)
class TitanRun:
    """A configuration in the words of the TOML form, and the shapes its rules depend on."""

    sections: Mapping[str, Mapping[str, object]]
    devices: int
    layers: int
    heads: int
    kv_heads: int
    tied_embeddings: bool

    def integer(self, section: str, name: str, default: int) -> int:
        """A positive integer.

        Raises
        ------
        InputError
            ``WRONG_TYPE``.
        """
        value = self.sections.get(section, {}).get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**40:
            raise InputError("WRONG_TYPE", f"{section}.{name}", "give a positive integer")
        return value

    def degree(self, name: str) -> int:
        """A degree of ``[parallelism]``; 1 where absent."""
        return self.integer("parallelism", name, 1)

    @property
    def shard(self) -> int:
        """Ranks that shard weights; -1 or absent means all that are left."""
        given = self.sections.get("parallelism", {}).get("data_parallel_shard_degree", -1)
        if given != -1:
            return self.degree("data_parallel_shard_degree")
        return max(1, self.devices // (self.degree("data_parallel_replicate_degree") * self.model))

    @property
    def model(self) -> int:
        """Devices that hold one copy of the model: tensor times context times pipeline degree."""
        names = ("tensor_parallel_degree", "context_parallel_degree", "pipeline_parallel_degree")
        product = 1
        for name in names:
            product *= self.degree(name)
        return product

    @property
    def data(self) -> int:
        """Ranks with data of their own."""
        return self.shard * self.degree("data_parallel_replicate_degree")

    def stages(self) -> list[list[str]] | None:
        """Modules of every virtual stage, or None where they are left to torchtitan."""
        value = self.sections.get("parallelism", {}).get("module_fqns_per_model_part")
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(part, list) and all(isinstance(name, str) for name in part) for part in value
        ):
            raise InputError("WRONG_TYPE", "module_fqns_per_model_part", "give lists of names")
        return value


Rule = Callable[[TitanRun], Iterator[Violation]]


def world(run: TitanRun) -> Iterator[Violation]:
    """The product of all degrees is the number of ranks (dims:182)."""
    product = run.model * run.data
    if product != run.devices:
        yield Violation("DEGREES_NOT_WORLD_SIZE", f"product={product}, devices={run.devices}")


def heads(run: TitanRun) -> Iterator[Violation]:
    """Tensor degree divides heads and key-value heads, which are not replicated (decoder:185)."""
    tensor = run.degree("tensor_parallel_degree")
    if run.heads % tensor:
        yield Violation("HEADS_NOT_DIVISIBLE_BY_TP", f"heads={run.heads}, tp={tensor}")
    if run.kv_heads % tensor:
        yield Violation(
            "KV_HEADS_NOT_DIVISIBLE_BY_TP",
            f"kv_heads={run.kv_heads}, tp={tensor} (torchtitan cannot replicate key-value heads)",
        )


def sequence(run: TitanRun) -> Iterator[Violation]:
    """Twice the tensor times context degree divides the sequence (dims:664, #1306)."""
    tensor, context = run.degree("tensor_parallel_degree"), run.degree("context_parallel_degree")
    length = run.integer("training", "seq_len", 2048)
    if tensor * context > 1 and length % (2 * tensor * context):
        yield Violation("SEQ_NOT_DIVISIBLE", f"seq={length}, 2*tp*cp={2 * tensor * context}")


def replication(run: TitanRun) -> Iterator[Violation]:
    """Weights that are only replicated (DDP) go with no other parallelism (parallelize)."""
    replicate = run.degree("data_parallel_replicate_degree")
    if replicate > 1 and run.shard == 1 and run.model > 1:
        yield Violation("DDP_WITH_MODEL_PARALLELISM", f"replicate={replicate}, rest={run.model}")


def batch(run: TitanRun) -> Iterator[Violation]:
    """Local batch times data ranks divides the global batch; microbatches divide the local one."""
    local = run.integer("training", "local_batch_size", 8)
    total = run.integer("training", "global_batch_size", local * run.data)
    if total % (local * run.data):
        yield Violation(
            "GLOBAL_BATCH_NOT_DIVISIBLE", f"batch={total}, local*data={local * run.data}"
        )
    if run.degree("pipeline_parallel_degree") > 1:
        size = run.integer("parallelism", "pipeline_parallel_microbatch_size", 1)
        if local % size:
            yield Violation("LOCAL_BATCH_NOT_DIVISIBLE", f"local={local}, microbatch={size}")


def pipeline(run: TitanRun) -> Iterator[Violation]:
    """Schedule, stages and microbatches go together (pipeline; #775: fewer than pp may hang)."""
    degree = run.degree("pipeline_parallel_degree")
    if degree == 1:
        return
    if run.tied_embeddings:
        yield Violation("TIED_EMBEDDINGS_WITH_PP", f"pp={degree} (decoder:168)")
    local = run.integer("training", "local_batch_size", 8)
    size = run.integer("parallelism", "pipeline_parallel_microbatch_size", 1)
    if local // size < degree:
        yield Violation("MICROBATCHES_FEWER_THAN_PP", f"microbatches={local // size}, pp={degree}")
    stages = run.stages()
    if stages is None:
        return
    if len(stages) % degree:
        yield Violation("STAGES_NOT_DIVISIBLE_BY_PP", f"stages={len(stages)}, pp={degree}")
    schedule = run.sections.get("parallelism", {}).get("pipeline_parallel_schedule", "1F1B")
    single = schedule in ("1F1B", "GPipe")
    if single != (len(stages) == degree):
        yield Violation(
            "SCHEDULE_NOT_FOR_STAGES", f"{schedule} with {len(stages)} stages on {degree}"
        )


def modules(run: TitanRun) -> Iterator[Violation]:
    """Every layer is on exactly one stage, in order, and the ends are there (PR 963)."""
    stages = run.stages()
    if stages is None:
        return
    names = [name for stage in stages for name in stage]
    layers = [f"layers.{i}" for i in range(run.layers)]
    ends = [name for name in names if not name.startswith("layers.")]
    if [name for name in names if name.startswith("layers.")] != layers:
        yield Violation("LAYERS_NOT_COVERED_ONCE", f"layers={run.layers}, placed={len(names)}")
    if len(ends) != 3 or ends[:2] != ["tok_embeddings", "norm"] or names[0] != ends[0]:
        yield Violation("MODULES_MISSING", "tok_embeddings first, norm and output last")


RULES: tuple[Rule, ...] = (world, heads, sequence, replication, batch, pipeline, modules)


def validate_titan(run: TitanRun) -> tuple[Violation, ...]:
    """Every rule that a configuration breaks.

    Raises
    ------
    InputError
        If a value has the wrong type.
    """
    return tuple(violation for rule in RULES for violation in rule(run))
