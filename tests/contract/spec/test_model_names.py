import pytest

from service.contract.spec import model_names
from service.contract.spec.model_names import FineTuned

JOB = "job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"


def test_a_name_says_base_project_suffix_and_job() -> None:
    name = model_names.fine_tuned("HuggingFaceTB/SmolLM2-135M", "default", "support", JOB)
    assert name == f"ft:SmolLM2-135M:default:support:{JOB}"
    assert model_names.parse(name) == FineTuned(JOB, None)


def test_a_checkpoint_has_its_step() -> None:
    name = model_names.fine_tuned("/srv/models/tiny/", "search", None, JOB, 40)
    assert name == f"ft:tiny:search::{JOB}:ckpt-step-40"
    assert model_names.parse(name) == FineTuned(JOB, 40)


@pytest.mark.parametrize(
    "suffix", ["a:b", "job-12", f"x:{JOB[:-1]}0:ckpt-step-9", "a/b c", "日本", "x" * 200, "%2F?#"]
)
def test_no_suffix_changes_what_a_name_identifies(suffix: str) -> None:
    for step in (None, 0, 7):
        name = model_names.fine_tuned("org/base", "p", suffix, JOB, step)
        assert model_names.parse(name) == FineTuned(JOB, step)
        assert name.count(":") == 4 + (step is not None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ft:",
        JOB,
        f"ft:{JOB}",
        f"ft:a:b:c:{JOB}:ckpt-step-",
        f"ft:a:b:c:{JOB}:ckpt-step-x",
        f"ft:a:b:c:{JOB}:ckpt-step-4294967296",
        f"ft:a:b:c:{JOB}\n",
        f"ft:a\x00:b:c:{JOB}",
        f"xft:a:b:c:{JOB}",
        "ft:a:b:c:job-XYZ",
        f"ft:{'a' * 600}:b:c:{JOB}",
        "gpt-4o-mini",
    ],
)
def test_other_text_is_not_a_name(text: str) -> None:
    assert model_names.parse(text) is None
