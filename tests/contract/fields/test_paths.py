from pathlib import Path

import pytest

from service.contract.fields.paths import PathNotAllowedError, resolve_under_roots


class TestResolveUnderRoots:
    def test_a_file_under_a_root(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        assert resolve_under_roots(str(tmp_path / "a" / "x.json"), [tmp_path], "R") == (
            tmp_path / "a" / "x.json"
        )

    def test_a_symlink_inside_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        resolved = resolve_under_roots(str(tmp_path / "link"), [tmp_path], "R")
        assert resolved == tmp_path / "real"

    def test_a_symlink_out_is_refused(self, tmp_path: Path) -> None:
        root, secret = tmp_path / "root", tmp_path / "secret"
        root.mkdir()
        secret.mkdir()
        (root / "link").symlink_to(secret)
        with pytest.raises(PathNotAllowedError, match="not under a folder that R allows"):
            resolve_under_roots(str(root / "link" / "x"), [root], "R")

    @pytest.mark.parametrize("value", ["relative/x", "./x", "/data/../etc/passwd", "/data/x\x00y"])
    def test_forms_that_are_refused(self, value: str) -> None:
        with pytest.raises(PathNotAllowedError):
            resolve_under_roots(value, [Path("/data")], "R")

    def test_a_root_is_not_a_prefix(self, tmp_path: Path) -> None:
        with pytest.raises(PathNotAllowedError):
            resolve_under_roots(str(tmp_path / "root-2" / "x"), [tmp_path / "root"], "R")

    def test_without_roots_nothing_is_allowed(self) -> None:
        with pytest.raises(PathNotAllowedError, match="has not set R"):
            resolve_under_roots("/data/x", [], "R")

    def test_a_loop_of_symlinks_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to(tmp_path / "b")
        (tmp_path / "b").symlink_to(tmp_path / "a")
        with pytest.raises(PathNotAllowedError):
            resolve_under_roots(str(tmp_path / "a"), [tmp_path], "R")
