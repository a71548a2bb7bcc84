"""Capture files that lie: one line, and no memory beyond what the file holds."""

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topokv.inputs import load_capture

SHAPES = {"q": [1, 4, 2, 8], "k": [1, 2, 16, 8], "v": [1, 2, 16, 8]}
METADATA = {"format": "topokv-capture", "version": "1", "model": "none"}


def layout():
    """A capture's header, and where its bytes end."""
    header, end = {"__metadata__": METADATA}, 0
    for layer in (0, 3):
        for part, shape in SHAPES.items():
            size = math.prod(shape) * 4
            header[f"layers.{layer}.{part}"] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": [end, end + size],
            }
            end += size
    header["positions"] = {"dtype": "I64", "shape": [2], "data_offsets": [end, end + 16]}
    return header, end


def file_bytes(header):
    """A whole file of zeros under `header`, whatever it says; the positions are 7 and 15."""
    text = json.dumps(header).encode()
    body = bytes(layout()[1]) + struct.pack("<qq", 7, 15)
    return struct.pack("<Q", len(text)) + text + body


def refused_in_one_line(path, content):
    """Whether the capture is refused, its refusal found to be one line that names the file."""
    path.write_bytes(content)
    try:
        capture = load_capture(path)
    except ValueError as error:
        refusal = str(error)
    else:
        held = sum(t.nbytes for layer in capture.layers.values() for t in layer)
        assert held <= len(content)
        return False
    assert refusal.startswith(f"{path}: ") and "\n" not in refusal
    return True


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("captures") / "made.safetensors"


def test_the_file_that_all_others_are_made_from_is_fine(path):
    assert not refused_in_one_line(path, file_bytes(layout()[0]))


def changed(name, **fields):
    header = layout()[0]
    return header | {name: header.get(name, {}) | fields}


def swapped(one, other):
    header = layout()[0]
    return header | {one: header[other]}


LIES = {
    "shape beyond its bytes": changed("layers.0.k", shape=[1, 2, 2**40, 8]),
    "shape that overflows": changed("layers.0.k", shape=[2**40, 2**40, 2**40, 8]),
    "negative size": changed("layers.0.k", shape=[1, 2, -16, 8]),
    "no size at all": changed("layers.0.k", shape=[1, 2, 0, 8], data_offsets=[0, 0]),
    "fractional size": changed("layers.0.k", shape=[1, 2, 1.5, 8]),
    "bytes beyond the file": changed("layers.3.v", data_offsets=[0, 2**60]),
    "bytes backwards": changed("layers.0.q", data_offsets=[256, 0]),
    "overlapping tensors": swapped("layers.3.v", "layers.3.k"),
    "bytes that no tensor claims": changed("layers.0.q", data_offsets=[128, 256]),
    "no such type": changed("layers.0.q", dtype="F1024"),
    "whole numbers": changed("layers.0.q", dtype="I32"),
    "half the width": changed("layers.0.q", dtype="F16"),
    "text as positions": changed("positions", dtype="U8", shape=[16]),
    "another format": layout()[0] | {"__metadata__": METADATA | {"format": "pickle"}},
    "a later version": layout()[0] | {"__metadata__": METADATA | {"version": "2"}},
    "metadata that is no text": layout()[0] | {"__metadata__": {"format": 1}},
    "no metadata": {name: value for name, value in layout()[0].items() if name[0] != "_"},
    "a stranger's tensor": layout()[0] | {"layers.0.x": layout()[0]["layers.0.q"]},
    "a header that is no object": [],
    "a header of nothing": {},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_one_line(path, lie):
    assert refused_in_one_line(path, file_bytes(LIES[lie]))


@pytest.mark.parametrize("length", [0, 7, 8, 100, 1000])
def test_a_truncated_file_is_one_line(path, length):
    assert refused_in_one_line(path, file_bytes(layout()[0])[:length])


@pytest.mark.parametrize("claimed", [0, 2**31, 2**63, 2**64 - 1])
def test_a_header_as_long_as_no_file_is_one_line(path, claimed):
    assert refused_in_one_line(path, struct.pack("<Q", claimed) + file_bytes(layout()[0])[8:])


NUMBERS = st.sampled_from([-1, 0, 1, 2, 8, 16, 255, 256, 2**31, 2**63, 2**64, 1e300, None, "8", []])


@given(
    name=st.sampled_from([*layout()[0]]),
    field=st.sampled_from(["dtype", "shape", "data_offsets"]),
    value=st.one_of(NUMBERS, st.lists(NUMBERS, max_size=5), st.sampled_from(["F64", "BOOL"])),
)
def test_any_field_may_lie(path, name, field, value):
    header = layout()[0]
    header[name] = header[name] | {field: value}
    refused_in_one_line(path, file_bytes(header))


@given(st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_bytes_may_be_damaged(path, damage):
    content = bytearray(file_bytes(layout()[0]))
    for place, byte in damage:
        content[place] = byte
    refused_in_one_line(path, bytes(content))
