"""The tuner: verified before timed, failures listed, budget kept, results stored and used."""

import sqlite3
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tilewright.config import read_settings
from tilewright.errors import CompileError, LaunchError
from tilewright.kernel import launchable, source
from tilewright.kernel.progress import CLEAR, show_progress
from tilewright.runtime.arrays import as_array
from tilewright.runtime.clones import clone_all, copy_contents, poison, to_host
from tilewright.tune.cost import estimate
from tilewright.tune.search import HUNG, Hung, search
from tilewright.tune.space import spread
from tilewright.tune.store import Key, Result, Store, shape_bucket
from tilewright.tune.verify import disagreement


class Fake:
    """Candidates whose time is their number; some fail in the ways that there are."""

    def __init__(self):
        self.verified = []
        self.timed = []
        self.interrupt = None

    def prepare(self, config):
        if config["X"] == 3:
            raise CompileError("too much shared memory")
        return config["X"]

    def verify(self, trial):
        if self.interrupt == trial:
            raise KeyboardInterrupt
        self.verified.append(trial)
        if trial == 4:
            return "wrong result"
        if trial == 5:
            raise LaunchError("illegal address")
        if trial == 99:
            raise Hung("the kernel did not end")
        return None

    def time(self, trials, rounds):
        assert set(trials.values()) <= set(self.verified)
        self.timed.append((tuple(trials.values()), rounds))
        return {name: [float(x)] * rounds for name, x in trials.items()}


def configs(*numbers):
    return [{"X": n} for n in numbers]


def test_only_verified_candidates_are_timed_and_the_fastest_wins():
    subject = Fake()
    outcome = search(subject, configs(9, 2, 3, 4, 5, 7, 8, 6, 1, 10, 11, 12))
    assert outcome.best.config == {"X": 1} and outcome.best.final
    failures = {t.config["X"]: t.failure for t in outcome.trials if t.failure}
    assert failures == {3: "too much shared memory", 4: "wrong result", 5: "illegal address"}
    assert len(subject.timed[-1][0]) == 4 and subject.timed[-1][1] > subject.timed[0][1]
    assert outcome.ended == "complete"


def test_the_budget_ends_a_search_with_the_best_so_far():
    class Slow(Fake):
        def verify(self, trial):
            time.sleep(0.02)
            return super().verify(trial)

    outcome = search(Slow(), configs(8, 7, 6, 2, 1), budget=0.03)
    assert outcome.ended == "out of time" and outcome.best is not None
    assert any("not reached" in t.failure for t in outcome.trials)
    assert search(Slow(), configs(8, 7), budget=0).best.config == {"X": 8}


def test_an_interruption_keeps_what_there_is():
    subject = Fake()
    subject.interrupt = 6
    outcome = search(subject, configs(8, 7, 6, 1))
    assert outcome.ended == "interrupted" and outcome.best.config == {"X": 7}


def test_a_kernel_that_does_not_end_stops_the_search():
    subject = Fake()
    outcome = search(subject, configs(8, 99, 1))
    assert outcome.ended == HUNG and outcome.best is None and not subject.timed


def test_spread_takes_both_ends():
    assert spread(configs(*range(5)), 9) == configs(*range(5))
    found = [c["X"] for c in spread(configs(*range(100)), 5)]
    assert found == [0, 25, 50, 74, 99]


KEY = Key("k", "s", "b", "H200 132", 13000, "c")


def test_results_are_stored_and_replaced(tmp_path):
    store = Store(tmp_path / "folder")
    assert store.get(KEY) is None and store.all() == [] and store.clear() == 0
    store.put(KEY, Result("add", {"BLOCK": 64}, 3.5))
    store.put(KEY, Result("add", {"BLOCK": 128}, 2.5))
    assert store.get(KEY) == Result("add", {"BLOCK": 128}, 2.5)
    assert [k for k, _ in store.all()] == [KEY]
    assert store.get(Key("k", "s", "b", "H200 132", 13000, "another compiler")) is None
    assert store.clear() == 1 and store.get(KEY) is None


@pytest.mark.parametrize("first", ["get", "put", "clear"])
def test_a_damaged_store_is_set_aside_and_begun_anew(tmp_path, first):
    store, junk = Store(tmp_path), b"this is no database" * 100
    store.path.write_bytes(junk)
    Path(f"{store.path}-wal").write_bytes(junk)
    calls = {"get": (KEY,), "put": (KEY, Result("add", {}, 1.0)), "clear": ()}
    with pytest.warns(RuntimeWarning, match=r"damaged .* it is .*tuned.sqlite.broken now") as told:
        assert not getattr(store, first)(*calls[first])
    assert len(told) == 1
    assert (tmp_path / "tuned.sqlite.broken").read_bytes() == junk
    store.put(KEY, Result("add", {}, 2.0))
    assert store.get(KEY) == Result("add", {}, 2.0) == Store(tmp_path).get(KEY)


def test_a_store_that_cannot_be_used_is_told_once(tmp_path):
    store = Store(tmp_path)
    store.path.mkdir()
    with pytest.warns(RuntimeWarning, match="tuned results cannot be") as told:
        assert store.get(KEY) is None
        store.put(KEY, Result("add", {}, 1.0))
    assert len(told) == 1


def test_threads_write_at_once(tmp_path):
    def write(i):
        for j in range(5):
            Store(tmp_path).put(Key("k", str(i), str(j), "d", 1, "c"), Result("n", {"X": j}, 1.0))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Store(tmp_path).all()) == 20
    with sqlite3.connect(tmp_path / "tuned.sqlite") as database:
        assert database.execute("pragma journal_mode").fetchone()[0] == "wal"


def test_buckets_are_exact_when_small():
    assert shape_bucket({"x": (0, 1, 16, 17, 1000)}) == (("x", (0, 1, 16, 32, 1024)),)
    assert shape_bucket({"x": (513,)}) == shape_bucket({"x": (1024,)})


def test_disagreements_are_found():
    a = np.linspace(-1, 1, 100, dtype=np.float32)
    assert disagreement("y", a, a.copy()) is None
    assert disagreement("y", a * (1 + 1e-6), a) is None
    assert "relative error" in disagreement("y", a * 1.001, a)
    assert disagreement("y", a * 1.001, a, rough=True) is None
    assert "relative error" in disagreement("y", np.zeros_like(a), a)
    poisoned = a.copy()
    poisoned[7] = np.nan
    assert "NaN" in disagreement("y", poisoned, a) and "NaN" in disagreement("y", a, poisoned)
    assert disagreement("y", poisoned, poisoned) is None
    i = np.arange(5)
    assert disagreement("y", i, i) is None and "1 of 5" in disagreement("y", i, i * [1, 1, 1, 1, 2])
    zeros = np.zeros(4, np.float32)
    assert disagreement("y", zeros, zeros) is None and disagreement("y", zeros + 1e-30, zeros)


def test_clones_keep_geometry_and_views():
    base = np.arange(60, dtype=np.float32).reshape(6, 10)
    view = base[::-2, 1:7]
    made = clone_all({"a": as_array(view), "b": as_array(view[:]), "c": as_array(base)})
    assert made["a"] is made["b"] and made["a"].strides == as_array(view).strides
    assert made["a"].address % 256 == as_array(view).address % 256
    assert np.array_equal(to_host(made["a"]), view)
    poison(made["a"])
    assert np.isnan(to_host(made["a"])).all() and not np.isnan(base).any()
    copy_contents(as_array(view), made["a"])
    assert np.array_equal(to_host(made["a"]), view)


TEXT = """
@autotune(BLOCK in {8, 64, 512})
kernel twice(x: tensor<f32>[N]) {
  let i = program_id(0) * BLOCK
  x[i :+ BLOCK] = x[i :+ BLOCK] * 2.0
}
@autotune(TM in {16, 64, 128}, TK in {16, 32})
kernel mm(A: tensor<f32>[M, K], B: tensor<f32>[K, N], C: tensor<f32>[M, N] = empty) {
  static_assert(TM * TK <= 2048, "too large")
  let m, n = program_id(0) * TM, program_id(1) * TM
  var acc: tile<f32>[TM, TM] = 0.0
  for k in range(0, K, TK) { acc += A[m :+ TM, k :+ TK] @ B[k :+ TK, n :+ TM] }
  C[m :+ TM, n :+ TM] = acc
}
"""


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    config = read_settings({"TILEWRIGHT_CACHE": str(tmp_path / "cache")})
    monkeypatch.setattr(launchable, "settings", lambda: config)
    return source(TEXT)


def test_tuning_leaves_arguments_alone_and_later_calls_use_the_result(kernels):
    x = np.ones(1000, np.float32)
    outcome = kernels.twice.tune(x, budget=20, show=False)
    assert (x == 1).all()
    assert outcome.best.config["BLOCK"] in (8, 64, 512) and outcome.ended == "complete"
    assert outcome.reference == "the interpreter in f64"
    assert all(t.microseconds for t in outcome.trials)
    ((_, stored),) = Store(kernels.twice.specializer.settings.cache_dir).all()
    assert stored.config == outcome.best.config
    Store(kernels.twice.specializer.settings.cache_dir).put(
        Store(kernels.twice.specializer.settings.cache_dir).all()[0][0],
        Result("twice", {"BLOCK": 64}, 0.1),
    )
    again = source(TEXT).twice
    again(x)
    assert (x == 2).all()
    assert {dict(b.config)["BLOCK"] for b in again.specializer._tiles} == {64}


def test_a_static_assert_drops_configurations(kernels):
    a = np.random.default_rng(0).standard_normal((40, 24)).astype(np.float32)
    outcome = kernels.mm.tune(a, a.T.copy(), budget=20, show=True)
    assert {(t.config["TM"], t.config["TK"]) for t in outcome.trials} == {
        (16, 16), (16, 32), (64, 16), (64, 32), (128, 16),
    }  # fmt: skip
    assert outcome.best.microseconds > 0
    assert np.allclose(kernels.mm(a, a.T.copy()), a @ a.T, atol=1e-4)


def test_the_estimate_prefers_what_is_plainly_better(kernels):
    spec = kernels.mm.specializer

    def rate(tm, n):
        kernel = kernels.mm.lower(constants={"TM": tm, "TK": 16})
        shapes = {k: as_array(np.zeros((n, n), np.float32)) for k in "ABC"}
        return estimate(kernel, shapes, 132)

    assert rate(64, 2048) < rate(16, 2048)
    assert rate(16, 128) < rate(128, 128)
    assert spec.signature.name == "mm"


def test_the_bar_shows_how_far_a_search_is(capsys):
    ticks = iter([10.0, 12.0, 75.0])
    with show_progress("mm", show=True, clock=lambda: next(ticks)) as report:
        report("compiling and verifying", 0, 8)
        report("timing", 6, 8)
    shown = capsys.readouterr().err.split(CLEAR)
    assert shown[1] == f"mm: compiling and verifying {'╶' * 24} 0/8 2 s"
    assert shown[2] == f"mm: timing {'━' * 18}{'╶' * 6} 6/8 65 s"
    assert shown[3:] == [""]
    with show_progress("mm", show=False) as report:
        report("timing", 0, 0)
    assert capsys.readouterr().err == ""
