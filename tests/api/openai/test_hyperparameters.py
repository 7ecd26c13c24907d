from pathlib import Path

import pytest

from service.api.openai import examples, hyperparameters


@pytest.mark.parametrize(
    ("count", "epochs"),
    [(None, 3), (1, 25), (10, 10), (30, 4), (33, 4), (34, 3), (8333, 3), (8334, 2), (25_001, 1)],
)
def test_epochs(count: int | None, epochs: int) -> None:
    assert hyperparameters.auto_epochs(count) == epochs


@pytest.mark.parametrize(
    ("count", "epochs", "size"),
    [(None, 3, 8), (10, 10, 1), (200, 3, 4), (5000, 3, 10), (1_000_000, 1, 256)],
)
def test_batch_size(count: int | None, epochs: int, size: int) -> None:
    assert hyperparameters.auto_batch_size(count, epochs) == size


def test_a_batch_is_accumulated_where_it_is_large() -> None:
    assert hyperparameters.split_batch(4) == (4, 1)
    assert hyperparameters.split_batch(12) == (6, 2)
    assert hyperparameters.split_batch(13) == (1, 13)
    assert hyperparameters.split_batch(256) == (8, 32)


@pytest.mark.parametrize(
    ("content", "count"),
    [
        (b"", 0),
        (b"{}\n\n  \n{}", 2),
        (b"{}\r\n{}\r\n", 2),
        (b"[\n{},\n{}]", None),
        (b"PAR1\n\n", None),
    ],
)
def test_examples_are_lines(tmp_path: Path, content: bytes, count: int | None) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content)
    assert examples.count_lines(path) == count


def test_the_rest_of_a_large_file_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "MOST_READ", 2 * 1024**2)
    path = tmp_path / "rows"
    path.write_bytes(b"x" * 99 + b"\n" * 1 + (b"x" * 99 + b"\n") * 39_999)
    assert examples.count_lines(path) == pytest.approx(40_000, rel=0.001)


def test_what_a_spec_leaves_out_is_reported_as_its_default() -> None:
    training = {"per_device_train_batch_size": 2, "learning_rate": 1e-5}
    assert hyperparameters.reported({"task": {"type": "chat"}, "training": training}) == {
        "n_epochs": 3,
        "batch_size": 2,
        "learning_rate_multiplier": 0.5,
    }
