"""The plan: what is refused, what is left out, and which rows a grid has."""

import subprocess
import sys

import pytest

from topokv.bench import Settings, Source, check, gaussian_source, grid, identity, planned

SHARING = {"drift": "request", "witness": "kv-head", "quest-q": "q-head"}


def planned_grid(settings, sources=None):
    return grid(
        settings,
        sources or [gaussian_source(settings)],
        dtype="float32",
        selectors=["drift", "witness"],
        sharing_of=SHARING.__getitem__,
        attention=["gather", "blocks"],
    )


def captured(kv_len=2048, name="real"):
    return Source(
        name=name,
        kv="real.safetensors",
        layer=3,
        batch=1,
        num_q_heads=9,
        num_kv_heads=3,
        kv_len=kv_len,
        head_dim=64,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seq_len": 0}, "seq_len must be at least 1, got 0"),
        ({"heads": -1}, "heads must be at least 1, got -1"),
        ({"kv_heads": 0}, "kv_heads must be at least 1, got 0"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"sink_blocks": -1}, "sink_blocks must be at least 0, got -1"),
        ({"local_blocks": -2}, "local_blocks must be at least 0, got -2"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"processes": 0}, "processes must be at least 1, got 0"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 2**63}, f"seed must be below 2**63, got {2**63}"),
        ({"layers": (-1,)}, "layers must be at least 0, got -1"),
        ({"selected_tokens": (64, 0)}, "selected_tokens must be at least 1, got 0"),
        ({"max_seconds": 0.0}, "max_seconds must be above 0 and finite, got 0.0"),
        ({"max_seconds": float("nan")}, "max_seconds must be above 0 and finite, got nan"),
        (
            {"heads": 30, "kv_heads": 8},
            "num_q_heads (30) must be a multiple of num_kv_heads (8)",
        ),
        (
            {"dtype": "int8"},
            "unknown dtype 'int8'; expected one of 'float16', 'bfloat16', 'float32', 'float64'",
        ),
        (
            {"sharing": "all"},
            "unknown sharing 'all'; expected one of 'request', 'kv-head', 'q-head'",
        ),
        ({"graphs": "yes"}, "unknown graphs 'yes'; expected one of 'auto', 'on', 'off'"),
        (
            {"device": "tpu"},
            "unknown device 'tpu'; expected one of 'auto', 'cpu', 'cuda', 'cuda:0', …, 'rocm', "
            "'rocm:0', …",
        ),
        (
            {"kv": ("gaussian",), "selected_tokens": (32768, 65536)},
            "selected_tokens 32768 exceeds seq_len 16384; no row of the grid is left",
        ),
    ],
)
def test_bad_settings_get_one_clear_line(settings, message):
    with pytest.raises(ValueError) as error:
        check(Settings(**settings))
    assert str(error.value) == message


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:3", "rocm", "rocm:0"])
def test_devices_that_may_exist_pass(device):
    check(Settings(device=device))


def test_checking_loads_no_torch():
    code = (
        "import sys; from topokv.bench import Settings, check; import topokv.bench.parent; "
        "check(Settings()); import topokv.results; raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_survive_the_way_to_the_worker():
    settings = Settings(kv=("sample",), layers=(1, 2), selectors=("drift",), kv_heads=4)
    assert Settings.from_json(settings.to_json()) == settings


def test_rows_are_selectors_times_ways_to_attend():
    plan = planned_grid(Settings(selected_tokens=(128, 256), attention=("blocks",)))
    assert [cell.selected_tokens for cell in plan.cells] == [128, 256]
    found = [(row.selector, row.sharing, row.attention) for row in plan.cells[0].rows]
    assert found == [
        ("drift", "request", "gather"),
        ("drift", "request", "blocks"),
        ("witness", "kv-head", "gather"),
        ("witness", "kv-head", "blocks"),
    ]


def test_the_published_way_to_attend_is_always_measured():
    plan = planned_grid(Settings(selectors=("drift",)))
    assert [row.attention for row in plan.cells[0].rows] == ["gather"]


def test_a_real_cache_gets_all_selectors_unless_told():
    plan = planned_grid(Settings(), [captured()])
    found = [(row.selector, row.attention) for row in plan.cells[0].rows]
    assert found == [("drift", "gather"), ("witness", "gather")]
    plan = planned_grid(Settings(selectors=("quest-q",), attention=("gather",)), [captured()])
    assert [row.sharing for row in plan.cells[0].rows] == ["q-head"]


def test_sharing_asked_for_is_every_selectors():
    plan = planned_grid(Settings(sharing="kv-head"))
    assert {row.sharing for row in plan.cells[0].rows} == {"kv-head"}


def test_a_budget_beyond_one_cache_is_left_out_there_with_a_line():
    settings = Settings(selected_tokens=(512, 4096))
    plan = planned_grid(settings, [gaussian_source(settings), captured()])
    assert [(cell.source.name, cell.selected_tokens) for cell in plan.cells] == [
        ("gaussian", 512),
        ("gaussian", 4096),
        ("real", 512),
    ]
    assert plan.notes == ("real: selected_tokens 4096 exceeds seq_len 2048; left out of the grid",)


def test_a_grid_without_a_row_is_an_error():
    with pytest.raises(
        ValueError,
        match=r"^selected_tokens 4096 exceeds seq_len 2048; no row of the grid is left$",
    ):
        planned_grid(Settings(selected_tokens=(4096, 8192)), [captured()])


def test_an_unknown_way_to_attend_lists_the_known_ones():
    with pytest.raises(
        ValueError, match=r"^unknown attention 'paged'; expected one of 'gather', 'blocks'$"
    ):
        planned_grid(Settings(attention=("paged",)))


def test_what_is_asked_twice_is_measured_once():
    plan = planned_grid(
        Settings(selected_tokens=(64, 64), selectors=("drift", "drift"), attention=("gather",) * 2)
    )
    assert [len(cell.rows) for cell in plan.cells] == [1]


def test_a_planned_row_keeps_its_identity_and_says_that_it_is_not_measured():
    row = planned_grid(Settings()).cells[0].rows[0]
    again = planned(identity(row))
    assert again.key == row.key
    assert (again.status, again.reason) == ("interrupted", "not measured yet")


def test_cache_bytes_are_those_of_k_and_v():
    assert captured().cache_bytes(2) == 2 * 3 * 2048 * 64 * 2
