"""Whatever the bytes are, a reader gives a specification or one line of error."""

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import parse_document
from ilp_parallel.specs.huggingface import is_huggingface, model_fields
from ilp_parallel.specs.readers import data_root, load_cluster, load_model
from ilp_parallel.specs.validate import check_cluster, check_model, to_cluster, to_model

LLAMA = json.dumps(
    {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 100,
    }
).encode()
SEEDS = [
    LLAMA,
    (data_root() / "models" / "gpt3.json").read_bytes(),
    (data_root() / "models" / "deepseek-v3.json").read_bytes(),
    (data_root() / "models" / "nemotron-h-8b.json").read_bytes(),
    (data_root() / "clusters" / "a100-80gb.json").read_bytes(),
]
PIECES = [
    *(b"null", b"true", b"1e30", b"-1", b"0", b"NaN", b"[]", b"{}", b'""', b'"x"', b"1e400"),
    *(b"9" * 30, b"9" * 5000, b"\xff", b"\x00", b"{" * 50, b'"\\ud800"', b"&a ", b"*a", b"- "),
]


def mutated(seed: int) -> bytes:
    """A seed document with a few bytes, values or slices replaced."""
    rng = random.Random(seed)
    content = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        kind = rng.random()
        if kind < 0.6:  # a value after a colon
            colons = [i for i, byte in enumerate(content) if byte == ord(":")]
            start = rng.choice(colons) + 1 if colons else start
            ends = [i for i in range(start, len(content)) if content[i] in b",}\n"]
            stop = ends[0] if ends else start
        else:
            stop = min(len(content), start + rng.randrange(20))
        content = content[:start] + rng.choice([*PIECES, b""]) + content[stop:]
    return content


def read_all(content: bytes) -> int:
    """Read as JSON and YAML, as model and cluster; the number of specifications accepted."""
    accepted = 0
    for origin in ("fuzz.json", "fuzz.yaml"):
        for build in (_model, _cluster):
            try:
                build(content, origin)
                accepted += 1
            except InputError as error:
                assert error.code.isupper()
                assert str(error).isprintable()
    return accepted


def _model(content: bytes, origin: str) -> None:
    data = parse_document(content, origin)
    model = to_model(model_fields(data, origin) if is_huggingface(data) else data, origin)
    check_model(model)
    assert 0 < model.parameters <= 10**15


def _cluster(content: bytes, origin: str) -> None:
    cluster = to_cluster(parse_document(content, origin), origin)
    check_cluster(cluster)
    assert 0 < cluster.devices <= 2**24


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_mutated_documents(seed: int) -> None:
    read_all(mutated(seed))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(content: bytes) -> None:
    read_all(content)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40) | st.from_regex(r"(a100|gb200|h100-80gb)(:\d{0,12}x?\d{0,12})?"))
def test_random_names(text: str) -> None:
    for load in (load_model, load_cluster):
        try:
            load(text)
        except InputError as error:
            assert str(error).isprintable()


def test_the_seeds_themselves_are_accepted() -> None:
    assert [read_all(content) >= 1 for content in SEEDS] == [True] * len(SEEDS)
