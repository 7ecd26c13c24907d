import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from service.system.secret_box import SecretBox, SecretUnreadableError, WrongKeyError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "secrets.key"


class TestSecretBox:
    def test_what_was_sealed_opens_for_its_own_name_only(self, file: Path) -> None:
        box = SecretBox(file)
        sealed = box.seal("proj-a", "token", "hf_secret")
        assert "hf_secret" not in sealed
        assert box.open("proj-a", "token", sealed) == "hf_secret"
        for project, name in (("proj-b", "token"), ("proj-a", "other")):
            with pytest.raises(SecretUnreadableError, match="another name"):
                box.open(project, name, sealed)

    def test_only_the_user_of_the_service_reads_the_key(self, file: Path) -> None:
        before = os.umask(0)
        try:
            SecretBox(file).seal("p", "n", "v")
        finally:
            os.umask(before)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert list(file.parent.iterdir()) == [file]

    def test_a_second_process_uses_the_key_of_the_first(self, file: Path) -> None:
        sealed = SecretBox(file).seal("p", "n", "v")
        key = file.read_text()
        SecretBox(file)._make()
        assert file.read_text() == key
        assert SecretBox(file).open("p", "n", sealed) == "v"

    def test_threads_that_need_the_first_key_at_once_make_one(self, tmp_path: Path) -> None:
        values = [*"abcdefgh"]
        for number in range(20):
            box = SecretBox(tmp_path / str(number) / "secrets.key")
            with ThreadPoolExecutor(8) as threads:
                sealed = list(threads.map(partial(box.seal, "p", "n"), values))
            assert [box.open("p", "n", each) for each in sealed] == values

    def test_rotation(self, file: Path) -> None:
        box = SecretBox(file)
        old = box.seal("p", "n", "v")
        box.add_key()
        new = box.seal("p", "n", box.open("p", "n", old))
        box.forget_old_keys()
        assert box.open("p", "n", new) == "v"
        with pytest.raises(SecretUnreadableError, match="was not sealed with a key"):
            box.open("p", "n", old)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def test_a_changed_row_does_not_open(self, file: Path) -> None:
        box = SecretBox(file)
        sealed = box.seal("p", "n", "v")
        forged = Fernet(Fernet.generate_key()).encrypt(
            json.dumps({"project": "p", "name": "n", "value": "w"}).encode()
        )
        mark = sealed.partition(":")[0]
        for wrong in (forged.decode(), f"{mark}:{forged.decode()}", sealed[:-4] + "AAA=", "x", ":"):
            with pytest.raises(SecretUnreadableError):
                box.open("p", "n", wrong)

    def test_a_secret_of_a_release_that_wrote_no_fingerprint_opens(self, file: Path) -> None:
        box = SecretBox(file)
        _, token = box.seal("p", "n", "v").split(":")
        assert box.open("p", "n", token) == "v"
        file.write_text(f"{Fernet.generate_key().decode()}\n")
        box.require_key_of(token)

    def test_another_key_is_named_by_its_fingerprint(self, file: Path) -> None:
        box = SecretBox(file)
        sealed = box.seal("p", "n", "v")
        expected = hashlib.sha256(file.read_text().strip().encode()).hexdigest()[:8]
        box.require_key_of(sealed)
        box.add_key()
        box.require_key_of(sealed)
        box.forget_old_keys()
        found = hashlib.sha256(file.read_text().strip().encode()).hexdigest()[:8]
        with pytest.raises(WrongKeyError) as raised:
            box.require_key_of(sealed)
        assert str(raised.value) == (
            f"The key in {file} has the fingerprint {found}, but the secrets of this service are "
            f"sealed with the key {expected}. Copy the file from the machine of the API: all "
            "machines need the same one (FINETUNE_SECRETS_KEY_FILE)."
        )
        file.unlink()  # each job that needs a secret says so
        box.require_key_of(sealed)

    def test_without_the_key_file(self, file: Path) -> None:
        sealed = SecretBox(file).seal("p", "n", "v")
        file.unlink()
        with pytest.raises(SecretUnreadableError, match="restore it from a backup"):
            SecretBox(file).open("p", "n", sealed)
        file.write_text("not a key\n")
        with pytest.raises(SecretUnreadableError, match="not a Fernet key"):
            SecretBox(file).open("p", "n", sealed)
