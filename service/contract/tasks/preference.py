"""The parameters of learning from preferences: a model's answers, or a model that scores them."""

from collections.abc import Iterator
from typing import Final, Literal

from pydantic import Field

from service.contract.fields.bounds import LARGEST, MOST_TOKENS
from service.contract.fields.section import rule
from service.contract.fields.types import TaskParametersModel
from service.contract.tasks.chat import ChatTemplate, GenerateSpec

LossType = Literal["sigmoid", "robust", "ipo", "apo_zero", "hinge", "simpo", "orpo", "kto"]
_WITHOUT_REFERENCE: Final = frozenset({"simpo", "orpo"})
_NEED_REFERENCE: Final = frozenset({"apo_zero", "kto"})
_SMOOTHED: Final = frozenset({"sigmoid", "robust", "simpo"})

_MAX_LENGTH: Final = (
    "Tokens of a prompt with an answer; longer ones are cut at their end. Default: what nearly "
    "all training rows need, at most the model's limit; the job says what that is."
)
_CHAT_TEMPLATE: Final = (
    "The name of a template of ours (`chatml`, …), or the text of a Jinja template. Default: the "
    "model's own. Rows of text, for a model without a template, are joined as they are, with the "
    "end-of-text token after the answer."
)


class PreferenceSpec(TaskParametersModel):
    """Teach a model which of two answers is the better one, or which answers are good."""

    type: Literal["preference"] = "preference"
    loss_type: LossType = Field(
        "sigmoid",
        description="sigmoid: DPO (Rafailov et al. 2023, arXiv:2305.18290), with "
        "`label_smoothing` conservative DPO; robust: DPO for labels that are partly wrong "
        "(Chowdhury et al. 2024, arXiv:2403.00409); ipo: a squared loss that does not overfit "
        "(Azar et al. 2023, arXiv:2310.12036), per token as its authors confirmed to TRL; hinge: "
        "SLiC (Zhao et al. 2023, arXiv:2305.10425); apo_zero: likelier good and unlikelier bad "
        "answers (D'Oosterlinck et al. 2024, arXiv:2408.06266); simpo: without a reference, by "
        "the mean over tokens (Meng et al. 2024, arXiv:2405.14734); orpo: without a reference, "
        "with the loss of the good answer (Hong et al. 2024, arXiv:2403.07691); kto: from rows "
        "with one answer each, good or bad (Ethayarajh et al. 2024, arXiv:2402.01306).",
    )
    beta: float = Field(
        0.1,
        gt=0,
        le=LARGEST,
        description="How closely the model stays with its reference; higher is closer. For ipo the "
        "paper's τ, for orpo its λ. The default is TRL's for each loss; SimPO's authors use 2.0 "
        "to 2.5.",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="The share of pairs whose labels are taken to be wrong: `loss_type: sigmoid`, "
        "`simpo` (smoothed) and `robust` (unbiased).",
    )
    simpo_gamma: float | None = Field(
        None,
        ge=0,
        le=LARGEST,
        description="`loss_type: simpo`: the margin that the good answer's reward should have; "
        "default: 0.5.",
    )
    desirable_weight: float | None = Field(
        None, gt=0, le=LARGEST, description="`loss_type: kto`: of good answers; default: 1."
    )
    undesirable_weight: float | None = Field(
        None, gt=0, le=LARGEST, description="`loss_type: kto`: of bad answers; default: 1."
    )
    reference: Literal["model", "none"] | None = Field(
        None,
        description="model: rewards are relative to the model before training; its "
        "log-probabilities are computed once, before the first step, and kept for other jobs. "
        "none: relative to nothing. Default: model, for simpo and orpo none.",
    )
    max_length: int | None = Field(None, ge=8, le=MOST_TOKENS, description=_MAX_LENGTH)
    chat_template: ChatTemplate | None = Field(None, description=_CHAT_TEMPLATE)
    generate: GenerateSpec | None = Field(
        None, description="`mode: predict`: how answers are generated."
    )

    def predicting_variant(self) -> str:
        return "preference/text-generation"

    def needs_reference(self) -> bool:
        if self.reference is not None:
            return self.reference == "model"
        return self.loss_type not in _WITHOUT_REFERENCE

    @rule
    def _reference_fits_the_loss(self) -> Iterator[str]:
        if self.reference == "model" and self.loss_type in _WITHOUT_REFERENCE:
            yield f"`reference: model` is not used by `loss_type: {self.loss_type}`: remove it"
        if self.reference == "none" and self.loss_type in _NEED_REFERENCE:
            yield (
                f"`loss_type: {self.loss_type}` compares the model with its reference, and "
                "`reference: none` gives it none: use `model`, or another loss"
            )

    @rule
    def _labels_can_be_smoothed(self) -> Iterator[str]:
        if self.label_smoothing and self.loss_type not in _SMOOTHED:
            yield (
                f"`label_smoothing` is not part of `loss_type: {self.loss_type}`: use "
                "`sigmoid`, `robust` or `simpo`"
            )

    @rule
    def _options_fit_the_loss(self) -> Iterator[str]:
        if self.simpo_gamma is not None and self.loss_type != "simpo":
            yield "`simpo_gamma` needs `loss_type: simpo`"
        for name in ("desirable_weight", "undesirable_weight"):
            if getattr(self, name) is not None and self.loss_type != "kto":
                yield f"`{name}` needs `loss_type: kto`"


class RewardSpec(TaskParametersModel):
    """Teach a model to score answers, from pairs of a better and a worse one (Bradley and Terry
    1952; Ouyang et al. 2022, arXiv:2203.02155)."""

    type: Literal["reward"] = "reward"
    max_length: int | None = Field(None, ge=8, le=MOST_TOKENS, description=_MAX_LENGTH)
    chat_template: ChatTemplate | None = Field(None, description=_CHAT_TEMPLATE)
    center_rewards_coefficient: float | None = Field(
        None,
        gt=0,
        le=LARGEST,
        description="Keeps the mean reward near 0: the weight of the squared sum of a pair's "
        "rewards (Eisenstein et al. 2023, arXiv:2312.09244, who use 0.01). Default: off.",
    )
