import json
import socket
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
import redis

from service.contract.routing import Message, MessageKind
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from tests.support.servers import services
from tests.support.threads import at_once


@pytest.fixture
def client(broker_url: str) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(broker_url)
    client.flushall()
    yield client
    client.close()


def dispatcher(url: str) -> Dispatcher:
    return Dispatcher(Settings(redis_url=url))


def of_job(job_id: str, queue: str = "cpu", priority: int = 5) -> Message:
    return Message(MessageKind.JOB, job_id, queue, priority)


class TestWake:
    def test_the_message_is_json_by_name_and_holds_kind_and_id_only(
        self, broker_url: str, client: redis.Redis
    ) -> None:
        sender = dispatcher(broker_url)
        assert sender.enqueue(of_job("job-1", "gpu", 0))
        sender.close()
        sent = client.lindex("gpu", 0)
        assert sent is not None
        message = json.loads(sent)
        assert message["headers"]["task"] == "worker.run.wake"
        assert message["content-type"] == "application/json"
        assert message["headers"]["argsrepr"] == "['job', 'job-1']"
        assert message["properties"]["priority"] == 0

    def test_each_priority_has_its_list(self, broker_url: str, client: redis.Redis) -> None:
        sender = dispatcher(broker_url)
        assert all(sender.enqueue(of_job("job-1", "cpu", priority)) for priority in range(10))
        sender.close()
        lists = ["cpu", *(f"cpu:{priority}" for priority in range(1, 10))]
        assert [client.llen(name) for name in lists] == [1] * 10

    def test_nothing_listens(self) -> None:
        sender = dispatcher(f"redis://127.0.0.1:{services.free_port()}/0")
        started = time.monotonic()
        assert not sender.enqueue(of_job("job-1"))
        assert not sender.ping()
        assert time.monotonic() - started < 2
        sender.close()

    def test_a_broker_that_never_answers(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            sender = dispatcher(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
            started = time.monotonic()
            assert not sender.enqueue(of_job("job-1"))
            assert time.monotonic() - started < 2
            started = time.monotonic()
            assert not sender.ping()
            assert time.monotonic() - started < 2
            sender.close()

    @pytest.mark.usefixtures("processes")
    def test_continues_after_a_restart_of_the_broker(self) -> None:
        with services.broker(services.valkey_binary()) as url:
            sender = dispatcher(url)
            assert sender.enqueue(of_job("job-1"))
            assert sender.ping()
            client = redis.Redis.from_url(url)
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert sender.enqueue(of_job("job-2"))
            assert sender.ping()
            client.close()
        assert not sender.enqueue(of_job("job-3"))
        assert not sender.ping()
        sender.close()

    def test_many_threads(self, broker_url: str, client: redis.Redis) -> None:
        sender = dispatcher(broker_url)
        sent: list[bool] = []
        assert at_once(16, lambda: sent.append(sender.enqueue(of_job("job-1")))) == []
        sender.close()
        assert sent == [True] * 16
        assert client.llen("cpu:5") == 16

    def test_without_a_broker_configured(self) -> None:
        sender = Dispatcher(Settings(redis_url=None))
        assert not sender.enqueue(of_job("job-1"))
        assert not sender.ping()
        sender.close()


class TestLostAll:
    def test_is_reported_once_after_each_loss(self, broker_url: str, client: redis.Redis) -> None:
        one, other = dispatcher(broker_url), dispatcher(broker_url)
        assert (one.was_emptied(), other.was_emptied(), one.was_emptied()) == (True, False, False)
        client.flushall()
        assert (other.was_emptied(), one.was_emptied()) == (True, False)
        one.close()
        other.close()

    def test_an_unreachable_broker_may_have_lost_nothing(self) -> None:
        sender = dispatcher(f"redis://127.0.0.1:{services.free_port()}/0")
        assert not sender.was_emptied()
        sender.close()


class TestWakeSoon:
    def test_leaves_the_time_to_the_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pause after each message, nine times what it took to compute but 20 ms at most."""
        sent: list[tuple[str, float]] = []

        def enqueue(message: Message) -> bool:
            sent.append((message.id, time.monotonic()))
            end = time.thread_time() + 0.004
            while time.thread_time() < end:
                pass
            return True

        sender = dispatcher("redis://127.0.0.1:1")
        monkeypatch.setattr(sender, "enqueue", enqueue)
        for number in range(6):
            sender.enqueue_soon(of_job(f"job-{number}"))
        services.wait_until(lambda: len(sent) > 2, 10, "three messages")
        times = [at for _, at in sent[:3]]
        assert all(late - early >= 0.024 for early, late in pairwise(times))
        sender.close()  # sends the others without a pause
        assert [job_id for job_id, _ in sent] == [f"job-{number}" for number in range(6)]
