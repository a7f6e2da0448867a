"""What can go wrong, and the hint that goes with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KvtoolError(Exception):
    """A failure the user can act on: what is wrong, and what to do.

    `message` is lower case, quotes the offending value and has no full stop; `hint` says what
    to do next. `exit_code` is 1 for whatever is not about what was typed.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.faults: tuple[str, ...] = (message,)
        self.hint = hint

    @classmethod
    def collect(cls, faults: Iterable[str], hint: str) -> KvtoolError:
        """One error out of several faults, each on a line of its own when shown."""
        error = cls("; ".join(faults := tuple(faults)), hint)
        error.faults = faults
        return error


class UsageError(KvtoolError):
    """Anything about what was typed: an unknown name, a bad value, a TP that does not divide."""

    exit_code = 2


class ModelError(KvtoolError):
    """A model description that cannot be read: names file or field, and the value."""


class ShapeError(UsageError):
    """Tensors or shapes that do not fit together."""


class DeviceError(KvtoolError):
    """No usable GPU for what was asked."""

    exit_code = 4


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint for an unknown name: the close matches among `known`, then `otherwise`."""
    lowered = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.6)
    if not close:
        return otherwise
    names = " or ".join(f"'{lowered[c]}'" for c in close)
    return f"did you mean {names}? {otherwise}"
