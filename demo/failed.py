"""The error that ends the demo."""


class DemoFailed(RuntimeError):
    """The demo had to stop; the text says what happened and where to look."""
