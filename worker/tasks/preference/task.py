"""The task `preference`: from pairs of answers, or from good and bad ones."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.contract.spec.spec import JobSpec
from service.contract.tasks.preference import PreferenceSpec
from worker.tasks import describe
from worker.tasks.base import PrepareContext, PreparedSplit, Task, parameters_of
from worker.tasks.chat import answers, templates
from worker.tasks.describe import Describer
from worker.tasks.preference import features, losses, rows, single_answers
from worker.tasks.preference.dropout import disable_dropout
from worker.tasks.preference.pairs import PairObjective
from worker.tasks.preference.single_answers import SingleAnswerObjective
from worker.tasks.preference.text_generation import as_chat
from worker.tasks.preference.tokenizing import RowTokenizer, has_template
from worker.training import build
from worker.training.loss import chunked_cross_entropy
from worker.training.objective import Objective


class Preference(Task):
    name = "preference"
    length_option = "max_length"
    auto_class = "AutoModelForCausalLM"
    needs_pad_token = False
    tokenizes_rows = True

    def max_length(self, parameters: PreferenceSpec, limit: int | None) -> int:
        return parameters.max_length or limit or answers.DEFAULT_LIMIT

    def target(self, describer: Describer, feature: Mapping[str, Any]) -> str:
        return features.answers_in_words(describer, feature)

    def trained(self, feature: Mapping[str, Any]) -> list[bool]:
        """KTO's second sequence estimates a divergence: it is not learned from."""
        flags = describe.following(feature)
        if features.DESIRABLE in feature:
            own = feature["lengths"][0]
            flags[own:] = [False] * (len(flags) - own)
        return flags

    def example_schema(self) -> Any:
        return features.example_schema(rows.example_schema())

    def row_tokenizer(
        self,
        spec: JobSpec,
        tokenizer: Any,
        max_length: int,
        split: str,  # noqa: ARG002
    ) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return RowTokenizer(tokenizer, parameters_of(spec, PreferenceSpec), max_length)

    def tokenization_settings(self, parameters: PreferenceSpec) -> Mapping[str, Any]:
        return {
            "format": features.FORMAT_VERSION,
            "length": "option" if parameters.max_length is not None else "from rows",
            "chat_template": templates.setting(parameters.chat_template),
            "pairs": parameters.loss_type in losses.PAIRWISE,
        }

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        pairs = parameters_of(context.spec, PreferenceSpec).loss_type in losses.PAIRWISE
        write = features.write_pairs if pairs else single_answers.write
        return write(split, examples, context, target)

    def bind(
        self,
        spec: JobSpec,
        tokenizer: Any,
        model: Any,
        splits: Mapping[str, PreparedSplit],
    ) -> Objective:
        parameters = parameters_of(spec, PreferenceSpec)
        disable_dropout(model)
        if has_template(tokenizer, parameters.chat_template):
            answers.set_up(model, tokenizer, as_chat(parameters))
        linear = chunked_cross_entropy.plain_head(model) if build.may_capture_head(spec) else None
        pairs = parameters.loss_type in losses.PAIRWISE
        kind = PairObjective if pairs else SingleAnswerObjective
        return kind(parameters, splits, model, linear)
