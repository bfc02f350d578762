"""Python functions on GPUs, in instances that Rekindle restores from images when they are called."""

from rekindle.app import App
from rekindle.cls import Cls
from rekindle.data import Data, DeviceArray
from rekindle.errors import (
    CallError,
    CommandError,
    DataAccessError,
    DataChangedError,
    DataError,
    DataGpuError,
    DataMemoryError,
    DataNameError,
    DataNotFoundError,
    DataSizeError,
    DataUnavailableError,
    DeclarationError,
    Error,
    FunctionTimeoutError,
    InstanceLostError,
    NotFoundError,
    QueueFullError,
    RefusedError,
    RemoteError,
    SerializationError,
    UnavailableError,
)
from rekindle.function import Function, FunctionCall
from rekindle.marks import asgi_app, batched, enter, exit, method
from rekindle.retries import Retries
from rekindle.sandbox import Sandbox, checkpoint, restore, run

__all__ = [
    "App",
    "CallError",
    "Cls",
    "CommandError",
    "Data",
    "DataAccessError",
    "DataChangedError",
    "DataError",
    "DataGpuError",
    "DataMemoryError",
    "DataNameError",
    "DataNotFoundError",
    "DataSizeError",
    "DataUnavailableError",
    "DeclarationError",
    "DeviceArray",
    "Error",
    "Function",
    "FunctionCall",
    "FunctionTimeoutError",
    "InstanceLostError",
    "NotFoundError",
    "QueueFullError",
    "RefusedError",
    "RemoteError",
    "Retries",
    "Sandbox",
    "SerializationError",
    "UnavailableError",
    "asgi_app",
    "batched",
    "checkpoint",
    "enter",
    "exit",
    "method",
    "restore",
    "run",
]
