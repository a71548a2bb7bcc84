"""Capture files: what is written comes back, and nothing that lies is believed."""

import json
import os
import struct
import sys

import pytest
import torch
from safetensors.torch import save_file

from topokv.inputs import SAMPLE, Capture, captured, load_capture, read_header, save_capture
from topokv.inputs.capture_file import CapturedLayer

TOKENS, POSITIONS = 10, (4, 9)


def tensors(**changes):
    """The tensors of a good capture of layer 3; a change replaces one, None leaves it out."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).half()

    good = {
        "positions": torch.tensor(POSITIONS),
        "layers.3.q": draw(1, 6, len(POSITIONS), 8),
        "layers.3.k": draw(1, 2, TOKENS, 8),
        "layers.3.v": draw(1, 2, TOKENS, 8),
    }
    changed = good | {name.replace("_", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in changed.items() if tensor is not None}


def write(path, held, **metadata):
    known = {"format": "topokv-capture", "version": "1", **metadata}
    save_file(held, path, {name: text for name, text in known.items() if text is not None})
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "capture.safetensors"


def refused(path):
    """The message that refuses the file at `path`, without its beginning, which is the path."""
    with pytest.raises(ValueError) as error:
        load_capture(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_what_is_saved_comes_back(file):
    held = tensors()
    layer = CapturedLayer(*(held[f"layers.3.{part}"] for part in "qkv"))
    save_capture(file, Capture("x", POSITIONS, {3: layer}, {"model": "m"}))
    read = load_capture(file)
    assert read.name == "capture"
    assert read.positions == POSITIONS
    assert read.kv_len == TOKENS
    assert read.metadata["model"] == "m"
    assert all(torch.equal(*pair) for pair in zip(read.layer(3), layer, strict=True))
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no file modes")
def test_a_capture_is_as_readable_as_any_new_file(file):
    other = file.with_name("other")
    other.touch()
    layer = CapturedLayer(*(tensors()[f"layers.3.{part}"] for part in "qkv"))
    save_capture(file, Capture("x", POSITIONS, {3: layer}, {}))
    assert file.stat().st_mode == other.stat().st_mode


def test_a_layer_that_is_not_there_is_refused_with_those_that_are(file):
    write(file, tensors())
    with pytest.raises(ValueError) as error:
        load_capture(file, layers=(5,))
    assert str(error.value) == f"{file}: layer 5 is not captured; it holds 3"
    with pytest.raises(ValueError, match="^capture: layer 5 is not captured; it holds 3$"):
        load_capture(file).layer(5)


def test_the_sample_is_small_real_and_says_where_it_comes_from():
    assert SAMPLE.stat().st_size < 4_000_000
    sample = load_capture(SAMPLE)
    assert list(sample.layers) == [10, 21]
    assert sample.kv_len == 2048
    assert len(sample.positions) == 8
    told = sample.metadata
    assert told["model"].startswith("Smollm2 135M")
    assert (told["license"], told["text_license"]) == ("apache-2.0", "PSF-2.0")
    assert {"text", "text_sha256", "tokens", "torch", "transformers"} <= told.keys()
    work = captured(sample, 10)
    assert work.is_real
    assert work.q.shape == (1, 9, 1, 64)


NAN = torch.full((1, 2, TOKENS, 8), float("nan"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers_3_k": NAN.half()}, "layers.3.k holds NaN or infinity; capture it again"),
        ({"layers_3_v": -NAN.bfloat16()}, "layers.3.v holds NaN or infinity; capture it again"),
        (
            {"layers_3_q": torch.full((1, 6, 2, 8), float("inf"))},
            "layers.3.q holds NaN or infinity; capture it again",
        ),
        (
            {"layers_3_k": torch.zeros(2, TOKENS, 8)},
            f"layers.3.k must be [1, heads, tokens, head_dim], got [2, {TOKENS}, 8]",
        ),
        (
            {"layers_3_k": torch.zeros(1, 2, 0, 8)},
            "layers.3.k must be [1, heads, tokens, head_dim], got [1, 2, 0, 8]",
        ),
        (
            {"layers_3_k": torch.zeros(2, 2, TOKENS, 8)},
            f"layers.3.k must be [1, heads, tokens, head_dim], got [2, 2, {TOKENS}, 8]",
        ),
        (
            {"layers_3_k": torch.zeros(1, 2, TOKENS, 8, dtype=torch.int64)},
            "layers.3.k must be one of F16, BF16, F32, F64, got I64",
        ),
        (
            {"layers_3_q": torch.zeros(1, 6, 2, 16)},
            "layers.3: q has head_dim 16 and k has 8; are they of one model?",
        ),
        (
            {"layers_3_q": torch.zeros(1, 5, 2, 8)},
            "layers.3: num_q_heads (5) must be a multiple of num_kv_heads (2)",
        ),
        (
            {"layers_3_v": torch.zeros(1, 2, TOKENS - 1, 8)},
            f"layers.3: k [1, 2, {TOKENS}, 8] and v [1, 2, {TOKENS - 1}, 8] "
            "must have the same shape",
        ),
        ({"layers_3_q": torch.zeros(1, 6, 3, 8)}, "layers.3: q has 3 positions, the file 2"),
        ({"layers_3_v": None}, "layers.3 has no v"),
        ({"positions": None}, "a capture needs 'positions' and at least one layer"),
        (
            {f"layers_3_{part}": None for part in "qkv"},
            "a capture needs 'positions' and at least one layer",
        ),
        (
            {"positions": torch.tensor([9, 4])},
            f"positions must ascend from 0 to {TOKENS - 1}, got [9, 4]",
        ),
        (
            {"positions": torch.tensor([4, TOKENS])},
            f"positions must ascend from 0 to {TOKENS - 1}, got [4, {TOKENS}]",
        ),
        (
            {"positions": torch.tensor([-1, 4])},
            f"positions must ascend from 0 to {TOKENS - 1}, got [-1, 4]",
        ),
        ({"positions": torch.tensor([4.0, 9.0])}, "positions must be I64 of rank 1, got F32 [2]"),
        (
            {"layers_03_q": torch.zeros(1)},
            "unexpected tensor 'layers.03.q'; expected 'layers.0.q' and the like",
        ),
    ],
)
def test_tensors_that_contradict_a_capture_are_refused(file, changes, message):
    assert refused(write(file, tensors(**changes))) == message


def test_layers_of_different_length_are_refused(file):
    other = {f"layers.4.{part}": torch.zeros(1, 2, 12, 8) for part in "kv"}
    other["layers.4.q"] = torch.zeros(1, 2, 2, 8)
    assert refused(write(file, tensors() | other)) == "layers hold 10 and 12 tokens"


def test_another_format_is_refused(file):
    message = "not a capture: its metadata lacks format 'topokv-capture'"
    assert refused(write(file, tensors(), format=None)) == message
    assert refused(write(file, tensors(), format="pt")) == message


def test_a_future_version_is_refused(file):
    message = "this topokv reads captures of version '1', not '2'"
    assert refused(write(file, tensors(), version="2")) == message


def raw(file, header, data=b"", length=None):
    """A file of this header, right or wrong, and these bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return file


def entry(shape, begin, end, dtype="F16"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        ({}, b"", 2**62),
        ({}, b"", 2**40),
        (b"not json", b"", None),
        (b"[" * 100_000, b"", None),
        ({"layers.0.k": entry([1, 2, 2**40, 8], 0, 2**45)}, b"\0" * 64, None),
        ({"layers.0.k": entry([1, 2, 2**40, 8], 0, 64)}, b"\0" * 64, None),
        ({"layers.0.k": entry([2**62, 2**62, 2**62, 8], 0, 64)}, b"\0" * 64, None),
        ({"layers.0.k": entry([-1, 2, 2, 8], 0, 64)}, b"\0" * 64, None),
        ({"a": entry([32], 0, 64), "b": entry([32], 32, 96)}, b"\0" * 96, None),
        ({"a": entry([32], 0, 64)}, b"\0" * 4096, None),
        ({"a": entry([32], 0, 64, "F5")}, b"\0" * 64, None),
        ({"a": entry([16], 64, 32)}, b"\0" * 64, None),
    ],
    ids=[
        "header longer than memory",
        "header longer than the file",
        "no JSON",
        "nested too deeply",
        "tensor beyond the file",
        "shape larger than its bytes",
        "shape that overflows",
        "negative size",
        "overlap",
        "bytes of no tensor",
        "unknown type",
        "end before begin",
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_read(file, header, data, length):
    assert refused(raw(file, header, data, length)).startswith("not a safetensors file: ")


def test_no_more_is_allocated_than_the_file_holds(file):
    # Shapes that a header may claim with no bytes behind them, since one of their sizes is 0.
    shape = [1, 0, 2**40, 2**20]
    held = {f"layers.0.{part}": entry(shape, 0, 0) for part in "qkv"}
    held["positions"] = entry([2**40, 0], 0, 0, "I64")
    held["__metadata__"] = {"format": "topokv-capture", "version": "1"}
    assert refused(raw(file, held)).endswith(f"got {shape}")


@pytest.mark.parametrize("size", [0, 4, 8, 100, -1])
def test_a_truncated_file_is_refused(file, size):
    whole = write(file, tensors()).read_bytes()
    file.write_bytes(whole[:size])
    assert refused(file).startswith("not a safetensors file: ")


def test_a_pickle_is_refused_unopened(file):
    torch.save({"positions": torch.tensor([1])}, file)
    assert refused(file).startswith("not a safetensors file: ")


def test_a_missing_file_and_a_folder_are_refused(file, tmp_path):
    assert refused(file) == "no such file"
    assert refused(tmp_path) == "not a regular file"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_a_pipe_is_refused_and_not_waited_for(file):
    os.mkfifo(file)
    assert refused(file) == "not a regular file"


def test_a_header_can_be_read_alone(file):
    header = read_header(write(file, tensors()))
    assert header.layers == (3,)
    assert header.shapes["layers.3.k"] == (1, 2, TOKENS, 8)
