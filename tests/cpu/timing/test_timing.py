"""Rounds, stop rules, sizes and modes: everything about timing that needs no device."""

import math
from collections import Counter

import pytest
import torch

from topokv.bench.parent.metrics import launch_share
from topokv.machine import Modes, choose_modes
from topokv.timing import (
    Arm,
    CpuClock,
    CpuTimes,
    Samples,
    StopRule,
    attention_backend,
    copy_bytes,
    cpu_flush_bytes,
    foreign_load,
    gpu_flush_bytes,
    measure,
    median_faults,
    peak_memory_bytes,
    prepare_copy,
    prepare_read,
    rotation_bytes,
    rotation_count,
)
from topokv.timing.faults import minor_faults
from topokv.timing.sdpa_backend import backend_among
from topokv.timing.sizes import MIB, captured_calls


class CountingClock:
    """A clock on which every call takes the time that its arm says, and that notes the order."""

    def __init__(self):
        self.events = []

    def cool(self):
        self.events.append("cool")

    def milliseconds(self, call):
        name, time = call()
        self.events.append(name)
        return time


def arm(name, time=1.0, **options):
    return Arm.of(name, lambda: (name, time), **options)


def test_every_round_runs_every_arm_once_each_time_cold():
    clock = CountingClock()
    samples = measure([arm("a"), arm("b")], clock, StopRule(7), warmup=0)
    assert Counter(clock.events) == {"cool": 14, "a": 7, "b": 7}
    assert clock.events[::2] == ["cool"] * 14
    assert {name: len(found.cold) for name, found in samples.items()} == {"a": 7, "b": 7}


def test_the_order_is_shuffled_by_the_seed_alone():
    def order(seed):
        clock = CountingClock()
        measure([arm("a"), arm("b"), arm("c")], clock, StopRule(20), warmup=0, seed=seed)
        return clock.events

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert {tuple(order(1)[i : i + 6][1::2]) for i in range(0, 120, 6)} > {("a", "b", "c")}


def test_the_warm_repeat_follows_its_own_cold_call():
    clock = CountingClock()
    samples = measure([arm("a", repeat=True), arm("b")], clock, StopRule(3), warmup=0)
    assert len(samples["a"].warm) == 3
    assert samples["b"].warm == []
    assert "a a" in " ".join(clock.events)


def test_an_arm_of_every_third_round_runs_in_a_third_of_them():
    samples = measure([arm("a"), arm("b", every=3)], CountingClock(), StopRule(9), warmup=0)
    assert (len(samples["a"].cold), len(samples["b"].cold)) == (9, 3)


def test_what_makes_a_call_ready_comes_before_the_caches_are_made_cold():
    clock = CountingClock()

    def ready():
        clock.events.append("ready")
        return lambda: ("a", 1.0)

    measure([Arm("a", ready, repeat=True)], clock, StopRule(2), warmup=0)
    assert clock.events == ["ready", "cool", "a", "a"] * 2


def test_warmup_is_not_timed():
    calls = []
    measure(
        [Arm.of("a", lambda: calls.append(1) or ("a", 1.0))], CountingClock(), StopRule(2), warmup=4
    )
    assert len(calls) == 6


def test_a_known_ratio_stops_before_the_last_round():
    arms = [arm("a", 2.0), arm("b", 1.0)]
    samples = measure(arms, CountingClock(), StopRule(500), warmup=0, pairs=[("a", "b")])
    assert len(samples["a"].cold) == 10


@pytest.mark.parametrize(
    ("rule", "rounds", "seconds", "ratios", "stops"),
    [
        (StopRule(50), 50, 0.0, [], True),
        (StopRule(50), 49, 0.0, [], False),
        (StopRule(50, max_seconds=2), 1, 2.0, [], True),
        # Even past the time cap one round is needed, or there is nothing to show.
        (StopRule(50, max_seconds=2), 0, 9.0, [], False),
        (StopRule(50), 9, 0.0, [[2.0] * 9], False),
        (StopRule(50), 10, 0.0, [[2.0] * 10], True),
        (StopRule(50), 10, 0.0, [[2.0] * 10, [1.0, 3.0] * 5], False),
        (StopRule(50), 10, 0.0, [[]], False),
    ],
)
def test_stop_rules(rule, rounds, seconds, ratios, stops):
    assert rule.reached(rounds, seconds, ratios) is stops


def test_faults_are_those_of_a_typical_call_and_unknown_where_uncounted():
    assert median_faults(Samples(faults=[0, 0, 500])) == 0
    assert median_faults(Samples()) is None


@pytest.mark.parametrize(
    ("l2", "l3", "expected"),
    [
        (None, None, 128 * MIB),
        (2 * MIB, 32 * MIB, 68 * MIB),
        (4 * MIB, None, 8 * MIB),
        (64 * MIB, 384 * MIB, 256 * MIB),
    ],
)
def test_cpu_flush_is_twice_the_caches_within_its_limit(l2, l3, expected):
    assert cpu_flush_bytes(l2, l3) == expected


@pytest.mark.parametrize(
    ("l2", "expected"), [(None, 512 * MIB), (50 * MIB, 512 * MIB), (300 * MIB, 600 * MIB)]
)
def test_gpu_flush_is_the_larger_of_twice_l2_and_512_mib(l2, expected):
    assert gpu_flush_bytes(l2) == expected


@pytest.mark.parametrize(
    ("flush", "touched", "expected"),
    [(512, 512, 1), (512, 600, 1), (512, 511, 3), (512, 128, 5), (512, 100, 7)],
)
def test_a_rotation_touches_the_flush_size_between_two_uses_of_an_input(flush, touched, expected):
    count = rotation_count(flush, touched)
    assert count == expected
    assert count == 1 or (count - 1) * touched >= flush


def test_a_rotation_passes_twice_the_l2():
    assert rotation_bytes(50 * MIB) == 100 * MIB
    assert rotation_bytes(None) == 256 * MIB


def test_a_call_that_touches_nothing_cannot_rotate():
    with pytest.raises(ValueError, match=r"^touched_bytes \(0\) must be at least 1$"):
        rotation_count(512, 0)


@pytest.mark.parametrize("rotation", [1, 3, 7, 20, 33])
def test_captured_calls_are_whole_rotations(rotation):
    assert captured_calls(rotation) % rotation == 0
    assert captured_calls(rotation) >= 20


def test_a_copy_is_as_large_as_k_but_takes_no_more_than_shows_bandwidth():
    assert copy_bytes(8 * MIB, 32 * MIB) == 4 * MIB
    assert copy_bytes(2048 * MIB, 8 * MIB) == 32 * MIB
    assert copy_bytes(2048 * MIB, 512 * MIB) == 128 * MIB


@pytest.mark.parametrize(
    ("eager", "graph", "expected"),
    [(2.0, 0.5, 0.75), (1.0, 1.2, 0.0), (0.0, 1.0, None), (None, 1.0, None), (1.0, None, None)],
)
def test_launch_share_is_what_a_graph_saves(eager, graph, expected):
    assert launch_share(eager, graph) == expected


@pytest.mark.parametrize(
    ("backend", "graphs", "expected"),
    [
        ("cpu", "on", Modes("perf_counter", wall=False, graph=False)),
        ("cuda", "auto", Modes("events", wall=True, graph=True)),
        ("cuda", "off", Modes("events", wall=True, graph=False)),
        ("rocm", "auto", Modes("events", wall=True, graph=False)),
        ("rocm", "on", Modes("events", wall=True, graph=True)),
    ],
)
def test_graphs_run_on_cuda_and_on_rocm_only_where_asked(backend, graphs, expected):
    assert choose_modes(backend, graphs=graphs) == expected


def test_an_unknown_mode_or_backend_is_named():
    with pytest.raises(
        ValueError, match=r"^unknown graphs 'yes'; expected one of 'auto', 'on', 'off'$"
    ):
        choose_modes("cuda", graphs="yes")
    with pytest.raises(
        ValueError, match=r"^unknown backend 'tpu'; expected one of 'cpu', 'cuda', 'rocm'$"
    ):
        choose_modes("tpu")


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        (["aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu"], "flash"),
        (["aten::_scaled_dot_product_attention_math", "aten::bmm"], "math"),
        (["aten::_scaled_dot_product_cudnn_attention"], "cudnn"),
        (
            ["aten::_scaled_dot_product_fused_attention_overrideable"],
            "fused_attention_overrideable",
        ),
        (["aten::scaled_dot_product_attention", "aten::bmm"], None),
    ],
)
def test_the_backend_is_read_from_operator_names(operators, expected):
    assert backend_among(operators) == expected


def test_the_profiler_tells_flash_from_math():
    q, k = torch.randn(1, 2, 1, 16), torch.randn(1, 2, 64, 16)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert attention_backend(lambda: attend(q, k, k)) == "flash"
    assert attention_backend(lambda: attend(q[0], k[0], k[0])) == "math"
    assert attention_backend(lambda: q + 1) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 5000, 9000])
def test_reads_and_copies_take_any_size(dtype, size):
    tensor = torch.ones(1, 1, size, 2, dtype=dtype)
    prepare_read(tensor, tensor)()
    copy, copied = prepare_copy(tensor, tensor.numel() * dtype.itemsize // 2)
    copy()
    assert copied == size * dtype.itemsize


def test_the_cpu_clock_measures_a_call_and_flushes():
    clock = CpuClock(MIB)
    clock.cool()
    assert 0 < clock.milliseconds(lambda: sum(range(100))) < math.inf


def test_a_process_knows_its_faults_and_peak_or_says_that_it_does_not():
    assert minor_faults() is None or minor_faults() >= 0
    assert peak_memory_bytes() is None or peak_memory_bytes() > 10 * MIB


def test_foreign_load_is_what_others_took_of_all_cpus(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    before = CpuTimes(machine=10.0, own=1.0, wall=100.0)
    after = CpuTimes(machine=18.0, own=5.0, wall=102.0)
    assert foreign_load(before, after) == pytest.approx(0.5)
    assert foreign_load(None, after) is None
    assert foreign_load(after, after) is None


def test_cpu_times_come_from_proc_stat(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 50 999 7 0 0 50 0 0\ncpu0 1 2 3\n")
    found = CpuTimes.now(stat)
    if found is not None:
        import os

        assert found.machine == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))
    assert CpuTimes.now(tmp_path / "missing") is None
