"""What can go wrong, each as one sentence."""


class Error(Exception):
    """Every error of this package."""


class DeclarationError(Error):
    """An app that cannot be as it is declared."""


class CommandError(Error):
    """A `rekindle` command that failed."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class DataError(Error):
    """Declared data that cannot be had."""


class DataNotFoundError(DataError):
    """There is no such object."""


class DataChangedError(DataError):
    """The object became another one while it was read."""


class DataSizeError(DataError):
    """The object has another size than its shape and dtype say."""


class DataAccessError(DataError):
    """Credentials are missing, or do not suffice."""


class DataUnavailableError(DataError):
    """The store fails, or cannot be reached."""


class DataMemoryError(DataError):
    """The host or the GPU has no room for it."""


class DataGpuError(DataError):
    """The GPU failed while it was loaded."""


class DataNameError(DataError):
    """Its URL names no object."""


# As the library numbers them.
DATA_ERRORS: dict[int, type[DataError]] = {
    1: DataNotFoundError,
    2: DataChangedError,
    3: DataSizeError,
    4: DataAccessError,
    5: DataUnavailableError,
    6: DataMemoryError,
    7: DataNameError,
    8: DataGpuError,
}


class RefError(Error):
    """An array that cannot be handed on."""


class RefNotFoundError(RefError):
    """It was dropped, has expired, or was lost with the memory daemon."""


class RefAccessError(RefError):
    """It belongs to another app or tenant."""


class RefMemoryError(RefError):
    """The GPU or the host has no room for it."""


class RefNodeError(RefError):
    """Another node has it, which is not known here, cannot be reached or refuses."""


class RefUnavailableError(RefError):
    """The memory daemon cannot be reached, or this program is in no sandbox."""


class RefGpuError(RefError):
    """The GPU failed to copy or to map it."""


class SerializationError(Error, TypeError):
    """A value that cannot be sent, or a message that cannot be understood."""


class NotFoundError(Error):
    """There is no such app, function or method."""


class TokenError(Error):
    """The service did not take the call: its tenant's token is needed (401), or another's was given (403)."""


class TlsError(Error):
    """The service's certificate is not trusted, or one of both speaks TLS and the other does not. The call was not begun."""


class CallError(Error):
    """A call that was not answered."""


class RefusedError(CallError):
    """The service did not take the call: it was not begun, and may be tried again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(RefusedError):
    """As many calls wait as may (429)."""


class UnavailableError(RefusedError):
    """No instance was free in time, or none can be had (503)."""


class InstanceLostError(CallError):
    """The instance ended before it answered (502). Whether the call had an effect is not known."""


class FunctionTimeoutError(CallError, TimeoutError):
    """The call took longer than its function may."""


class RemoteError(Error):
    """User code raised an exception of a type that is not known here."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback
