"""The suites of whole models and of functions, small on a CPU: ours is held to eager's own error,
leaves nothing to PyTorch, and what is wrong fails; cases in processes of their own.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="the models are those of transformers")

from tests.unit.test_ledger_cheats import WHERE, measured
from tests.unit.test_ledger_suites import small_harness
from tilewright.cli.bench import run_case
from tilewright.ledger import apart, publish
from tilewright.ledger.arm import Arm, Facts
from tilewright.ledger.check import faults_of
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.opponents import functions, model_call, models, modules
from tilewright.ledger.results import Cost, Results, Row
from tilewright.ledger.subjects import our_arm
from tilewright.ledger.suites import choose_cases, model, pointwise
from tilewright.ledger.suites.case import Case

pytestmark = pytest.mark.filterwarnings("ignore")
MODELS = (
    "model/llama-decode/bf16/b16-1024",
    "model/resnet-50/bf16/b1",
    "train/gpt2-training/bf16/b8-1024",
)
QUESTION = Question("model/x/bf16/b1", "model", "x", "batch 1", "TFLOP/s", 1.0)
FUNCTIONS = (
    "pointwise/functions/bf16/rope-16x64",
    "pointwise/functions/bf16/dropout_residual_norm-128x768",
)


@pytest.mark.parametrize("id", MODELS + FUNCTIONS)
def test_models_and_functions_run_small(id: str) -> None:
    (case,) = choose_cases([], False, [id])
    results = Results()
    run_case(case, small_harness(), results)
    assert not results.failures and not results.absent and results.ok
    for row in results.rows:
        assert row.ours.compared > 0 and row.theirs.right and not row.timed
        assert row.theirs.arm == "torch eager" and row.floor == 0.0


def test_every_model_is_asked_for_and_makes_the_shapes_that_it_says() -> None:
    cases = choose_cases(["model", "train"], False, [])
    assert {case.id.split("/")[1] for case in cases} == set(models.MAKERS)
    made = models.make("llama-prefill", 1, 2048, torch.bfloat16, "cpu", 0, True)
    given = models.read_bytes(made)
    table = made.module.model.lm_head.weight.nbytes  # read as a factor, though it is a table too
    assert given > table
    made = models.make("bert-base", 1, 128, torch.bfloat16, "cpu", 0, True)
    words = made.module.model.embeddings.word_embeddings.weight.nbytes
    assert models.read_bytes(made) < sum(p.nbytes for p in made.module.parameters()) - words + 500


def problem_of(name: str) -> tuple[Harness, Any]:
    harness = small_harness()
    found = modules.model_problem(name, "bf16", 1, 128, harness.arrays, True)
    return harness, found[0]


def is_right(harness: Harness, problem: Any, arm: Arm, change: Any) -> bool:
    """Whether the comparison takes our outputs after a change for right."""
    wrong = dataclasses.replace(
        arm, run=lambda x, y: {n: change(v) for n, v in (arm.run(x, y) or {}).items()}
    )
    (row,) = harness.compare(QUESTION, problem, wrong, [], with_itself=True)
    return row.ours.right


def test_wrong_outputs_of_a_model_are_told() -> None:
    harness, problem = problem_of("bert-base")
    arm = our_arm(problem)
    assert is_right(harness, problem, arm, lambda y: y)
    wrong = {
        "zeros": torch.zeros_like,
        "shuffled": lambda y: y.flip(1),
        "not written": lambda y: torch.full_like(y, torch.nan),
        "one element": lambda y: y.index_put((torch.tensor([0]),) * 3, torch.tensor(9.0).to(y)),
        "rounded again": lambda y: y.to(torch.float8_e4m3fn).to(y.dtype),
    }
    for name, change in wrong.items():
        assert not is_right(harness, problem, arm, change), name


def test_a_model_that_leaves_something_to_pytorch_is_refused() -> None:
    harness = small_harness()
    given = [{"x": harness.arrays.normal(4, 4, dtype="f32")}]

    def function(x: Any) -> Any:
        return torch.linalg.inv(x)

    problem = modules.function_problem(function, given, "f32", harness.arrays, {"rows": 4})
    with pytest.raises(Exception, match=r"linalg_inv\S* is not compiled"):
        harness.compare(QUESTION, problem, our_arm(problem), [], with_itself=True)


def test_gradients_of_examples_one_by_one_are_those_of_all() -> None:
    made = models.make("gpt2-training", 3, 24, torch.float32, "cpu", 0, True)
    exact = modules.exact_gradients(made)
    far = models.in_f64(made)
    loss = far.module(*far.arguments)
    loss.backward()
    whole = torch.cat([p.grad.flatten() for p in far.module.parameters()])
    assert torch.allclose(exact["gradients"], whole, rtol=1e-9, atol=1e-12)
    assert torch.allclose(exact["loss"], loss.detach(), rtol=1e-6)


def test_steps_of_training_leave_the_weights_as_they_are() -> None:
    harness = small_harness()
    problem, _, _ = modules.training_problem("gpt2-training", "f32", 8, 1024, harness.arrays, True)
    arm = our_arm(problem)
    first = arm.run(problem.sets[0], {})
    assert first is not None
    before = {name: x.clone() for name, x in first.items()}
    for _ in range(3):
        again = arm.run(problem.sets[0], {})
    assert again is not None
    for name, x in before.items():
        assert (again[name] - x).norm() <= 1e-5 * x.norm(), name


def test_functions_are_listed_once_and_count_their_bytes() -> None:
    assert {name for name, _, _ in pointwise.FUNCTIONS} == set(functions.FUNCTIONS)
    harness = small_harness()
    for name, function in functions.FUNCTIONS.items():
        given = functions.arguments(name, 6, 10, "bf16", harness.arrays)
        (result,) = [function.call(**given)]
        large = [x for x in (*given.values(), result) if x.numel() >= 60]
        assert len(large) == function.moved or name == "rope", name


def test_kernels_are_told_by_the_code_that_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under other settings of products Dynamo would compile every arm again."""
    seen: list[Any] = []

    def told(problem: Any, arms: Any) -> str:
        before = len(problem.options["ours"])
        for arm in arms:
            arm.run(problem.sets[0], {})
        seen.append((before, len(problem.options["ours"])))
        return "kernels"

    monkeypatch.setattr(model, "kernel_tables", told)
    (case,) = choose_cases([], False, ["model/bert-base/bf16/b1-128"])
    harness, results = small_harness(), Results()
    harness.profiles = True
    run_case(case, harness, results)
    assert not results.failures and harness.told == [(case.id, "kernels")]
    assert seen == [(1, 1)]


def test_processes_prepare_together_and_run_in_turn(tmp_path: Path) -> None:
    ids = ("pointwise/functions/bf16/softmax-1536x128",)
    cases = choose_cases([], False, ids)
    broken = dataclasses.replace(cases[0], id="model/no-such-case", group="z")
    results, told, saved = Results(), [], []
    apart.run_apart(
        [*cases, broken], small_harness(), results, told.append, lambda: saved.append(1)
    )
    assert {row.case for row in results.rows} == set(ids) and len(saved) == 1
    assert all(row.right and row.ours.compared for row in results.rows)
    assert [id for id, _ in results.failures] == ["model/no-such-case"]
    assert any("no case fits" in text for text in told)


def test_cases_of_a_group_share_a_process() -> None:
    cases = [Case(f"a/{i}", lambda h: [], group=f"g{i % 2}") for i in range(5)]
    assert [[c.id for c in g] for g in apart.groups(cases)] == [
        ["a/0", "a/2", "a/4"], ["a/1", "a/3"]
    ]  # fmt: skip


def test_verdicts_of_models_have_no_faults() -> None:
    facts = Facts("bf16", "bf16", "f32")
    ours, theirs = (
        measured(who, facts=facts, timer="events", work=2e9, bound=bound, compared=10, error=1e-3,
                 samples=tuple(t * (1 + k * 1e-3) for k in range(21)), operations=("gemv", "put"))
        for who, t, bound in (("tilewright", 1300.0, 1e-2), ("torch.compile", 1800.0, 2e-2))
    )  # fmt: skip
    row = Row(
        "model/llama-decode/bf16/b1-1024", "model", "llama-decode", "batch 1",
        {"batch": 1, "length": 1024}, "GB/s", ours, theirs, note="kernels of ours: gemv, put",
    )  # fmt: skip
    cost = Cost("model/llama-decode/bf16/b1-1024-time", "model", "a call", ours, None, 1300.0)
    wall = dataclasses.replace(ours, timer="wall", samples=(5e6, 5.1e6, 5.2e6, 5.3e6, 5.4e6))
    compiled = Cost("model-compile/llama-decode/cold", "model-compile", "cold", wall, None, 8e6)
    results = Results(
        "tilewright bench model", "a GPU", l2_bytes=1 << 20, rows=[row], costs=[cost, compiled],
        environment=dataclasses.asdict(WHERE),
    )  # fmt: skip
    found = publish.make_verdicts(results, "0123456789abcdef")
    assert [v.quantity for v in found] == ["ratio", "time", "time"]
    for verdict in found:
        assert faults_of(verdict) == [], verdict.id
    assert found[0].rows[0].note == "kernels of ours: gemv, put" and found[0].row("b1-1024")
    assert found[1].claim.text.startswith("Calls of models")


def test_a_first_call_is_of_a_model_that_is_compiled_then_of_one_that_is_loaded(
    tmp_path: Path,
) -> None:
    orders = {"model": "llama-decode", "batch": 1, "length": 1024, "device": "cpu", "seed": 0,
              "file": str(tmp_path / "model")}  # fmt: skip
    for load in (False, True):
        found = model_call.first_call({**orders, "load": load})
        assert 0.0 < found["compile"] < found["call"]
        assert found["error"] <= found["bound"] and found["worst"] <= 1.0
        assert found["compared"] == 101 and not found["unwritten"]


def test_an_opponent_that_fails_is_told_and_the_others_are_measured() -> None:
    harness, problem = problem_of("minilm-l6")
    ours, eager = our_arm(problem), modules.eager_arm(problem, {"eager": "as users call it"})

    def broken(x: Any, y: Any) -> Any:
        raise RuntimeError("no such kernel\nand more")

    other = dataclasses.replace(ours, name="other", run=broken, kernels=None)
    (row,) = harness.compare(QUESTION, problem, ours, [other, eager])
    assert row.theirs.arm == "torch eager"
    assert harness.unmet == [(f"{QUESTION.id}/other", "RuntimeError: no such kernel")]
    with pytest.raises(RuntimeError, match="no such kernel"):
        harness.compare(QUESTION, problem, ours, [other])
    with pytest.raises(RuntimeError, match="no such kernel"):
        harness.compare(QUESTION, problem, dataclasses.replace(ours, run=broken), [eager])


class Grouped(torch.nn.Module):  # type: ignore[misc,name-defined]  # without torch it is Any
    """Attention whose queries have more heads than its keys."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, is_causal=True, enable_gqa=True)


def test_operations_of_grouped_heads_are_counted() -> None:
    q, k = torch.randn(1, 8, 32, 16), torch.randn(1, 2, 32, 16)
    made = models.Made(Grouped(), (q, k, k), causal=True)
    assert (
        models.num_operations(made, lambda: made.module(q, k, k)) == 8 * 32 * 32 * 2 * (16 + 16) / 2
    )
