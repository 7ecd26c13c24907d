"""The users of searches while the service is attacked: they submit, pause, extend and cancel."""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.e2e.stack import ENDED

_ANSWER_SECONDS: Final = 120.0
_MORE_TRIALS: Final = 2
_LATEST_ACTION: Final = 20.0
"""Seconds after the submission."""
_LONGEST_PAUSE: Final = 6.0


@dataclass(frozen=True)
class Plan:
    """A search, and what its users do to it."""

    name: str
    body: dict[str, Any]
    actions: tuple[str, ...] = ()
    """`pause` (and later resume), `extend`, `cancel`: each once, at a random moment."""


@dataclass
class UserSearch:
    id: str
    plan: Plan
    max_trials: int
    to_do: list[tuple[float, str]] = field(default_factory=list)
    """When, and what."""
    is_extended: bool = False
    is_cancelled: bool = False
    has_ended: bool = False


class Users:
    """A thread that makes requests while the API is killed, and repeats what was not answered.

    The thread that kills also restarts the service's processes.
    """

    def __init__(self, url: str, seed: int, plans: Iterator[Plan], wanted: int, at_once: int):
        self._http = httpx.Client(base_url=url, timeout=30)
        self._rng = random.Random(f"users {seed}")
        self._plans = plans
        self._wanted = wanted
        self._at_once = at_once
        self._is_last = threading.Event()
        self._thread = threading.Thread(target=self._run_guarded, daemon=True)
        self.submitted: list[UserSearch] = []
        self.done: Counter[str] = Counter()
        self.faults: list[str] = []

    @contextmanager
    def working(self) -> Iterator[None]:
        """They submit as many searches as are wanted, and more until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_last.set()

    @property
    def are_done(self) -> bool:
        """Every search has been submitted and every action done; some may not have ended."""
        return not self._thread.is_alive()

    def _run_guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.faults.append(f"the users' requests: {type(error).__name__}: {error}")
        finally:
            self._http.close()

    def _run(self) -> None:
        while True:
            unfinished = [each for each in self.submitted if not each.has_ended]
            needs_more = len(self.submitted) < self._wanted or not self._is_last.is_set()
            if needs_more and len(unfinished) < self._at_once:
                self._submit(next(self._plans))
            elif not needs_more and not any(each.to_do for each in unfinished):
                return
            for each in unfinished:
                self._act(each)
            time.sleep(0.2)

    def _submit(self, plan: Plan) -> None:
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        options: dict[str, Any] = {"json": plan.body, "headers": headers}
        answer = self._ask("POST", "/v1/searches", **options)
        assert answer.status_code == 201, answer.text
        search_id = str(answer.json()["id"])
        again = self._ask("POST", "/v1/searches", **options).json().get("id")
        if again != search_id:
            self.faults.append(f"one Idempotency-Key made {search_id} and {again}")
        now = time.monotonic()
        to_do = [(now + self._rng.uniform(1, _LATEST_ACTION), each) for each in plan.actions]
        self.submitted.append(UserSearch(search_id, plan, plan.body["max_trials"], to_do))
        self.done["submit"] += 1

    def _act(self, search: UserSearch) -> None:
        for due in [each for each in search.to_do if time.monotonic() >= each[0]]:
            search.to_do.remove(due)
            self._do(search, due[1])
        page = self._ask("GET", f"/v1/searches/{search.id}").json()
        search.has_ended = page["state"] in ENDED and not search.to_do

    def _do(self, search: UserSearch, action: str) -> None:
        body = {"max_trials": search.max_trials + _MORE_TRIALS} if action == "extend" else None
        answer = self._ask("POST", f"/v1/searches/{search.id}/{action}", json=body)
        if answer.status_code == 409:  # It has ended, or is being cancelled.
            self.done[f"{action} refused"] += 1
            return
        assert answer.is_success, answer.text
        self.done[action] += 1
        if action == "pause":
            later = time.monotonic() + self._rng.uniform(1, _LONGEST_PAUSE)
            search.to_do.append((later, "resume"))
        elif action == "extend":
            search.max_trials, search.is_extended = body["max_trials"], True  # type: ignore[index]
        elif action == "cancel":
            search.is_cancelled = True

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Repeated while there is no answer or the service is not ready."""
        return _patient(lambda: self._http.request(method, path, **options), f"{method} {path}")


def _patient(request: Callable[[], httpx.Response], what: str) -> httpx.Response:
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        try:
            answer = request()
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.status_code != 503:
            return answer
        time.sleep(0.1)
    raise TimeoutError(f"{what}: no answer for {_ANSWER_SECONDS:.0f} s")
