"""Python functions on GPUs, in instances that Rekindle restores from images when they are called."""

from rekindle.app import App
from rekindle.cls import Cls
from rekindle.data import Data
from rekindle.device_array import DeviceArray
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
    RefAccessError,
    RefError,
    RefGpuError,
    RefMemoryError,
    RefNotFoundError,
    RefUnavailableError,
    RefusedError,
    RemoteError,
    SerializationError,
    UnavailableError,
)
from rekindle.exchange import Ref, get, put
from rekindle.function import Function, FunctionCall
from rekindle.marks import asgi_app, batched, enter, exit, method
from rekindle.retries import Retries
from rekindle.sandbox import Sandbox, checkpoint, restore, run
from rekindle.steps import step
from rekindle.workflow import Step, Workflow

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
    "Ref",
    "RefAccessError",
    "RefError",
    "RefGpuError",
    "RefMemoryError",
    "RefNotFoundError",
    "RefUnavailableError",
    "RefusedError",
    "RemoteError",
    "Retries",
    "Sandbox",
    "SerializationError",
    "Step",
    "UnavailableError",
    "Workflow",
    "asgi_app",
    "batched",
    "checkpoint",
    "enter",
    "exit",
    "get",
    "method",
    "put",
    "restore",
    "run",
    "step",
]
