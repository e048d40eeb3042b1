"""Jobs completed from presets, with everything assumed said."""

from __future__ import annotations

import pytest

from ilp_parallel.errors import InputError
from ilp_parallel.jobs import JobRequest, complete_job
from ilp_parallel.specs.readers import load_cluster, load_model, model_names


@pytest.mark.parametrize("name", model_names())
def test_every_preset_is_a_complete_job(name: str) -> None:
    job = complete_job(JobRequest(model=name))
    model = load_model(name)
    assert job.model == model
    assert (job.job.global_batch, job.job.sequence_length) == (
        model.default_batch,
        model.default_sequence,
    )
    said = " ".join(job.assumed)
    for word in ("cluster", "batch", "sequence", "precision", "optimizer", "attention", "stack"):
        assert word in said
    assert "inside a node" in said
    assert "between nodes" in said


def test_what_is_given_is_not_assumed() -> None:
    job = complete_job(
        JobRequest(
            model="llama3-8b",
            cluster="h100-80gb:2x8",
            batch=64,
            sequence=4096,
            precision="deepspeed-bf16",
            optimizer="sgd",
            attention="unfused",
            norm_kernel="eager",
            stack="deepspeed",
            intra_bandwidth="200GB/s",
            inter_bandwidth="400Gb/s",
            reserve_gib=2.5,
        )
    )
    assert job.assumed == ()
    assert job.cluster.devices == 16
    assert job.cluster.intra.bandwidth_bytes_per_s == 200e9
    assert job.cluster.inter.bandwidth_bytes_per_s == 50e9
    assert job.cluster.intra.latency_s == load_cluster("h100-80gb").intra.latency_s
    spec = job.job
    assert (spec.global_batch, spec.sequence_length) == (64, 4096)
    assert (spec.precision, spec.optimizer) == ("deepspeed-bf16", "sgd")
    assert (spec.attention, spec.norm_kernel, spec.stack) == ("unfused", "eager", "deepspeed")
    assert spec.reserve_bytes == 5 * 2**29


def test_precision_follows_the_device() -> None:
    volta = complete_job(JobRequest(model="gpt2-xl", cluster="v100-32gb:1x8"))
    assert volta.job.precision == "megatron-fp16"  # no bf16 on the matrix units of Volta
    ampere = complete_job(JobRequest(model="gpt2-xl", cluster="a100-80gb:1x8"))
    assert ampere.job.precision == "megatron-bf16"


@pytest.mark.parametrize(
    "request_",
    [
        JobRequest(model="gpt3", batch=0),
        JobRequest(model="gpt3", batch=10**30),
        JobRequest(model="gpt3", sequence=-1),
        JobRequest(model="gpt3", precision=""),
        JobRequest(model="gpt3", cluster=""),
        JobRequest(model="gpt3", reserve_gib=float("inf")),
        JobRequest(model="gpt3", reserve_gib=1e9),
        JobRequest(model="gpt3", inter_bandwidth="1e99GB/s"),
        JobRequest(model=""),
    ],
    ids=range(9),
)
def test_refused(request_: JobRequest) -> None:
    with pytest.raises(InputError) as refused:
        complete_job(request_)
    assert "\n" not in str(refused.value)
