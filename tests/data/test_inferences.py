"""worker.data.inferences: what the data decides is reported once."""

from pathlib import Path

from worker.data.inferences import Inferences


def test_each_is_reported_once_also_from_prepared_data(tmp_path: Path) -> None:
    found = Inferences()
    found.add("task.problem_type", "regression", "some labels have a fraction")
    (notice,) = found.unreported()
    assert notice.message == (
        "Inferred `task.problem_type: regression`: some labels have a fraction"
    )
    expected = {"value": "regression", "reason": "some labels have a fraction"}
    assert notice.data == {"inferred": {"task.problem_type": expected}}
    found.add("task.label_names", [f"n{number}" for number in range(30)], "sorted")
    found.write(tmp_path)
    (second,) = found.unreported()
    assert "[n0, n1, " in second.message
    assert "n19, … 10 more]" in second.message
    again = Inferences()
    again.add("task.problem_type", "another", "never: the first remains")
    again.read(tmp_path)
    assert len(list(again.unreported())) == 2
    assert list(again.unreported()) == []
    assert again.as_json()["task.problem_type"]["value"] == "another"


def test_a_long_list_is_cut() -> None:
    found = Inferences()
    found.add("task.label_names", ["x" * 300] * 5000, "each row has another one")
    kept = found.as_json()["task.label_names"]
    assert (len(kept["value"]), len(kept["value"][0]), kept["left_out"]) == (100, 200, 4900)
    (notice,) = found.unreported()
    assert "… 4,980 more]" in notice.message
    assert len(notice.message) < 2000
