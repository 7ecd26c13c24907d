"""`make cgroups`: the tests of control groups, in a virtual machine with a kernel of its own.

They need a control group that nothing else uses, which few machines offer. The machine's root
folder is this one's, read-only; it needs no image and no network. As root, on Debian or Ubuntu:
`apt-get install qemu-system-x86 linux-image-amd64`.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_INIT: Final = Path(__file__).with_name("init.sh")
_SETTINGS: Final = Path("/etc/initramfs-tools")
_MODULES: Final = "virtio_pci\n9p\n9pnet_virtio\n"
_SHARE: Final = "trans=virtio,version=9p2000.L,msize=512000,cache=loose"
_DISK: Final = "4G"
_SECONDS: Final = 1800


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="NAMES", help="tests whose names have one of them"
    )
    only = parser.parse_args().only
    kernel = max(Path("/boot").glob("vmlinuz-*"), default=None)
    missing = [name for name in ("qemu-system-x86_64", "mkinitramfs") if not shutil.which(name)]
    if kernel is None or missing:
        sys.exit(f"{__doc__}\nNot found: {', '.join(missing) or '/boot/vmlinuz-*'}")
    with tempfile.TemporaryDirectory() as folder:
        first_files = _first_files(kernel, Path(folder))
        disk = Path(folder, "disk")
        subprocess.run(["truncate", "--size", _DISK, disk], check=True)
        subprocess.run(["mkfs.ext4", "-q", disk], check=True)
        output = _run(kernel, first_files, disk, only)
    passed = "tests ended with status 0" in output and " skipped" not in output
    sys.exit(0 if passed else 1)


def _first_files(kernel: Path, folder: Path) -> Path:
    """The initramfs: no more than what finds the root folder."""
    settings = folder / "settings"
    shutil.copytree(_SETTINGS, settings)
    (settings / "modules").write_text(_MODULES)
    (settings / "conf.d").mkdir(exist_ok=True)
    (settings / "conf.d/modules").write_text("MODULES=list\n")
    file = folder / "initrd"
    version = kernel.name.removeprefix("vmlinuz-")
    subprocess.run(["mkinitramfs", "-d", settings, "-o", file, version], check=True)
    return file


def _run(kernel: Path, first_files: Path, disk: Path, only: str) -> str:
    words = [
        *("console=ttyS0", "quiet", "panic=-1", "ro", "root=root", "rootfstype=9p"),
        *(f"rootflags={_SHARE}", f"init={_INIT}", f"tests.root={_ROOT}"),
        *(f"tests.python={sys.executable}", f"tests.only={only}", "lsm=landlock"),
    ]
    share = "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"
    command = [
        *("timeout", str(_SECONDS), "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max"),
        *("-m", "2048", "-smp", "2", "-nodefaults", "-nographic", "-serial", "stdio"),
        *("-no-reboot", "-kernel", str(kernel), "-initrd", str(first_files)),
        *("-virtfs", share, "-drive", f"if=virtio,format=raw,file={disk}"),
        *("-append", " ".join(words)),
    ]
    output = b""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as machine:
        assert machine.stdout is not None
        signal.signal(signal.SIGTERM, lambda *_: machine.terminate())
        while part := os.read(machine.stdout.fileno(), 4096):
            output += part
            sys.stdout.write(part.decode(errors="replace"))
            sys.stdout.flush()
    return output.decode(errors="replace")


if __name__ == "__main__":
    main()
