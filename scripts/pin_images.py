"""`make pin-images`: writes the base images of docker-compose.yml to .env, each with its digest.

A digest names one content for ever; a tag is whatever its registry says today. The registry is
asked for the digest of the list of all platforms.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_IMAGE: Final = re.compile(r"\$\{(BASE_IMAGE|POSTGRES_IMAGE|REDIS_IMAGE):-([^}@]+)\}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def main() -> None:
    images = images_of((ROOT / "docker-compose.yml").read_text())
    pinned = {name: f"{image}@{digest_of(image)}" for name, image in images.items()}
    file = ROOT / ".env"
    before = file.read_text() if file.exists() else ""
    file.write_text(with_values(before, pinned))
    for name, image in pinned.items():
        print(f"{name}={image}")


def images_of(compose: str) -> dict[str, str]:
    """Variable → the image that the file takes without it."""
    return dict(_IMAGE.findall(compose))


def digest_of(image: str) -> str:
    answer = subprocess.run(
        ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", image],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    if not _DIGEST.fullmatch(answer):
        raise SystemExit(f"the registry gave no digest of {image}: {answer[:200]}")
    return answer


def with_values(text: str, values: Mapping[str, str]) -> str:
    """The lines of an .env file with these variables set, in place where they were."""
    lines = text.splitlines()
    for name, value in values.items():
        places = [n for n, line in enumerate(lines) if line.startswith(f"{name}=")]
        for place in places:
            lines[place] = f"{name}={value}"
        if not places:
            lines.append(f"{name}={value}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
