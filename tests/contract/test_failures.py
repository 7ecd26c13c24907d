from service.contract.failures import RULES, Failure, FailureCode, StageError
from service.contract.states import JobState


class TestRules:
    def test_every_code_has_a_rule(self) -> None:
        assert set(RULES) == set(FailureCode)

    def test_only_a_cancelled_job_or_a_pruned_trial_does_not_fail(self) -> None:
        assert {code for code, rule in RULES.items() if rule.state is not JobState.FAILED} == {
            FailureCode.CANCELLED,
            FailureCode.TRIAL_PRUNED,
        }

    def test_only_the_outside_and_the_machine_are_retried(self) -> None:
        assert {code for code, rule in RULES.items() if rule.retryable} == {
            FailureCode.WORKER_LOST,
            FailureCode.HUNG,
            FailureCode.DEVICE_ERROR,
            FailureCode.HUB_CONFLICT,
            FailureCode.HUB_RATE_LIMITED,
            FailureCode.HUB_UNAVAILABLE,
            FailureCode.NETWORK,
        }

    def test_every_action_is_a_sentence(self) -> None:
        for rule in RULES.values():
            assert rule.action[0].isupper()
            assert rule.action.endswith(".")

    def test_what_is_retried_says_what_to_do_meanwhile(self) -> None:
        for rule in RULES.values():
            continues = rule.retryable or rule.is_lack or rule.is_prepared_again
            assert bool(rule.while_retrying) is continues
            assert rule.while_retrying[:1].isupper() is continues
            assert "JOB" not in rule.while_retrying


class TestStageError:
    def test_carries_its_failure(self) -> None:
        error = StageError(FailureCode.MISSING_COLUMN, "no column `context`", found=["a"])
        assert error.failure == Failure(
            code=FailureCode.MISSING_COLUMN,
            message="no column `context`",
            action=RULES[FailureCode.MISSING_COLUMN].action,
            details={"found": ["a"]},
        )
