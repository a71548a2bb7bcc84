"""Capturing: what the attention function records, and a small model from end to end."""

import importlib.util
import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from topokv import KVCache
from topokv.cli import main
from topokv.inputs import (
    STANDARD_TEXTS,
    CaptureFolder,
    Text,
    Wish,
    capture_text,
    file_text,
    load_capture,
    load_model,
    save_capture,
    standard_text,
)
from topokv.inputs import capturing as capture
from topokv.inputs.model import Model, model_identity
from topokv.quality.measures import DenseReference

needs_transformers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate", "gguf")),
    reason="the extra 'capture' is not installed",
)

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def attended(recorder, layer=0, mask=None, scaling=None, **options):
    """One layer's attention over 12 random tokens, by the recorder, and what it was given."""
    generator = torch.Generator().manual_seed(layer)
    q, k, v = (
        torch.randn(1, heads, 12, HEAD_DIM, generator=generator)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    module = SimpleNamespace(layer_idx=layer)
    output, _ = recorder.attend(module, q, k, v, mask, scaling=scaling, **options)
    return output, q, k, v


def a_recorder(wanted=(0,), positions=(3, 11)):
    return capture._Recorder(torch.tensor(positions), wanted, lambda _: None)


def test_attention_is_computed_as_ever():
    output, q, k, v = attended(a_recorder())
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
    logits = (q @ k.mT / math.sqrt(HEAD_DIM)).masked_fill(~torch.ones(12, 12).tril().bool(), -1e9)
    expected = (logits.softmax(-1) @ v).transpose(1, 2)
    torch.testing.assert_close(output, expected)


def test_chosen_positions_of_chosen_layers_are_kept():
    recorder = a_recorder(wanted=(1,))
    attended(recorder, layer=0)
    _, q, k, v = attended(recorder, layer=1)
    assert list(recorder.layers) == [1]
    kept = recorder.layers[1]
    assert torch.equal(kept.q, q[:, :, [3, 11]].half())
    assert torch.equal(kept.k, k.half())
    assert torch.equal(kept.v, v.half())


def test_another_scale_is_folded_into_q():
    recorder = a_recorder()
    _, q, _, _ = attended(recorder, scaling=0.5)
    expected = q[:, :, [3, 11]] * 0.5 * math.sqrt(HEAD_DIM)
    torch.testing.assert_close(recorder.layers[0].q.float(), expected, rtol=2e-3, atol=1e-4)


def test_keys_beyond_float16_are_kept_as_bfloat16():
    assert capture._stored(torch.tensor([7e4])).dtype == torch.bfloat16
    assert capture._stored(torch.tensor([6e4])).dtype == torch.float16


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"mask": torch.ones(12, 12).tril().bool()},
            "it attends a sliding window or under a mask, not all earlier tokens",
        ),
        ({"softcap": 50.0}, "it caps its logits, which is not plain softmax attention"),
        ({"s_aux": torch.zeros(4)}, "it has a learned sink, which is not plain softmax attention"),
    ],
)
def test_attention_that_a_capture_does_not_stand_for_is_left_out(given, reason):
    recorder = a_recorder()
    attended(recorder, **given)
    assert recorder.layers == {}
    assert recorder.refused == {0: reason}


@pytest.mark.parametrize(
    ("wish", "positions"),
    [
        (Wish(8192, 4), (6144, 6827, 7509, 8191)),
        (Wish(8192, 1), (8191,)),
        (Wish(2, 2), (0, 1)),
        (Wish(8, 3), (5, 6, 7)),
    ],
)
def test_positions_end_with_the_last_token(wish, positions):
    assert wish.positions == positions


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 1), "tokens must be at least 2, got 1"),
        ((8, 0), "positions must be from 1 to tokens (8), got 0"),
        ((8, 9), "positions must be from 1 to tokens (8), got 9"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(sizes, message):
    with pytest.raises(ValueError) as error:
        Wish(*sizes)
    assert str(error.value) == message


def test_standard_texts_are_long_and_name_no_folder():
    for name in STANDARD_TEXTS:
        text = standard_text(name)
        assert len(text.content) > 60_000
        assert str(Path(os.__file__).parent) not in text.content
        assert text.metadata == standard_text(name).metadata


def test_a_text_that_is_no_text_is_refused(tmp_path):
    file = tmp_path / "text"
    file.write_bytes(b"abc\xff")
    with pytest.raises(ValueError) as error:
        file_text(file)
    assert str(error.value) == f"{file}: not UTF-8 (byte 3)"
    file.write_text(" \n")
    with pytest.raises(ValueError) as error:
        file_text(file)
    assert str(error.value) == f"{file}: the text is empty"


def answer(capsys, *words):
    """The exit code of the command line, and its one line of error."""
    code = main(["capture", *words])
    said = capsys.readouterr()
    assert said.out == ""
    return code, said.err


def test_bad_command_lines_get_one_line_and_write_nothing(tmp_path, capsys):
    text, output = tmp_path / "text", tmp_path / "out.safetensors"
    text.write_text("some words")
    good = ["--model", str(tmp_path), "--text", str(text), "--output", str(output)]
    for words, line in (
        (["--tokens", "0"], "tokens must be at least 2, got 0"),
        (["--layers", "3,x"], "layers must be 'all' or numbers such as '3,17', got '3,x'"),
        (["--device", "tpu"], "unknown device 'tpu'; expected cpu, cuda or cuda:N"),
        (
            ["--output", str(tmp_path / "no" / "out")],
            f"output {str(tmp_path / 'no' / 'out')!r}: "
            f"can't write into the folder {str(tmp_path / 'no')!r}",
        ),
        (["--output", str(tmp_path)], f"output {str(tmp_path)!r} is a folder; name a file in it"),
        (["--text", str(tmp_path / "none")], f"{tmp_path / 'none'}: no such file or directory"),
        (
            ["--model", str(tmp_path / "none")],
            f"{tmp_path / 'none'}: no such model; give a folder with config.json or a GGUF file",
        ),
    ):
        assert answer(capsys, *good, *words) == (2, f"topokv capture: {line}\n")
    assert not output.exists()


def test_a_missing_extra_is_named_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr("topokv.inputs.model.find_spec", lambda name: None)
    with pytest.raises(ValueError) as error:
        load_model(tmp_path)
    assert str(error.value) == (
        "accelerate is not installed; capturing needs: pip install 'topokv[capture]'"
    )


WORDS = [f"w{i}" for i in range(50)]


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def save(transformers, tmp_path_factory):
    """A function that saves a small random model of a kind in a folder, with a tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: index for index, word in enumerate(["<unk>", *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")

    def saved(kind, **options):
        folder = tmp_path_factory.mktemp(kind)
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            max_position_embeddings=64,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
            **options,
        )
        torch.manual_seed(0)
        getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
        return folder

    return saved


TEXT = Text("words", " ".join(WORDS[i * i % 50] for i in range(40)), "squares", "CC0-1.0")


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "options"), [("Llama", {}), ("Qwen3", {}), ("Granite", {"attention_multiplier": 0.7})]
)
def test_captured_attention_is_the_models_own(save, transformers, tmp_path, kind, options):
    folder = save(kind, **options)
    path = tmp_path / "c.safetensors"
    captured, left_out = capture_text(load_model(folder), TEXT, Wish(32, 3))
    save_capture(path, captured)
    assert left_out == {}
    held = load_capture(path)
    assert held.metadata["license"] == "mit"
    assert held.metadata["model"] == folder.name
    eager = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(TEXT.content, return_tensors="pt")
    with torch.no_grad():
        own = eager(tokens["input_ids"][:, :32], output_attentions=True).attentions
    for index, layer in held.layers.items():
        for place, position in enumerate(held.positions):
            seen = KVCache(layer.k[:, :, : position + 1], layer.v[:, :, : position + 1])
            weights = DenseReference.of(layer.q[:, :, place : place + 1], seen).weights
            expected = own[index][:, :, position, : position + 1].double()
            torch.testing.assert_close(weights, expected, rtol=1e-2, atol=1e-4)


@needs_transformers
def test_sliding_layers_are_left_out_or_refused_by_name(save):
    model = load_model(
        save("Qwen3", sliding_window=8, use_sliding_window=True, max_window_layers=1)
    )
    captured, left_out = capture_text(model, TEXT, Wish(32, 2))
    reason = "it attends a sliding window or under a mask, not all earlier tokens"
    assert list(captured.layers) == [0]
    assert left_out == {1: reason}
    with pytest.raises(ValueError) as error:
        capture_text(model, TEXT, Wish(32, 2, layers=(0, 1)))
    assert str(error.value) == f"layer 1 of {model.name} can't be captured: {reason}"


@needs_transformers
def test_what_the_model_can_not_do_is_refused_before_it_runs(save):
    model = load_model(save("Llama"))
    for wish, message in (
        (Wish(65, 1), f"tokens 65 exceeds the context of {model.name}, 64"),
        (Wish(41, 1), "the text has 40 tokens, fewer than tokens 41"),
        (Wish(8, 1, layers=(2,)), f"layer 2 is not in {model.name}: its layers are 0 to 1"),
    ):
        with pytest.raises(ValueError) as error:
            capture_text(model, TEXT, wish)
        assert str(error.value) == message


@needs_transformers
def test_a_folder_that_is_no_model_gets_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="^.*: transformers can't load it: ") as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)


@needs_transformers
def test_a_model_of_pickles_is_never_opened(save):
    folder = save("Llama")
    weights = folder / "model.safetensors"
    torch.save({}, folder / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ValueError, match="transformers can't load it: "):
        load_model(folder)


@needs_transformers
def test_a_capture_is_kept_and_made_again_when_something_changed(save, tmp_path):
    folder = save("Llama")
    kept = CaptureFolder(tmp_path / "kept", folder, Wish(16, 2))
    path = kept.capture(TEXT)
    first = path.stat().st_mtime_ns
    assert kept.capture(TEXT) == path
    assert path.stat().st_mtime_ns == first
    for other in (
        CaptureFolder(tmp_path / "kept", folder, Wish(24, 2)),
        CaptureFolder(tmp_path / "kept", folder, Wish(24, 3)),
        CaptureFolder(tmp_path / "kept", folder, Wish(24, 3, layers=(1,))),
    ):
        before = path.stat().st_mtime_ns
        other.capture(TEXT)
        assert path.stat().st_mtime_ns > before
    path.write_bytes(b"broken")
    other.capture(TEXT)
    assert list(load_capture(path).layers) == [1]


def test_a_capture_that_is_kept_needs_no_model(tmp_path, monkeypatch):
    def no_model(path):
        raise AssertionError("loaded")

    monkeypatch.setattr("topokv.inputs.capture_folder.load_model", no_model)
    monkeypatch.setattr("topokv.inputs.model.version", lambda name: "0")
    gguf, wish = tmp_path / "m.gguf", Wish(4, 1)
    gguf.write_bytes(b"weights")
    model = Model("m", model_identity(gguf), "mit", None, None)
    layer = capture.CapturedLayer(*(torch.zeros(1, 1, n, 2) for n in (1, 4, 4)))
    metadata = {**model.metadata, **TEXT.metadata, **wish.metadata}
    path = tmp_path / "m.words.safetensors"
    save_capture(path, capture.Capture("words", wish.positions, {0: layer}, metadata))
    assert CaptureFolder(tmp_path, gguf, wish).capture(TEXT) == path
