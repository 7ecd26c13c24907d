"""`prepare` asks the Hub whether the finished model may be pushed, through the real client."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import RULES, FailureCode
from service.contract.stages import PrepareResult
from tests.fakes.hub import HubDouble
from tests.stages.support import OFFLINE, TOKEN, Ended, Forks, Run, request, spec

READER = "hf_" + "r" * 34
FINE_GRAINED = "hf_" + "f" * 34
_NUMBERS = itertools.count()


@pytest.fixture
def name() -> str:
    return f"target-{next(_NUMBERS)}"


@pytest.fixture
def target_hub(hub: HubDouble) -> Iterator[HubDouble]:
    """`TOKEN` writes to `me` and `team`, `READER` nowhere, `FINE_GRAINED` to `robots` alone."""
    known = dict(hub.tokens)
    hub.tokens |= {TOKEN: {"me", "team"}, READER: {"me"}, FINE_GRAINED: {"robots"}}
    hub.read_only.add(READER)
    hub.requests.clear()
    yield hub
    hub.heal()
    hub.tokens = known
    hub.read_only.clear()


def body(models: Path, model_id: str, **hub: Any) -> dict[str, Any]:
    return spec(models / "tiny") | {"hub": {"model_id": model_id, **hub}}


def refused(ended: Ended, code: FailureCode) -> str:
    assert ended.failure.code is code, ended.log
    assert ended.failure.action == RULES[code].action
    return ended.failure.message


class TestTarget:
    def test_the_repository_and_its_branch_are_made_before_anything_else(
        self, run: Run, target_hub: HubDouble, models: Path, name: str
    ) -> None:
        ended = run(body(models, f"team/{name}", revision="v1"), TOKEN)
        assert ended.status == 0, ended.log
        repo = target_hub.repo(f"team/{name}")
        assert repo.private
        assert set(repo.branches) == {"main", "v1"}
        assert PrepareResult.model_validate(ended.result).hub_model_id == f"team/{name}"
        assert ended.notices[0].endswith(f"{target_hub.endpoint}/team/{name}")
        assert not [one for one in target_hub.requests if "whoami" in one.path]

    def test_a_public_one_is_made_public(
        self, run: Run, target_hub: HubDouble, models: Path, name: str
    ) -> None:
        assert run(body(models, f"me/{name}", private=False), TOKEN).status == 0
        assert not target_hub.repo(f"me/{name}").private

    def test_a_name_alone_is_of_the_tokens_account(
        self, run: Run, target_hub: HubDouble, models: Path, name: str
    ) -> None:
        """Although a public model has this old short name."""
        target_hub.create("model", name, private=False)
        ended = run(body(models, name), TOKEN)
        assert ended.result["hub_model_id"] == f"me/{name}"
        assert target_hub.repo(f"me/{name}").private

    def test_a_retry_keeps_the_repository_and_the_name(
        self, run: Run, target_hub: HubDouble, models: Path, name: str
    ) -> None:
        first = run(body(models, name), TOKEN).result
        target_hub.tokens[TOKEN] = {"another", "me"}
        again = run(body(models, name), TOKEN, prepared=first)
        assert again.result["hub_model_id"] == f"me/{name}"
        assert len(target_hub.repo(f"me/{name}").commits) == 1

    def test_a_data_set_of_that_name_is_another_repository(
        self, run: Run, target_hub: HubDouble, models: Path, name: str
    ) -> None:
        target_hub.create("dataset", f"me/{name}", private=True)
        assert run(body(models, f"me/{name}"), TOKEN).status == 0
        assert target_hub.find("model", f"me/{name}") is not None

    def test_without_a_hub_section_no_token_is_needed(
        self, run: Run, target_hub: HubDouble, models: Path
    ) -> None:
        ended = run(spec(models / "tiny"))
        assert ended.result["hub_model_id"] is None
        assert target_hub.requests == []


class TestRefusals:
    def test_no_token(self, run: Run, target_hub: HubDouble, models: Path) -> None:
        ended = run(body(models, "me/x"))
        assert ended.failure.code is FailureCode.HUB_UNAUTHORIZED, ended.log
        assert ended.failure.message == "No Hub token is set."
        assert ended.failure.action == (
            "Set FINETUNE_HUB_TOKEN, restart, then `finetune retry JOB`."
        )
        assert target_hub.requests == []

    @pytest.mark.parametrize("model_id", ["me/x", "x"])
    def test_a_token_that_the_hub_does_not_know(
        self, run: Run, target_hub: HubDouble, models: Path, model_id: str
    ) -> None:
        ended = run(body(models, model_id), "hf_" + "u" * 34)
        assert "401" in refused(ended, FailureCode.HUB_UNAUTHORIZED)

    @pytest.mark.parametrize("exists", [False, True])
    def test_a_token_that_can_only_read(
        self, run: Run, target_hub: HubDouble, models: Path, name: str, exists: bool
    ) -> None:
        if exists:
            target_hub.create("model", f"me/{name}", private=True)
        message = refused(run(body(models, name), READER), FailureCode.HUB_UNAUTHORIZED)
        assert f"'me/{name}'" in message
        assert "role `read`" in message

    @pytest.mark.parametrize("exists", [False, True])
    def test_another_ones_namespace(
        self, run: Run, target_hub: HubDouble, models: Path, name: str, exists: bool
    ) -> None:
        """A repository that everyone can read is accepted by the client's `create_repo`."""
        if exists:
            target_hub.create("model", f"team/{name}", private=False)
        ended = run(body(models, f"team/{name}"), FINE_GRAINED)
        message = refused(ended, FailureCode.HUB_FORBIDDEN)
        assert f"'team/{name}'" in message
        assert "don't have the rights" in message
        assert "its account: robots" in message
        assert ended.failure.details["namespaces"] == ["robots"]

    def test_nothing_is_fetched_for_it(
        self, run: Run, target_hub: HubDouble, models: Path, model: Path, name: str
    ) -> None:
        target_hub.add_repo(f"me/base-{name}", model)
        spec = body(models, f"team/{name}") | {"model": {"name_or_path": f"me/base-{name}"}}
        refused(run(spec, FINE_GRAINED), FailureCode.HUB_FORBIDDEN)
        assert not [one for one in target_hub.requests if f"base-{name}" in one.path]

    def test_a_refusal_for_another_reason_gives_it_without_the_token(
        self, run: Run, target_hub: HubDouble, models: Path, name: str
    ) -> None:
        target_hub.fail("/repos/create", 403, message=f"Storage limit reached by {TOKEN}")
        ended = run(body(models, f"me/{name}"), TOKEN)
        message = refused(ended, FailureCode.HUB_FORBIDDEN)
        assert "Storage limit reached" in message
        assert TOKEN not in str(ended.events)

    def test_the_hub_does_not_name_the_owner_of_the_token(
        self, run: Run, target_hub: HubDouble, models: Path, name: str
    ) -> None:
        target_hub.fail("/whoami-v2", 429, method="GET")
        ended = run(body(models, f"team/{name}"), FINE_GRAINED)
        refused(ended, FailureCode.HUB_FORBIDDEN)
        refused(run(body(models, name), TOKEN), FailureCode.HUB_RATE_LIMITED)

    @pytest.mark.parametrize(
        ("model_id", "revision"), [("me/a--b", "main"), ("me/ab", "no branch")]
    )
    def test_names_that_the_hub_does_not_take(
        self, run: Run, target_hub: HubDouble, models: Path, model_id: str, revision: str
    ) -> None:
        target_hub.fail("/branch/", 400, message="Invalid branch name")
        refused(run(body(models, model_id, revision=revision), TOKEN), FailureCode.HUB_REJECTED)


class TestAway:
    @pytest.mark.parametrize(
        ("path", "method"), [("/repos/create", "POST"), ("/auth-check/", "GET")]
    )
    def test_is_tried_again(
        self, run: Run, target_hub: HubDouble, models: Path, name: str, path: str, method: str
    ) -> None:
        target_hub.fail(path, 503, method=method)
        ended = run(body(models, f"me/{name}"), TOKEN)
        refused(ended, FailureCode.HUB_UNAVAILABLE)
        assert RULES[FailureCode.HUB_UNAVAILABLE].retryable
        target_hub.heal()
        assert run(body(models, f"me/{name}"), TOKEN).status == 0

    @pytest.mark.parametrize("more", [{}, OFFLINE], ids=["unreachable", "offline mode"])
    def test_no_network(
        self, tmp_path: Path, models: Path, forks: Forks, more: dict[str, str]
    ) -> None:
        given = request(tmp_path, body(models, "me/x"))
        refused(forks.run(given, {**more, "HF_TOKEN": TOKEN}), FailureCode.NETWORK)

    def test_a_mirror_that_cannot_be_asked_is_trusted(
        self, run: Run, target_hub: HubDouble, models: Path, name: str
    ) -> None:
        target_hub.fail("/auth-check/", 404, method="GET")
        assert run(body(models, f"me/{name}"), TOKEN).status == 0
