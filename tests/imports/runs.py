"""Small runs in the words of other programs, written for these tests."""

from __future__ import annotations

import json

SCRIPT = r"""#!/bin/bash
# Trains a small model; comments, arrays, defaults and arithmetic as users write them.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8
NODES=${NNODES:-2}
WORLD=$(($GPUS*$NODES))
TP=2
LAUNCH=(
    --nproc_per_node $GPUS  # per node
    --nnodes $NODES
    --master_addr $MASTER_ADDR
)
MODEL_ARGS="
    --num-layers 12 --hidden-size 1024 --num-attention-heads 16
    --seq-length 2048 --max-position-embeddings 2048
"
TRAIN=(
    --micro-batch-size 1 --global-batch-size $((4*$WORLD)) --bf16
    --lr 6.0e-5 --lr-decay-style cosine
)
torchrun ${LAUNCH[@]} pretrain_gpt.py \
    ${MODEL_ARGS} "${TRAIN[@]}" --vocab-file $VOCAB \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 4 \
    --sequence-parallel --use-distributed-optimizer 2>&1 | tee log.txt
"""

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
seq_len = 4096
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""

DEEPSPEED = json.dumps(
    {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }
)

GALVATRON = json.dumps(
    {
        "pp_deg": 2,
        "tp_sizes_enc": "2,2,2,2,2",
        "tp_consecutive_flags": "1,1,1,1,1",
        "dp_types_enc": "0,0,1,1,0",
        "checkpoint": "1,0,0,0,0",
        "global_bsz": 16,
        "chunks": 4,
        "pipeline_type": "pipedream_flush",
        "default_dp_type": "zero2",
        "vtp": 2,
        "world_size": 8,
    }
)

APPLICATION = json.dumps(
    {
        "hidden": 1024,
        "feedforward": 4096,
        "seq_size": 2048,
        "attn_heads": 16,
        "attn_size": 64,
        "num_blocks": 24,
    }
)
EXECUTION = json.dumps(
    {
        "num_procs": 16,
        "tensor_par": 4,
        "pipeline_par": 2,
        "data_par": 2,
        "batch_size": 32,
        "microbatch_size": 2,
        "datatype": "float16",
        "activation_recompute": "attn_only",
        "pipeline_interleaving": 3,
        "optimizer_sharding": True,
        "tensor_par_comm_type": "rs_ag",
        "weight_offload": False,
        "training": True,
    }
)
SYSTEM = json.dumps(
    {
        "matrix": {"tflops": 312},
        "vector": {"tflops": 78},
        "mem1": {"GiB": 80, "GBps": 2039},
        "networks": [
            {"bandwidth": 300, "size": 8, "latency": 1e-6},
            {"bandwidth": 25, "size": 65536, "latency": 2e-6},
        ],
    }
)

NCCL_HEADER = "# Using devices\n" + "".join(
    f"#  Rank {rank:2} Group  0 Pid  1{rank} on  {host} device  {rank % 2} [0x07] NVIDIA A100\n"
    for rank, host in enumerate(("n1", "n1", "n2", "n2"))
)
NCCL_ROWS = """#
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    30.00    0.03    0.05      0    30.1
   268435456      67108864     float     sum      -1   4000.0   67.00   88.00      0   4001
   536870912     134217728     float     sum      -1   8000.0   67.10   90.00      0   8001
  1073741824     268435456     float     sum      -1  16000.0   67.20   92.00      0  16001
# Avg bus bandwidth    : 60.0
"""
