"""Errors a user can act on: a reason code, what is wrong, and the smallest fix."""

from __future__ import annotations


class InputError(Exception):
    """Bad input. The command line prints it as one line and exits with 2.

    Parameters
    ----------
    code
        Reason code in SCREAMING_CASE, stable across releases.
    message
        What is wrong, with the numbers.
    fix
        The smallest change that mends it; may be empty.
    """

    def __init__(self, code: str, message: str, fix: str = "") -> None:
        self.code = code
        self.message = message
        self.fix = fix
        super().__init__(f"{code}: {message}; {fix}" if fix else f"{code}: {message}")
