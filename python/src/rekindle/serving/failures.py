"""Why a call has no result."""


class Late(Exception):
    """It took longer than it may."""


class Unknown(Exception):
    """There is no such method."""


class Untaken(Exception):
    """Arrays that it was given by reference cannot be had here, and nothing was done."""


class Raised(Exception):
    """User code raised this, which may be any kind of exception."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error
