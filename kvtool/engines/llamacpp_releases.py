"""llama.cpp's cache rules by build: what changed, when, and where that was read.

llama.cpp counts its commits; a build follows the last entry of the table at or before its number.
The entries name the pull request that made the rule. Where only the day of its merge is known, the
number is good to `margin` builds, and a version within that margin says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvtool.errors import UsageError

CELLS = 256


@dataclass(frozen=True, slots=True)
class Release:
    """Rules of the builds from `build` on.

    `windows`: sliding layers have a cache of their own, as long as window and `window_batch`
    (n_batch or n_ubatch) together; before that every layer holds the context. `streams`: each
    sequence may have a buffer of its own. `cells_with_flash` and `cells`: what a buffer's cells are
    a multiple of, with flash attention and without. `latent_values`: V rows beside the latent rows
    that already hold them. `snapshots`: recurrent states are kept once more per drafted token.
    `equal_latent_types`: latent rows want one type for K and V. `is_fork`: ik_llama.cpp, whose
    `mla_attn` decides about latent rows.
    """

    build: int
    margin: int
    windows: bool
    window_batch: str
    streams: bool
    cells_with_flash: int
    cells: int
    latent_values: bool
    snapshots: bool
    equal_latent_types: bool = False
    is_fork: bool = False


# Pull requests of ggml-org/llama.cpp: 13194 (SWA cache, 2025-05-20), 13833 (micro-batch instead of
# batch, 2025-05-31), 14363 (streams; b5912 is without them, issue 14847), 16812 (no padding,
# 2025-10-28), 17046 (padding back, 2025-11-07, after b6969 of issue 17058), 19067 (no V beside
# latent rows, 2026-01-25), 22673 (MTP and rollback; in b9180, issue 25489), 25871 (one type for
# latent rows, 2026-07-18). The last rules were read and run in commit 0c1e57098, which
# llama-cpp-python 0.3.36 carries.
RELEASES = (
    Release(
        build=3000, margin=0, windows=False, window_batch="n_batch", streams=False,
        cells_with_flash=CELLS, cells=32, latent_values=True, snapshots=False,
    ),
    Release(
        build=5440, margin=40, windows=True, window_batch="n_batch", streams=False,
        cells_with_flash=CELLS, cells=32, latent_values=True, snapshots=False,
    ),
    Release(
        build=5560, margin=40, windows=True, window_batch="n_ubatch", streams=False,
        cells_with_flash=CELLS, cells=32, latent_values=True, snapshots=False,
    ),
    Release(
        build=5913, margin=0, windows=True, window_batch="n_ubatch", streams=True,
        cells_with_flash=CELLS, cells=32, latent_values=True, snapshots=False,
    ),
    Release(
        build=6870, margin=40, windows=True, window_batch="n_ubatch", streams=True,
        cells_with_flash=1, cells=1, latent_values=True, snapshots=False,
    ),
    Release(
        build=6985, margin=15, windows=True, window_batch="n_ubatch", streams=True,
        cells_with_flash=CELLS, cells=CELLS, latent_values=True, snapshots=False,
    ),
    Release(
        build=7840, margin=60, windows=True, window_batch="n_ubatch", streams=True,
        cells_with_flash=CELLS, cells=CELLS, latent_values=False, snapshots=False,
    ),
    Release(
        build=9180, margin=0, windows=True, window_batch="n_ubatch", streams=True,
        cells_with_flash=CELLS, cells=CELLS, latent_values=False, snapshots=True,
    ),
    Release(
        build=10030, margin=60, windows=True, window_batch="n_ubatch", streams=True,
        cells_with_flash=CELLS, cells=CELLS, latent_values=False, snapshots=True,
        equal_latent_types=True,
    ),
)  # fmt: skip
# Records of its logs: ikawrakow/ik_llama.cpp, pull requests 239 to 616 (2025).
FORK = Release(
    build=0, margin=0, windows=False, window_batch="n_batch", streams=False,
    cells_with_flash=CELLS, cells=CELLS, latent_values=False, snapshots=False, is_fork=True,
)  # fmt: skip
NEWEST = "0c1e57098"
FORK_NAMES = ("ik", "ik_llama.cpp")


def find_release(version: str | None) -> tuple[str, Release]:
    """The version as shown and the rules it follows; None is the newest known, `ik` the fork.

    Raises UsageError for what is no version, or older than the table.

    >>> find_release("b5500")[1].build
    5440
    """
    text = NEWEST if version is None else version.strip().lower()
    if text in FORK_NAMES:
        return "ik", FORK
    if text == NEWEST:
        return text, RELEASES[-1]
    number = re.fullmatch(r"b?(\d{1,6})", text)
    if number is None:
        raise UsageError(
            f"'{version}' is not a llama.cpp version",
            "write the build as llamacpp@b9180, or llamacpp@ik for ik_llama.cpp",
        )
    build = int(number[1])
    older = [release for release in RELEASES if release.build <= build]
    if not older:
        raise UsageError(
            f"the rules of llama.cpp b{build} are not known", f"known from b{RELEASES[0].build} on"
        )
    return f"b{build}", older[-1]


def is_near_a_change(version: str) -> bool:
    """Whether a change of rules lies so close that the build may be on its other side."""
    if not version.startswith("b"):
        return False
    build = int(version[1:])
    return any(abs(build - release.build) < release.margin for release in RELEASES)
