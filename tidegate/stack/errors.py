"""The one error of the embedded stack."""


class StackError(RuntimeError):
    """The stack, or something it needs, is not there; the message is one that a user can act on."""
