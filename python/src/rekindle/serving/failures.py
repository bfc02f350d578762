"""Why a call has no result."""


class Late(Exception):
    """It took longer than it may."""


class Unknown(Exception):
    """There is no such method."""


class Raised(Exception):
    """User code raised this, which may be any kind of exception."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error
