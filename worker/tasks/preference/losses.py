"""The losses of preferences, as functions of the log-probabilities of answers.

Each gives one number per pair, (pairs,) float32. Names are TRL's.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch.nn.functional import logsigmoid

from service.contract.tasks.preference import LossType, PreferenceSpec

_SIMPO_GAMMA: Final = 0.5


class Answers(NamedTuple):
    """Log-probabilities of some answers, summed over their tokens; each (answers,) float32."""

    log_probs: torch.Tensor
    reference: torch.Tensor
    """By the reference model; 0 without one."""
    tokens: torch.Tensor
    """How many tokens were summed."""

    @property
    def log_ratios(self) -> torch.Tensor:
        return self.log_probs - self.reference

    @property
    def mean_log_ratios(self) -> torch.Tensor:
        """Per token."""
        return self.log_ratios / self.tokens


PairLoss = Callable[[Answers, Answers, PreferenceSpec], torch.Tensor]
"""(chosen, rejected, the task's parameters) → the loss of each pair."""


def sigmoid(chosen: Answers, rejected: Answers, spec: PreferenceSpec) -> torch.Tensor:
    """DPO: Rafailov et al. 2023, arXiv:2305.18290, eq. 7. With label smoothing conservative DPO:
    Mitchell 2023, "A note on DPO with noisy preferences"."""
    return _smoothed(spec.beta * (chosen.log_ratios - rejected.log_ratios), spec.label_smoothing)


def robust(chosen: Answers, rejected: Answers, spec: PreferenceSpec) -> torch.Tensor:
    """Robust DPO: Chowdhury et al. 2024, arXiv:2403.00409; unbiased if the share
    `label_smoothing` of the labels is wrong."""
    margins, wrong = spec.beta * (chosen.log_ratios - rejected.log_ratios), spec.label_smoothing
    return (wrong * logsigmoid(-margins) - (1 - wrong) * logsigmoid(margins)) / (1 - 2 * wrong)


def ipo(chosen: Answers, rejected: Answers, spec: PreferenceSpec) -> torch.Tensor:
    """IPO: Azar et al. 2023, arXiv:2310.12036, eq. 17, with log-ratios per token."""
    return (chosen.mean_log_ratios - rejected.mean_log_ratios - 1 / (2 * spec.beta)) ** 2


def hinge(chosen: Answers, rejected: Answers, spec: PreferenceSpec) -> torch.Tensor:
    """SLiC-HF's hinge on DPO's margin: Zhao et al. 2023, arXiv:2305.10425; Liu et al. 2023 (RSO),
    arXiv:2309.06657."""
    return torch.relu(1 - spec.beta * (chosen.log_ratios - rejected.log_ratios))


def apo_zero(chosen: Answers, rejected: Answers, spec: PreferenceSpec) -> torch.Tensor:
    """APO-zero: D'Oosterlinck et al. 2024, arXiv:2408.06266, eq. 7."""
    good, bad = spec.beta * chosen.log_ratios, spec.beta * rejected.log_ratios
    return 1 - good.sigmoid() + bad.sigmoid()


def simpo(chosen: Answers, rejected: Answers, spec: PreferenceSpec) -> torch.Tensor:
    """SimPO: Meng et al. 2024, arXiv:2405.14734, eq. 6."""
    gamma = _SIMPO_GAMMA if spec.simpo_gamma is None else spec.simpo_gamma
    margins = spec.beta * (chosen.mean_log_ratios - rejected.mean_log_ratios) - gamma
    return _smoothed(margins, spec.label_smoothing)


def orpo(chosen: Answers, rejected: Answers, spec: PreferenceSpec) -> torch.Tensor:
    """ORPO: Hong et al. 2024, arXiv:2403.07691, eq. 6: the chosen answer's loss per token, and the
    ratio of the odds. As in the paper the prompt's tokens have no loss; TRL's have one."""
    good, bad = chosen.mean_log_ratios, rejected.mean_log_ratios
    return -good - spec.beta * logsigmoid(_log_odds(good) - _log_odds(bad))


def _log_odds(mean: torch.Tensor) -> torch.Tensor:
    """log(p / (1 - p)) for the logarithm of p, which is below 0; exact where p is near 0 or 1."""
    near_one = mean > -0.6931  # log(1 / 2)
    inner = torch.where(near_one, mean, mean.new_tensor(-1.0))
    outer = torch.where(near_one, mean.new_tensor(-1.0), mean)
    rest = torch.where(near_one, (-torch.expm1(inner)).log(), torch.log1p(-outer.exp()))
    return mean - rest


def _smoothed(margins: torch.Tensor, smoothing: float) -> torch.Tensor:
    return -(1 - smoothing) * logsigmoid(margins) - smoothing * logsigmoid(-margins)


PAIRWISE: Final[dict[LossType, PairLoss]] = {
    "sigmoid": sigmoid,
    "robust": robust,
    "ipo": ipo,
    "hinge": hinge,
    "apo_zero": apo_zero,
    "simpo": simpo,
    "orpo": orpo,
}
"""Losses of pairs, by name; kto's rows are not pairs."""
PER_TOKEN: Final[frozenset[LossType]] = frozenset({"simpo", "orpo"})
"""Losses whose rewards are means over tokens, not sums."""


def kto(
    answers: Answers, desirable: torch.Tensor, divergence: torch.Tensor, spec: PreferenceSpec
) -> torch.Tensor:
    """KTO: Ethayarajh et al. 2024, arXiv:2402.01306, eq. 7 and 8; one loss per answer.

    `desirable`: (answers,) bool. `divergence`: a scalar without gradient, the estimated KL
    divergence from the reference, not below 0.
    """
    distance = spec.beta * (answers.log_ratios - divergence)
    good, bad = (1 if w is None else w for w in (spec.desirable_weight, spec.undesirable_weight))
    return torch.where(desirable, good * (1 - distance.sigmoid()), bad * distance.sigmoid())


def rewards(answers: Answers, spec: PreferenceSpec) -> torch.Tensor:
    """The implicit reward of each answer."""
    per_token = spec.loss_type in PER_TOKEN
    return spec.beta * (answers.mean_log_ratios if per_token else answers.log_ratios)


def logged_log_probs(answers: Answers, spec: PreferenceSpec) -> torch.Tensor:
    """What TRL logs: means over tokens for losses that use these."""
    per_token = spec.loss_type in PER_TOKEN
    return answers.log_probs / answers.tokens if per_token else answers.log_probs
