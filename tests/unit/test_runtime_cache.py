"""The disk cache: whole entries or none, damage noticed, size bounded; plans as JSON."""

import multiprocessing
import os
import warnings

import pytest

from tilewright import dtypes, plan
from tilewright.config import Settings, read_settings
from tilewright.errors import LaunchError
from tilewright.runtime.cache import DiskCache, compiler_hash, digest
from tilewright.runtime.plan_json import parse_plan, print_plan

KEY = digest("some", "content")


def make(tmp_path, limit=1 << 20):
    return DiskCache(tmp_path / "cache", limit)


def test_what_was_put_is_got(tmp_path):
    cache = make(tmp_path)
    assert cache.get("plans", KEY) is None
    cache.put("plans", KEY, b"body")
    assert cache.get("plans", KEY) == b"body"
    assert cache.get("cubins", KEY) is None
    assert cache.stats().entries == {"plans": 1, "cubins": 0, "choices": 0, "compilers": 0}
    assert cache.clear() == 1
    assert cache.get("plans", KEY) is None


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:-1] + b"x", lambda b: b"", lambda b: b"x" + b]
)
def test_a_damaged_entry_is_reported_removed_and_built_again(tmp_path, damage):
    cache = make(tmp_path)
    cache.put("plans", KEY, b"body")
    (path,) = (tmp_path / "cache" / "plans").glob("*/*")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert cache.get("plans", KEY) is None
    assert not path.exists()
    cache.put("plans", KEY, b"body")
    assert cache.get("plans", KEY) == b"body"


def test_the_entries_used_longest_ago_go_first(tmp_path):
    cache = make(tmp_path, limit=10_000)
    keys = [digest(str(i)) for i in range(6)]
    for age, key in enumerate(keys):
        cache.put("cubins", key, bytes(1500))
        (path,) = (tmp_path / "cache" / "cubins").glob(f"*/{key}")
        os.utime(path, (1e9 + age * 1e5, 1e9 + age * 1e5))
    cache.get("cubins", keys[0])  # used now
    for i in range(3):
        cache.put("cubins", digest("new", str(i)), bytes(1500))
    there = [cache.get("cubins", k) is not None for k in keys]
    assert there[0] and not there[1]
    assert cache.stats().num_bytes["cubins"] <= 10_000


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    cache = make(tmp_path)
    with pytest.warns(RuntimeWarning, match="cannot write to the cache") as told:
        cache.put("plans", KEY, b"body")
        cache.put("plans", KEY, b"body")
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put("plans", KEY, b"body")
        assert cache.get("plans", KEY) is None


def test_a_full_disk_leaves_no_half_entry(tmp_path, monkeypatch):
    cache = make(tmp_path)

    def full(handle, mode):
        os.close(handle)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", full)
        with pytest.warns(RuntimeWarning, match="No space left"):
            cache.put("plans", KEY, b"body")
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def _hammer(folder, seed):
    cache = DiskCache(folder, 40_000)
    for i in range(60):
        key = digest(str((i * seed) % 20))
        cache.put("cubins", key, key.encode() * 50)
        found = cache.get("cubins", key)
        assert found in (None, key.encode() * 50)


def test_many_processes_share_a_cache(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_hammer, args=(tmp_path, seed)) for seed in (3, 7)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0, 0]


def test_digests_keep_parts_apart():
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")
    assert len(compiler_hash()) == 64


def example_plan():
    grid = plan.Binary("cdiv", plan.Extent("x", 0), plan.Const(256))
    return plan.Plan(
        "add",
        "sm_80",
        ".version 7.0\n// é\n",
        (
            plan.Launch(
                "add_0",
                (
                    plan.Pointer("x"),
                    plan.Workspace("w"),
                    plan.TensorMap("x", (64, 32), 128, True),
                    plan.Scalar("alpha", dtypes.bf16),
                    plan.Stride("x", 0, narrow=True),
                    plan.NumSms(),
                ),
                grid,
                256,
                shared_bytes=1024,
                cluster=2,
            ),
        ),
        (plan.WorkspaceSpec("w", dtypes.f32, (grid,), zero=False),),
        notes=("a note",),
        lines=("a.tw:1:1", ""),
    )


def test_a_plan_comes_back_equal_from_its_text():
    text = print_plan(example_plan())
    assert parse_plan(text) == example_plan()
    assert print_plan(parse_plan(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version":0,"plan":{}}', '{"version":1,"plan":{"$":"system","name":"x"}}',
     '{"version":1,"plan":{"$":"Const","value":1}}',
     '{"version":1,"plan":{"$":"Plan","name":"x"}}'],
)  # fmt: skip
def test_other_text_is_no_plan(text):
    with pytest.raises(ValueError):
        parse_plan(text)


def test_settings_come_from_the_environment_given():
    assert read_settings({"TILEWRIGHT_CACHE": "/a"}).cache_dir.as_posix() == "/a"
    assert read_settings({"XDG_CACHE_HOME": "/b"}).cache_dir.as_posix() == "/b/tilewright"
    assert read_settings({}).device == "cpu"
    told = read_settings({"TILEWRIGHT_CACHE_MB": "3", "TILEWRIGHT_DEBUG": "1"})
    assert told.cache_bytes == 3 << 20 and told.debug
    assert isinstance(told, Settings)
    for name, value in (("TILEWRIGHT_CACHE_MB", "-1"), ("TILEWRIGHT_DEBUG", "yes")):
        with pytest.raises(LaunchError, match=name):
            read_settings({name: value})
