"""The prompts of the rows that evaluations answer, checked before the training begins."""

from typing import Any, Final

from service.contract.failures import FailureCode, StageError
from service.contract.spec.splits import is_validation
from service.contract.stage.events import Notice
from service.contract.tasks.chat import ChatSpec
from worker.data.table import RowError
from worker.failures import invalid_option
from worker.tasks.base import PrepareContext
from worker.tasks.chat import answers, exact_match, rows
from worker.tasks.chat.conversation import Conversation
from worker.tasks.chat.exact_match import ResultPattern
from worker.tasks.chat.rendering import Renderer

_NAMED: Final = 10


class Prompts:
    """Call it with the number of a row of the split, from 0."""

    def __init__(
        self, split: str, examples: Any, context: PrepareContext, parameters: ChatSpec
    ) -> None:
        assert parameters.generate is not None
        peft = context.spec.peft
        reserved = peft.virtual_tokens if peft is not None else 0
        pattern = parameters.generate.exact_match
        self._split, self._context = split, context
        self._examples = rows.without_tokens(examples)
        self._length = answers.prompt_length(context.config, parameters.generate, reserved)
        self._renderer = Renderer(context.tokenizer, parameters)
        self._pattern = None if pattern is None else ResultPattern(pattern)
        self._too_long: list[int] = []
        self._without_result: list[int] = []

    def __call__(self, number: int) -> list[int]:
        """The tokens before the last answer; none if they leave no room for an answer, or if the
        row is only answered for `exact_match` and has no result."""
        conversation = rows.load(self._examples[number])
        try:
            ids = self._renderer.prompt(conversation)
        except RowError as error:
            message = f"Row {number + 1} of the {self._split} split: {error}"
            raise StageError(FailureCode.UNREADABLE_ROW, message, row=number + 1) from error
        if len(ids) > self._length:
            self._too_long.append(number)
            return []
        if self._pattern is not None and not self._has_result(conversation, number):
            self._without_result.append(number)
            return [] if is_validation(self._split) else ids
        return ids

    def _has_result(self, conversation: Conversation, number: int) -> bool:
        assert self._pattern is not None
        try:
            return self._pattern.result(answers.own_answer(conversation)) is not None
        except TimeoutError as error:
            place = f"row {number + 1} of the {self._split} split"
            message = f"takes too long to match the answer of {place}: simplify its repetitions"
            raise invalid_option(exact_match.OPTION, message, row=number + 1) from error

    def report(self) -> None:
        """Report which rows get no answer, and which are not scored. StageError(invalid_option) if
        no row of a validation split can be scored."""
        self._require_scores()
        if self._too_long:
            self._report_rows(
                self._too_long,
                "get no answer: with `task.generate.max_new_tokens` their prompts have room for "
                f"{self._length:,} tokens",
            )
        if self._without_result:
            self._report_rows(
                self._without_result,
                "do not count for `exact_match`, whose expression does not match their own answers",
            )

    def _require_scores(self) -> None:
        unscored = len(self._too_long) + len(self._without_result)
        is_needed = self._pattern is not None and is_validation(self._split)
        if not is_needed or unscored < len(self._examples):
            return
        if self._without_result:
            raise invalid_option(
                exact_match.OPTION, f"matches no answer of the {self._split} split's own"
            )
        raise invalid_option(
            "task.generate.max_new_tokens",
            f"leaves no prompt of the {self._split} split enough room: they would need to have at "
            f"most {self._length:,} tokens",
        )

    def _report_rows(self, numbers: list[int], what: str) -> None:
        named = ", ".join(f"{number + 1:,}" for number in numbers[:_NAMED])
        more = ", …" if len(numbers) > _NAMED else ""
        self._context.notice(
            Notice(
                message=f"{len(numbers):,} of {len(self._examples):,} rows of the {self._split} "
                f"split {what} (rows {named}{more})",
                data={"split": self._split, "rows": len(numbers)},
            )
        )
