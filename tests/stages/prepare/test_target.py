"""`prepare` asks the Hub whether the finished model may be pushed, through the real client."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import RULES, FailureCode
from service.contract.stage.stages import PrepareResult
from tests.stages.support import OFFLINE, TOKEN, EndedStage, Forks, Run, request, spec
from tests.support.hub import HubDouble

READER = "hf_" + "r" * 34
FINE_GRAINED = "hf_" + "f" * 34
_NUMBERS = itertools.count()


class Target:
    """A name in the Hub that this test has for itself, and jobs that push to it."""

    def __init__(self, hub: HubDouble, run: Run, model: Path) -> None:
        self.hub, self.run, self.model = hub, run, model
        self.name = f"target-{next(_NUMBERS)}"

    def body(self, model_id: str, **hub: Any) -> dict[str, Any]:
        return spec(self.model) | {"hub": {"model_id": model_id, **hub}}

    def prepare(self, model_id: str, token: str | None = TOKEN, **hub: Any) -> EndedStage:
        return self.run(self.body(model_id, **hub), token)


@pytest.fixture
def target(hub: HubDouble, run: Run, models: Path) -> Iterator[Target]:
    """`TOKEN` writes to `me` and `team`, `READER` nowhere, `FINE_GRAINED` to `robots` alone."""
    known = dict(hub.tokens)
    hub.tokens |= {TOKEN: {"me", "team"}, READER: {"me"}, FINE_GRAINED: {"robots"}}
    hub.read_only.add(READER)
    hub.requests.clear()
    yield Target(hub, run, models / "tiny")
    hub.heal()
    hub.tokens = known
    hub.read_only.clear()


def refused(ended: EndedStage, code: FailureCode) -> str:
    assert ended.failure.code is code, ended.log
    assert ended.failure.action == RULES[code].action
    return ended.failure.message


class TestTarget:
    def test_the_repository_and_its_branch_are_made_before_anything_else(
        self, target: Target
    ) -> None:
        ended = target.prepare(f"team/{target.name}", revision="v1")
        assert ended.status == 0, ended.log
        repo = target.hub.repo(f"team/{target.name}")
        assert repo.private
        assert set(repo.branches) == {"main", "v1"}
        assert PrepareResult.model_validate(ended.result).hub_model_id == f"team/{target.name}"
        assert ended.notices[0].endswith(f"{target.hub.endpoint}/team/{target.name}")
        assert not [one for one in target.hub.requests if "whoami" in one.path]

    def test_a_public_one_is_made_public(self, target: Target) -> None:
        assert target.prepare(f"me/{target.name}", private=False).status == 0
        assert not target.hub.repo(f"me/{target.name}").private

    def test_a_name_alone_is_of_the_tokens_account(self, target: Target) -> None:
        """Although a public model has this old short name."""
        target.hub.create("model", target.name, private=False)
        ended = target.prepare(target.name)
        assert ended.result["hub_model_id"] == f"me/{target.name}"
        assert target.hub.repo(f"me/{target.name}").private

    def test_a_retry_keeps_the_repository_and_the_name(self, target: Target) -> None:
        first = target.prepare(target.name).result
        target.hub.tokens[TOKEN] = {"another", "me"}
        again = target.run(target.body(target.name), TOKEN, prepared=first)
        assert again.result["hub_model_id"] == f"me/{target.name}"
        assert len(target.hub.repo(f"me/{target.name}").commits) == 1

    def test_a_data_set_of_that_name_is_another_repository(self, target: Target) -> None:
        target.hub.create("dataset", f"me/{target.name}", private=True)
        assert target.prepare(f"me/{target.name}").status == 0
        assert target.hub.find("model", f"me/{target.name}") is not None

    def test_without_a_hub_section_no_token_is_needed(self, target: Target) -> None:
        ended = target.run(spec(target.model))
        assert ended.result["hub_model_id"] is None
        assert target.hub.requests == []


class TestRefusals:
    def test_no_token(self, target: Target) -> None:
        ended = target.prepare("me/x", None)
        assert ended.failure.code is FailureCode.HUB_UNAUTHORIZED, ended.log
        assert ended.failure.message == "No Hub token is set."
        assert ended.failure.action == (
            "Give the job a valid token with write access: set the secret that it names in "
            "`secrets.hub_token` (`finetune secrets set`) or, if it names none, "
            "FINETUNE_HUB_TOKEN, and restart; then `finetune retry JOB`."
        )
        assert target.hub.requests == []

    @pytest.mark.parametrize("model_id", ["me/x", "x"])
    def test_a_token_that_the_hub_does_not_know(self, target: Target, model_id: str) -> None:
        ended = target.prepare(model_id, "hf_" + "u" * 34)
        assert "401" in refused(ended, FailureCode.HUB_UNAUTHORIZED)

    @pytest.mark.parametrize("exists", [False, True])
    def test_a_token_that_can_only_read(self, target: Target, exists: bool) -> None:
        if exists:
            target.hub.create("model", f"me/{target.name}", private=True)
        message = refused(target.prepare(target.name, READER), FailureCode.HUB_UNAUTHORIZED)
        assert f"'me/{target.name}'" in message
        assert "role `read`" in message

    def test_whose_token_it_was(self, target: Target) -> None:
        body = target.body(target.name)
        message = refused(target.run(body, READER), FailureCode.HUB_UNAUTHORIZED)
        assert message.startswith("The operator's Hub token may not write to ")
        body["secrets"] = {"hub_token": "mine"}
        message = refused(target.run(body, READER), FailureCode.HUB_UNAUTHORIZED)
        assert message.startswith("The Hub token in `mine` may not write to ")

    @pytest.mark.parametrize("exists", [False, True])
    def test_another_ones_namespace(self, target: Target, exists: bool) -> None:
        """A repository that everyone can read is accepted by the client's `create_repo`."""
        if exists:
            target.hub.create("model", f"team/{target.name}", private=False)
        ended = target.prepare(f"team/{target.name}", FINE_GRAINED)
        message = refused(ended, FailureCode.HUB_FORBIDDEN)
        assert f"'team/{target.name}'" in message
        assert "don't have the rights" in message
        assert "its account: robots" in message
        assert ended.failure.details["namespaces"] == ["robots"]

    def test_nothing_is_fetched_for_it(self, target: Target, model: Path) -> None:
        target.hub.add_repo(f"me/base-{target.name}", model)
        body = target.body(f"team/{target.name}")
        body["model"] = {"name_or_path": f"me/base-{target.name}"}
        refused(target.run(body, FINE_GRAINED), FailureCode.HUB_FORBIDDEN)
        assert not [one for one in target.hub.requests if f"base-{target.name}" in one.path]

    def test_a_refusal_for_another_reason_gives_it_without_the_token(self, target: Target) -> None:
        target.hub.fail("/repos/create", 403, message=f"Storage limit reached by {TOKEN}")
        ended = target.prepare(f"me/{target.name}")
        message = refused(ended, FailureCode.HUB_FORBIDDEN)
        assert "Storage limit reached" in message
        assert TOKEN not in str(ended.events)

    def test_the_hub_does_not_name_the_owner_of_the_token(self, target: Target) -> None:
        target.hub.fail("/whoami-v2", 429, method="GET")
        ended = target.prepare(f"team/{target.name}", FINE_GRAINED)
        refused(ended, FailureCode.HUB_FORBIDDEN)
        refused(target.prepare(target.name), FailureCode.HUB_RATE_LIMITED)

    @pytest.mark.parametrize(
        ("model_id", "revision"), [("me/a--b", "main"), ("me/ab", "no branch")]
    )
    def test_names_that_the_hub_does_not_take(
        self, target: Target, model_id: str, revision: str
    ) -> None:
        target.hub.fail("/branch/", 400, message="Invalid branch name")
        refused(target.prepare(model_id, revision=revision), FailureCode.HUB_REJECTED)


class TestAway:
    @pytest.mark.parametrize(
        ("path", "method"), [("/repos/create", "POST"), ("/auth-check/", "GET")]
    )
    def test_is_tried_again(self, target: Target, path: str, method: str) -> None:
        target.hub.fail(path, 503, method=method)
        ended = target.prepare(f"me/{target.name}")
        refused(ended, FailureCode.HUB_UNAVAILABLE)
        assert RULES[FailureCode.HUB_UNAVAILABLE].retryable
        target.hub.heal()
        assert target.prepare(f"me/{target.name}").status == 0

    @pytest.mark.parametrize("more", [{}, OFFLINE], ids=["unreachable", "offline mode"])
    def test_no_network(
        self, tmp_path: Path, models: Path, forks: Forks, more: dict[str, str]
    ) -> None:
        body = spec(models / "tiny") | {"hub": {"model_id": "me/x"}}
        given = request(tmp_path, body)
        refused(forks.run(given, {**more, "HF_TOKEN": TOKEN}), FailureCode.NETWORK)

    def test_a_mirror_that_cannot_be_asked_is_trusted(self, target: Target) -> None:
        target.hub.fail("/auth-check/", 404, method="GET")
        assert target.prepare(f"me/{target.name}").status == 0
