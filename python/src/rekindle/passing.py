"""Arrays on a GPU as arguments and results of calls: they go where they lie, by reference, as far as both sides can give each other
arrays, and else by their bytes.

    caller ── puts, holds until the call's end ─▶ reference ─▶ function: maps it, passes an array on
    caller ◀── takes: that is its one use ──────── reference ◀─ puts its result

What cannot be taken where it comes to is sent again by its bytes; nothing was carried out by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from rekindle import arrays, driver, exchange
from rekindle.codec import FIRST
from rekindle.device_array import DTYPES, Contents, DeviceArray, size_of
from rekindle.errors import RefAccessError, RefNodeError, RefNotFoundError, RefUnavailableError, SerializationError
from rekindle.exchange import Ref, Source

# The version of messages with arrays of the caller's GPU in them.
WITH_ARRAYS = 2
# From so many bytes on an array is handed on where it lies; below, its bytes take no longer.
LEAST = 512 << 10
# Seconds that a result waits for who wants it, should that one fail.
EXPIRY = 60.0
# For want of what an array is not taken: by its bytes it can be.
UNTAKEN = (RefAccessError, RefNodeError, RefNotFoundError, RefUnavailableError)
# What is no array, and stands in messages a million times.
PLAIN = (type(None), bool, int, float, str, bytes)


@dataclass(frozen=True)
class HandingOn:
    """What becomes of a call's arrays on the GPU.

    Those of its result that have at least `least` bytes are put for the `uses` that are called with it. `again`: the call may have
    been carried out before, and its own uses be over. `held`: the caller keeps the arguments until it has its answer. `place`: whose
    arrays the caller has, if it takes the result itself; it takes arrays by reference from there alone.
    """

    least: int
    uses: int
    expiry: float
    again: bool = False
    held: bool = False
    place: str | None = None

    @classmethod
    def of(cls, said: dict[str, Any]) -> HandingOn:
        """As a call says it. What later packages add without a version of its own can be left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in said.items() if name in known})

    def said(self) -> dict[str, Any]:
        """As a call says it: what is as it is by default is left out, and packages that do not know it need not."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return {field.name: value for field, value in values if value != field.default}

    def put(self, value: Any, given: list[int]) -> Any:
        """The value of a call, with references in place of such arrays in it, which are counted in `given`."""
        if not self.uses:
            return value
        by_reference = self.place is None or self.place == exchange.place()

        def give(one: Any) -> Any:
            source = source_of(one)
            given[0] += source is not None
            if isinstance(source, Source) and by_reference and source.nbytes >= self.least:
                made.append(replace(exchange.keep(source, self.expiry, self.uses), given=True))
                return made[-1]
            return one if source is None or self.place is None else contents_of(source, one)

        made: list[Ref] = []
        try:
            return changed(value, give)
        except BaseException:
            exchange.drop_all(made)
            raise


class Passing:
    """The arguments of one call, and its result.

    A call that goes on beside its caller's program has its arguments settled: what is sent is what they are now.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], handing_on: HandingOn | None, *, by_bytes: bool = False) -> None:
        self.args, self.kwargs = args, kwargs
        place = exchange.place() if handing_on is None else None
        # Whoever takes no part in that sends and gets arrays of NumPy's.
        self.takes_result = place is not None
        self.how = HandingOn(LEAST, 1, EXPIRY, held=True, place=place) if place else handing_on
        self.by_bytes = by_bytes or exchange.is_alone(place)
        # What is kept until the call's end, however often it is tried.
        self.held: list[Ref] = []
        self.sent: Any = None
        self.is_settled = False

    def given(self) -> list[Any]:
        """The message's value."""
        if self.sent is None:
            both = (self.args, self.kwargs)
            self.sent = changed(both, self.give) if self.takes_result else both
        args, kwargs = self.sent
        return [list(args), kwargs, *([self.how.said()] if self.how else [])]

    def give(self, value: Any) -> Any:
        source = source_of(value)
        if source is None:
            return value
        if self.by_bytes or isinstance(source, Contents) or source.nbytes < LEAST:
            return contents_of(source, value)
        self.held.append(replace(exchange.keep(source, exchange.EXPIRY, 0), given=True))
        return self.held[-1]

    def named(self) -> list[Ref]:
        """The arrays that it has by reference, the largest first."""
        return sorted(references_in((self.args, self.kwargs) if self.sent is None else self.sent), key=lambda one: -one.nbytes)

    @property
    def version(self) -> int:
        """Which messages the function has to understand."""
        return WITH_ARRAYS if self.takes_result else FIRST

    def be_first(self) -> bool:
        """It is to be a message of the first version, with arrays of NumPy's. False: it is one already."""
        if not self.takes_result:
            return False
        self.begin_anew()
        self.args, self.kwargs = changed((self.args, self.kwargs), lambda one: one.array() if type(one) is Contents else one)
        self.takes_result, self.how = False, None
        return True

    def tried(self) -> bool:
        """All of it may have been carried out. Whether what is sent is another message from now on."""
        if self.how is None or self.how.again:
            return False
        self.how = replace(self.how, again=True)
        return True

    def refuse(self) -> None:
        """References are not taken: its arrays go by their bytes from now on."""
        self.begin_anew()
        self.by_bytes = True

    def settle(self) -> None:
        """Whatever becomes of the arguments from now on, what is sent is as they are. Raises for what cannot be sent."""
        self.given()
        self.args, self.kwargs = self.sent = changed(self.sent, copied)
        self.is_settled = True

    def begin_anew(self) -> None:
        """What was made of the arguments is not wanted. Of those that are settled there is nothing else."""
        if self.is_settled:
            self.args, self.kwargs = changed((self.args, self.kwargs), self.taken_back)
        self.end()
        self.sent = None

    def taken_back(self, value: Any) -> Any:
        """The bytes of an array that was put for this call."""
        if type(value) is not Ref or value not in self.held:
            return value
        array = exchange.get(value)
        return contents_of(Source(array.address, array.dtype, array.shape, True, array), array)

    def result(self, value: Any) -> Any:
        if not self.takes_result:
            return value
        used: list[Ref] = []
        try:
            return resolve(value, used)
        finally:
            exchange.end_uses(used)

    def end(self) -> None:
        """Nobody wants the arguments any more. Those who still have them keep them."""
        exchange.drop_all(self.held)
        self.held = []


def copied(value: Any) -> Any:
    """What is sent of a value that its owner may change."""
    if type(value) in (Ref, Contents):
        return value
    if type(value) in (bytearray, memoryview):
        return bytes(value)
    if type(value) is set:
        return set(value)
    array = arrays.as_array(value)
    # A scalar of NumPy's cannot be changed, and is to stay one.
    return value if array is None or not hasattr(value, "__setitem__") else array.copy()


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with what is in its lists, tuples and dictionaries changed."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind in (list, tuple):
        return kind(changed(one, change) for one in value)
    if kind is dict:
        return {key: changed(one, change) for key, one in value.items()}
    return change(value)


def references_in(value: Any) -> list[Ref]:
    found: list[Ref] = []

    def note(one: Any) -> Any:
        if type(one) is Ref:
            found.append(one)
        return one

    changed(value, note)
    return found


def source_of(value: Any) -> Source | Contents | None:
    """Where it lies on the GPU; its contents, if it does not lie there as one piece that is known; none if it is no such array."""
    try:
        return exchange.find_on_gpu(value)
    except SerializationError:
        host = arrays.as_array(value)
        known = host is not None and host.dtype.name in DTYPES and host.dtype.isnative
        return Contents(host.dtype.name, host.shape, arrays.contents(host)) if host is not None and known else None


def contents_of(source: Source | Contents, value: Any) -> Any:
    """What is sent in place of the array; the array itself if this program's driver is not Rekindle's."""
    if isinstance(source, Contents):
        return source
    try:
        driver.enter_context()
    except driver.DriverError as error:
        if error.code is None:
            return value
        raise
    data = memoryview(bytearray(source.nbytes))
    with exchange.told("an array cannot be copied to the host"):
        # The work that writes it may be in any stream.
        driver.synchronize()
        if data:
            driver.copy_to_host(exchange.address_of(data), source.address, source.nbytes)
    return Contents(source.dtype, source.shape, data)


def resolve(value: Any, found: list[Ref]) -> Any:
    """The value, with arrays on the GPU in place of references that are given, which are noted, and of contents of such arrays."""

    def take(one: Any) -> Any:
        if type(one) is Ref and one.given:
            found.append(one)
            return exchange.get(one)
        return upload(one) if type(one) is Contents else one

    return changed(value, take)


def upload(contents: Contents) -> Any:
    """An array on this program's GPU; of NumPy's if it has none."""
    size = size_of(contents.dtype, contents.shape)
    try:
        device = driver.enter_context()
    except driver.DriverError as error:
        if error.code is None:
            return contents.array()
        raise
    with exchange.told("an array has no place on the GPU"):
        address = driver.allocate(max(size, 1))
        array = DeviceArray("array", contents.dtype, contents.shape, address, device)
        if size:
            driver.copy_to_gpu(address, exchange.address_of(contents.data), size)
    return array
