"""worker.tasks.preference.losses: the numbers that TRL's formulas give, and closed forms."""

import math
from typing import Any

import pytest
import torch

from service.contract.tasks.preference import PreferenceSpec
from worker.tasks.preference import losses
from worker.tasks.preference.losses import Answers

CHOSEN = Answers(
    torch.tensor([-12.5, -40.25, -3.0]),
    torch.tensor([-13.0, -38.0, -6.5]),
    torch.tensor([5.0, 17.0, 2.0]),
)
REJECTED = Answers(
    torch.tensor([-15.0, -31.5, -80.0]),
    torch.tensor([-14.25, -33.0, -60.0]),
    torch.tensor([7.0, 12.0, 30.0]),
)
# Computed with the expressions of TRL 1.16: DPOTrainer; CPOTrainer for simpo, ORPOTrainer for orpo.
GOLDEN: dict[str, tuple[dict[str, Any], list[float]]] = {
    "sigmoid": ({}, [0.632599, 0.898123, 0.091091]),
    "sigmoid, smoothed": ({"label_smoothing": 0.2}, [0.657599, 0.823123, 0.561091]),
    "robust": ({"label_smoothing": 0.2}, [0.590932, 1.023123, -0.692242]),
    "hinge": ({}, [0.875, 1.375, 0.0]),
    "ipo": ({}, [22.971479, 27.639759, 6.673611]),
    "apo_zero": ({}, [0.968761, 1.093444, 0.532585]),
    "simpo": ({}, [0.996457, 0.958136, 0.903071]),
    "simpo, smoothed": ({"label_smoothing": 0.2}, [0.889314, 0.863283, 0.826404]),
    "orpo": ({}, [2.591079, 2.423915, 1.523110]),
}


def spec(loss_type: str, **options: Any) -> PreferenceSpec:
    return PreferenceSpec.model_validate({"loss_type": loss_type, **options})


def without_reference(answers: Answers) -> Answers:
    return answers._replace(reference=torch.zeros(3))


@pytest.mark.parametrize("case", GOLDEN)
def test_is_trls(case: str) -> None:
    options, expected = GOLDEN[case]
    name: Any = case.partition(",")[0]
    chosen, rejected = CHOSEN, REJECTED
    if name in losses.PER_TOKEN:
        chosen, rejected = without_reference(chosen), without_reference(rejected)
    found = losses.PAIRWISE[name](chosen, rejected, spec(name, **options))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_kto_is_trls() -> None:
    options = spec("kto", desirable_weight=1.5, undesirable_weight=0.75)
    desirable = torch.tensor([True, False, True])
    found = losses.kto(CHOSEN, desirable, torch.tensor(1.25), options)
    expected = torch.tensor([0.778112, 0.310037, 0.665979])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_an_untrained_model_has_the_known_losses() -> None:
    """Its log-ratios are 0: log 2 for DPO, 1 for hinge and APO, (1 / 2 beta)² for IPO."""
    same = CHOSEN._replace(log_probs=CHOSEN.reference)
    values = {
        name: float(losses.PAIRWISE[name](same, same, spec(name))[0])
        for name in ("sigmoid", "robust", "hinge", "apo_zero", "ipo")
    }
    log_2 = pytest.approx(math.log(2))
    assert values == {"sigmoid": log_2, "robust": log_2, "hinge": 1, "apo_zero": 1, "ipo": 25}


def test_without_smoothing_robust_is_dpo() -> None:
    dpo = losses.sigmoid(CHOSEN, REJECTED, spec("sigmoid"))
    assert torch.equal(losses.robust(CHOSEN, REJECTED, spec("robust")), dpo)


@pytest.mark.parametrize("mean", [-1e-4, -0.6, -0.7, -50.0])
def test_orpos_odds_are_exact_everywhere(mean: float) -> None:
    """Also where a naive log(p / (1 - p)) in float32 loses its digits."""
    one = torch.ones(1)
    good = Answers(torch.tensor([mean], requires_grad=True), torch.zeros(1), one)
    bad = Answers(torch.tensor([-1.0]), torch.zeros(1), one)
    odds = (mean - math.log(-math.expm1(mean))) - (-1 - math.log(-math.expm1(-1)))
    expected = -mean + 0.1 * math.log1p(math.exp(-odds))
    found = losses.orpo(good, bad, spec("orpo"))
    torch.testing.assert_close(found, torch.tensor([expected]), rtol=1e-5, atol=0)
    assert good.log_probs.grad is None
    found.sum().backward()
    assert good.log_probs.grad is not None
    assert bool(good.log_probs.grad.isfinite().all())


def test_rewards_are_sums_or_means() -> None:
    assert losses.rewards(CHOSEN, spec("sigmoid")).tolist() == pytest.approx([0.05, -0.225, 0.35])
    alone = without_reference(CHOSEN)
    found = losses.rewards(alone, spec("simpo")).tolist()
    assert found == pytest.approx([-0.25, -4.025 / 17, -0.15])
