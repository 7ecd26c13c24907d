"""The unmodified client of OpenAI, and a file to train on."""

from collections.abc import Iterator

import openai
import pytest

from tests.api.conftest import Server

ROWS = b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n'


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
def file(client: openai.OpenAI) -> str:
    return client.files.create(file=("rows.jsonl", ROWS * 200), purpose="fine-tune").id
