"""What is adopted from the base model's card, and what is not."""

from pathlib import Path

import pytest

from service.contract.stage.stages import BaseCard, BaseJob
from worker.publishing import base_model_card


def read(folder: Path, head: str) -> BaseCard | None:
    (folder / "README.md").write_text(f"---\n{head}\n---\n\n# A model\n", encoding="utf-8")
    return base_model_card.read(folder)


class TestRead:
    def test_language_license_and_tags(self, tmp_path: Path) -> None:
        head = "language: [en, de]\nlicense: apache-2.0\ntags: [exbert, biology]\nmetrics: [f1]"
        expected = BaseCard(language=["en", "de"], license="apache-2.0", tags=["exbert", "biology"])
        assert read(tmp_path, head) == expected

    @pytest.mark.parametrize(
        ("given", "found"),
        [
            ("en", ["en"]),
            ("no", ["no"]),
            ("[no, sv]", ["no", "sv"]),
            ("[multilingual, code, deu]", ["multilingual", "code", "deu"]),
            ("[English, en, EN, 7, {a: b}, null]", ["en"]),
        ],
    )
    def test_languages(self, tmp_path: Path, given: str, found: list[str]) -> None:
        card = read(tmp_path, f"language: {given}")
        assert card is not None
        assert card.language == found

    @pytest.mark.parametrize(
        ("given", "found"),
        [
            ("mit", ("mit", None, None)),
            ("[MIT]", ("mit", None, None)),
            ("mit\nlicense_name: own", ("mit", None, None)),
            (
                "other\nlicense_name: own-1\nlicense_link: https://example.org/license",
                ("other", "own-1", "https://example.org/license"),
            ),
            # Of a file that the new repository does not have, and of no shape that the Hub takes.
            ("other\nlicense_name: My Own\nlicense_link: LICENSE", ("other", None, None)),
        ],
    )
    def test_licenses(self, tmp_path: Path, given: str, found: tuple[str | None, ...]) -> None:
        card = read(tmp_path, f"license: {given}")
        assert card is not None
        assert (card.license, card.license_name, card.license_link) == found

    def test_tags_about_how_the_base_model_is_stored_or_made(self, tmp_path: Path) -> None:
        own = "pytorch, safetensors, sentence-transformers, question-answering, lora, fill-mask"
        card = read(tmp_path, f"tags: [{own}, legal, legal, 3, '<b>', '{'x' * 51}']")
        assert card == BaseCard(tags=["legal"])

    def test_is_bounded(self, tmp_path: Path) -> None:
        card = read(tmp_path, f"tags: [{', '.join(f't{n}' for n in range(99))}]")
        assert card is not None
        assert len(card.tags) == 20

    @pytest.mark.parametrize(
        "head",
        [
            "license: [unclosed",
            "license: a\nlicense: b",
            "- a list",
            "language: &a [*a]",
            "license: Apache License, Version 2",
            "!!python/object:os.system {}",
            "tags: word",
            "",
        ],
    )
    def test_a_faulty_card_adds_nothing(self, tmp_path: Path, head: str) -> None:
        assert read(tmp_path, head) is None

    def test_without_a_card(self, tmp_path: Path) -> None:
        assert base_model_card.read(tmp_path) is None
        (tmp_path / "README.md").write_bytes(b"---\nlicense: \xff\xfe\n---\n")
        assert base_model_card.read(tmp_path) is None
        (tmp_path / "README.md").write_bytes(b"# No metadata\n")
        assert base_model_card.read(tmp_path) is None
        (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n" + "x" * (1 << 20))
        assert base_model_card.read(tmp_path) is None


def test_of_the_model_of_another_job(tmp_path: Path) -> None:
    """Its card is in the folder of the attempt that published it, not with the model."""
    attempts = tmp_path / "attempts"
    output = attempts / "9" / "output"
    output.mkdir(parents=True)
    base = BaseJob(
        job="job-1",
        step=None,
        folder=output,
        finished=output,
        sha256="a" * 64,
        name="org/x",
        revision=None,
    )
    assert base_model_card.of_job(base) is None
    (attempts / "10").mkdir()
    (attempts / "10" / "README.md").write_text("---\nlicense: mit\n---\n")
    assert base_model_card.of_job(base) == BaseCard(license="mit")
    step = base.model_copy(update={"step": 4, "folder": output.with_name("checkpoints") / "4"})
    assert base_model_card.of_job(step) == BaseCard(license="mit")
