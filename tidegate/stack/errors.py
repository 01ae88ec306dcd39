"""The one error of the embedded stack."""


class StackError(RuntimeError):
    """The stack, or something it needs, is missing; the message tells the user what to do."""
