"""Repositories in memory: commits, branches, and files as the Hub names and lists them."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

RepoType = Literal["model", "dataset"]
_LFS_SUFFIXES = (".safetensors", ".bin", ".parquet", ".arrow", ".pt", ".model")
_LFS_BYTES = 10 * 1024**2


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    title: str
    description: str
    files: Mapping[str, bytes]
    """The whole tree at this commit: path → content."""


@dataclass
class Repo:
    id: str
    private: bool = False
    gated: bool = False
    commits: list[Commit] = field(default_factory=list)
    """All commits of all branches, oldest first; the first one is the repository's creation."""
    branches: dict[str, str] = field(default_factory=dict)

    def commit(
        self, branch: str, title: str, files: Mapping[str, bytes], description: str = ""
    ) -> Commit:
        """Put a commit with exactly `files` on `branch`."""
        parent = self.branches.get(branch)
        seed = f"{self.id}{parent}{len(self.commits)}{title}".encode()
        commit = Commit(hashlib.sha1(seed).hexdigest(), parent, title, description, dict(files))
        self.commits.append(commit)
        self.branches[branch] = commit.sha
        return commit

    def at(self, revision: str) -> Commit | None:
        """The commit that a branch or a (full) hash names."""
        sha = self.branches.get(revision, revision)
        return next((commit for commit in self.commits if commit.sha == sha), None)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def is_lfs(path: str, size: int) -> bool:
    return path.endswith(_LFS_SUFFIXES) or size > _LFS_BYTES


def oid(path: str, content: bytes) -> str:
    """sha256 of an LFS file, git's blob hash of any other."""
    if is_lfs(path, len(content)):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def preupload_entry(file: dict[str, Any], tree: Mapping[str, bytes]) -> dict[str, Any]:
    path = file["path"]
    mode = "lfs" if is_lfs(path, file["size"]) else "regular"
    entry = {"path": path, "uploadMode": mode, "shouldIgnore": False}
    return entry | ({"oid": oid(path, tree[path])} if path in tree else {})


def file_entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
    if not is_lfs(path, len(content)):
        return entry | {"oid": oid(path, content)}
    lfs = {"oid": oid(path, content), "size": len(content), "pointerSize": 134}
    return entry | {"oid": hashlib.sha1(content).hexdigest(), "lfs": lfs}


def entries(files: Mapping[str, bytes], folder: str, recursive: bool) -> Iterator[dict[str, Any]]:
    """Files and folders under `folder` as the tree route lists them."""
    prefix = f"{folder}/" if folder else ""
    folders: set[str] = set()
    for path, content in sorted(files.items()):
        if not path.startswith(prefix):
            continue
        parts = path.removeprefix(prefix).split("/")
        parents = {prefix + "/".join(parts[:depth]) for depth in range(1, len(parts))}
        shown = parents if recursive else set(sorted(parents, key=len)[:1])
        for name in sorted(shown - folders):
            yield {
                "type": "directory",
                "path": name,
                "oid": hashlib.sha1(name.encode()).hexdigest(),
            }
        folders |= shown
        if recursive or not parents:
            yield file_entry(path, content)
