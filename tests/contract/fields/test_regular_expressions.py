"""Regular expressions of a spec are read, not compiled: 7 kB of them took the API 7 s."""

import re
import time
from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.spec.spec import JobSpec
from tests.contract.factories import job_spec, spec_body

_WIDE = "[a-\uffff]"
_SLOW_TO_COMPILE = (_WIDE * 580, "(?i)" + "[\x01-\U0010ffff]" * 400, "(a{1,1000}){1,1000}" * 200)


def _lora(**options: Any) -> dict[str, Any]:
    return spec_body(peft={"method": "lora", **options})


class TestTargetModules:
    @pytest.mark.parametrize("pattern", _SLOW_TO_COMPILE, ids=len)
    def test_a_slow_one_is_accepted_at_once_and_never_compiled(
        self, pattern: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_spec(peft={"method": "lora"})  # what is prepared once
        compiled = []
        really = re.compile

        def compile_(given: Any, *flags: Any) -> re.Pattern[Any]:
            compiled.append(given)
            return really(given, *flags)

        with monkeypatch.context() as patched:
            patched.setattr(re, "compile", compile_)
            started = time.thread_time()
            spec = JobSpec.model_validate(_lora(target_modules=pattern, exclude_modules=pattern))
            took = time.thread_time() - started
        assert pattern not in compiled
        assert took < 0.5
        assert spec.peft is not None
        assert spec.model_dump()["peft"]["target_modules"] == pattern

    @pytest.mark.parametrize(
        "pattern",
        ["(", "a{2,1}", "(?P<a>x)(?P<a>x)", "(" * 4000, "x{99999999999999999999}"],
        ids=len,
    )
    def test_one_that_cannot_be_read_is_refused(self, pattern: str) -> None:
        with pytest.raises(ValidationError, match="is not a valid regular expression"):
            JobSpec.model_validate(_lora(target_modules=pattern))


class TestRankPattern:
    def test_many_slow_ones_are_refused_by_their_length(self) -> None:
        """90 of them took 99 s."""
        started = time.thread_time()
        slow = {f"{_WIDE * 400}{number}": 4 for number in range(90)}
        with pytest.raises(ValidationError, match="100,000 characters together"):
            JobSpec.model_validate(_lora(rank_pattern=slow))
        assert time.thread_time() - started < 0.5

    def test_a_rank_for_each_module_of_a_large_model_is_accepted(self) -> None:
        ranks = {rf"^model\.layers\.{n}\.self_attn\.q_proj$": 4 for n in range(1000)}
        spec = job_spec(peft={"method": "lora", "rank_pattern": ranks})
        assert spec.model_dump()["peft"]["rank_pattern"] == ranks
