"""Packages of Debian, for root on a Debian-like system."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

from tidegate.stack.errors import StackError

LONGEST_SECONDS = 900


def install_first(
    packages: Sequence[str],
    *,
    lacking: str,
    advice: str,
    on_progress: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Install the first of the packages that this release of Debian has.

    Raises StackError with what is `lacking` and the `advice`, if only somebody else can install it.
    """
    apt = shutil.which("apt-get", path=environ.get("PATH", os.defpath))
    if os.geteuid() != 0 or apt is None:
        raise StackError(f"{lacking}; {advice}")
    on_progress(f"{lacking}: installing Debian's package")
    env = {**environ, "DEBIAN_FRONTEND": "noninteractive"}
    attempts = [[apt, "update", "-q"]]
    attempts += [[apt, "install", "-q", "-y", "--no-install-recommends", package] for package in packages]
    last = ""
    for command in attempts:
        try:
            done = subprocess.run(
                command, env=env, check=False, capture_output=True, text=True, timeout=LONGEST_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise StackError(f"{' '.join(command)} took more than {LONGEST_SECONDS} s; {advice}") from error
        last = f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-300:]}"
        if done.returncode == 0 and "install" in command:
            return
    raise StackError(f"{lacking}: {last}; {advice}")
