"""What to do about a failure where there is no job: nothing that needs one, or a spec."""

import re

import pytest

from service.contract.failures import RULES, Failure, FailureCode
from service.contract.interactive import next_steps
from worker.supervision.limits import breaches

JOB = re.compile(r"JOB|\bclone|finetune (retry|logs|clone|resume)|submit|Continue|this job's")
SPEC = re.compile(
    r"`(model|dataset|training|task|peft|hub|secrets)\.|`save_total|`learning|`warmup"
)


class TestWithoutJob:
    @pytest.mark.parametrize("code", FailureCode)
    def test_no_command_for_a_job(self, code: FailureCode) -> None:
        failure = Failure.from_code(code, "No.")
        for advised in (next_steps.of_preview(failure), next_steps.of_prediction(failure)):
            assert not JOB.search(advised.action), advised.action
            assert advised.action[0].isupper()
            assert advised.action.endswith(".")
            assert (advised.code, advised.message) == (code, "No.")

    @pytest.mark.parametrize("code", next_steps._IN_PREDICTIONS)
    def test_a_prediction_has_no_spec(self, code: FailureCode) -> None:
        action = next_steps.of_prediction(Failure.from_code(code, "No.")).action
        assert not SPEC.search(action), action

    def test_the_tables_differ_from_the_rules(self) -> None:
        for table in (next_steps._IN_PREVIEWS, next_steps._IN_PREDICTIONS):
            assert all(RULES[code].action != action for code, action in table.items())

    def test_try_again_in_place_of_a_retry(self) -> None:
        advised = next_steps.of_preview(Failure.from_code(FailureCode.NETWORK, "No route."))
        assert advised.action == "Fix the network, then try again."

    def test_what_the_place_itself_advises_stays(self) -> None:
        action = "Lower `task.max_seq_length` to at most 512, then submit again."
        failure = Failure.from_code(FailureCode.SEQUENCE_TOO_LONG, "Too long.", action=action)
        assert next_steps.of_preview(failure).action == (
            "Lower `task.max_seq_length` to at most 512, then try again."
        )

    def test_a_limit_of_the_machine(self) -> None:
        breach = breaches.too_much_memory(5, {"python": 5}, 4)
        assert "finetune clone" in breach.action
        assert next_steps.of_preview(breach).action.startswith("Ask for fewer rows, or try again")
        assert next_steps.of_prediction(breach).action.startswith("Ask for fewer tokens, choices")
