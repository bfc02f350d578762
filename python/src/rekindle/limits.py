"""What is declared of a function or a class: how it is served, and how long its calls may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rekindle import sharing
from rekindle.errors import DeclarationError
from rekindle.retries import NONE, Retries
from rekindle.sharing import DRIVER

# When what an instance allocates in a shared context gets memory.
SHARE_MEMORY = ("eager", "lazy")
# Where the GPU memory of what sleeps can be, the highest first.
LEVELS = ("gpu", "host", "disk")
# How long a context is kept beside that.
CONTEXT = "context"
# By which weight it has bytes over the link, unless something else is said.
LINK_WEIGHT = 10


@dataclass(frozen=True)
class Limits:
    """Times are in seconds."""

    # As `rekindle run --gpu`; none: the first NVIDIA GPU if there is one, else the emulated one. Of several, each instance is on one.
    gpu: str | Sequence[str] | None = None
    # `driver`: NVIDIA's driver takes the GPU half of its images; none: Rekindle's worker does.
    mode: str | None = None
    # The name by which it shares GPU contexts; none: it has one of its own.
    share: str | None = None
    # What it has of those: by which weight bytes over the link, and how much of the multiprocessors in percent; none: no share.
    link_weight: int | None = None
    sm_share: int | None = None
    # By which weight it has multiprocessors beyond its share while it has work, and the most in percent; none: no weight, and all.
    sm_weight: int | None = None
    sm_most: int | None = None
    # When what it allocates there gets GPU memory: `eager`, at once, or `lazy`, at the first use; none: at once.
    share_memory: str | None = None
    # How many images are taken of it, each with addresses of its own: so many instances fit in one GPU context.
    variants: int = 1
    # How many calls an instance has at once.
    concurrency: int = 1
    min_containers: int = 0
    max_containers: int = 4
    # How long an instance without a call keeps its GPU, and how long it is there after that.
    scaledown_window: float = 30.0
    sleep_window: float = 300.0
    # How long it sleeps at each level instead, one after the other, before it ends: {"gpu": 60, "host": 600, "disk": 3600}; with
    # "context": 30, a context is kept for it that long from when it falls asleep.
    sleep_stages: Mapping[str, float] | None = None
    # How many calls may wait, and how long one may.
    max_queue: int = 100
    queue_timeout: float = 60.0
    # How long a call may take, once it has begun.
    timeout: float = 300.0
    # How long the program may take until it is ready for its image.
    startup_timeout: float = 600.0
    retries: Retries = field(default=NONE)
    # The framework image to start from; none: one that fits, if there is one. "" is none at all.
    base: str | None = None
    # Where HTTP clients come: `[ADDRESS:]PORT`. Port 0 is one that is free, and stays.
    port: str = "127.0.0.1:0"

    @classmethod
    def declared(cls, options: dict[str, Any], name: str, sharers: str | None = None) -> Limits:
        """The options of a decorator, checked. `sharers`: by which name it shares GPU contexts if nothing is said of that."""
        known = cls.__dataclass_fields__
        for option in options:
            if option not in known:
                raise DeclarationError(f"{name}: there is no option {option!r}; there are {', '.join(known)}")
        retries = options.get("retries", NONE)
        if isinstance(retries, int) and not isinstance(retries, bool):
            options = options | {"retries": Retries(retries)}
        elif not isinstance(retries, Retries):
            raise DeclarationError(f"{name}: retries is {retries!r}; give a number or rekindle.Retries")
        limits = cls(**sharing.settled(options, name, sharers))
        limits.check(name)
        return limits

    def check(self, name: str) -> None:
        for option, least in (("concurrency", 1), ("min_containers", 0), ("max_containers", 1), ("max_queue", 0), ("variants", 1)):
            value = getattr(self, option)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise DeclarationError(f"{name}: {option} is {value!r}; give a whole number, {least} or more")
        for option in ("scaledown_window", "sleep_window", "queue_timeout", "timeout", "startup_timeout"):
            value = getattr(self, option)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
                raise DeclarationError(f"{name}: {option} is {value!r}; give a number of seconds")
        self.check_stages(name)
        for option in ("timeout", "queue_timeout", "startup_timeout"):
            if getattr(self, option) <= 0:
                raise DeclarationError(f"{name}: {option} is 0, in which nothing can be done; give more")
        if not isinstance(self.base, str | None):
            raise DeclarationError(f"{name}: base is {self.base!r}; give a text or None")
        self.check_gpus(name)
        for option in ("link_weight", "sm_share", "sm_weight", "sm_most"):
            value = getattr(self, option)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100:
                raise DeclarationError(f"{name}: {option} is {value!r}; give a whole number from 1 to 100")
        if self.sm_share and self.sm_most and self.sm_most < self.sm_share:
            raise DeclarationError(
                f"{name}: sm_most is {self.sm_most}, and sm_share, which is the least, {self.sm_share}; give a most that is not below that"
            )
        if self.share_memory is not None and self.share_memory not in SHARE_MEMORY:
            raise DeclarationError(f"{name}: share_memory is {self.share_memory!r}; give {' or '.join(map(repr, SHARE_MEMORY))}")
        if self.mode not in (None, DRIVER):
            raise DeclarationError(f"{name}: mode is {self.mode!r}; give {DRIVER!r} or None")
        if self.min_containers > self.max_containers:
            raise DeclarationError(
                f"{name}: min_containers is {self.min_containers} and max_containers {self.max_containers}; the first is the lesser"
            )

    def check_gpus(self, name: str) -> None:
        several = [] if isinstance(self.gpu, str | None) else list(self.gpu) if isinstance(self.gpu, Sequence) else [None]
        if not all(isinstance(one, str) for one in several) or self.gpu == []:
            raise DeclarationError(f"{name}: gpu is {self.gpu!r}; give a text, several of them, or None")
        if len(several) > 1 and self.mode == DRIVER:
            raise DeclarationError(f"{name}: gpu is {self.gpu!r}, and in mode {DRIVER} instances are where the image was taken; give one")

    @property
    def gpus(self) -> list[str]:
        """Those that are named."""
        return [] if self.gpu is None else [self.gpu] if isinstance(self.gpu, str) else list(self.gpu)

    @property
    def first_gpu(self) -> str | None:
        """The one that its images are taken on."""
        return next(iter(self.gpus), None)

    def check_stages(self, name: str) -> None:
        if self.sleep_stages is None:
            return
        if not isinstance(self.sleep_stages, Mapping) or set(self.sleep_stages) - {CONTEXT, *LEVELS}:
            raise DeclarationError(
                f"{name}: sleep_stages is {self.sleep_stages!r}; give seconds by level: {', '.join(LEVELS)}, and perhaps for {CONTEXT}"
            )
        for level, value in self.sleep_stages.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
                raise DeclarationError(f"{name}: sleep_stages has {value!r} for {level!r}; give a number of seconds")
        if not any(self.sleep_stages.get(level) for level in LEVELS):
            raise DeclarationError(f"{name}: sleep_stages has no level with an interval above 0; give one, or sleep_window alone")

    @property
    def is_any_port(self) -> bool:
        return self.port.rpartition(":")[2] == "0"

    def run_options(self) -> list[str]:
        """As `rekindle run` takes them."""
        memory = ["--share-memory", self.share_memory] if self.share_memory else []
        return ["--share", self.share, *memory] if self.share else ["--mode", self.mode] if self.mode else []

    def serve_options(self) -> list[str]:
        """As `rekindle serve` takes them, but for the port."""
        options: dict[str, Any] = {
            "--min": self.min_containers,
            "--max": self.max_containers,
            "--concurrency": self.concurrency,
            "--queue": self.max_queue,
            "--timeout": milliseconds(self.queue_timeout),
            "--idle": milliseconds(self.scaledown_window),
        }
        if self.sleep_stages:
            stages = [(stage, self.sleep_stages[stage]) for stage in (CONTEXT, *LEVELS) if stage in self.sleep_stages]
            options["--stages"] = ",".join(f"{level}={milliseconds(seconds)}" for level, seconds in stages)
        else:
            options["--idle-end"] = milliseconds(self.sleep_window)
        # What is not said would stay as an earlier deployment had it.
        if self.share:
            options |= {
                "--share": self.share,
                "--link-weight": self.link_weight or LINK_WEIGHT,
                "--sm-share": self.sm_share or "none",
                "--sm-weight": self.sm_weight or "none",
                "--sm-most": self.sm_most or "none",
                "--share-memory": self.share_memory or SHARE_MEMORY[0],
            }
        else:
            options["--share"] = sharing.NOBODY
        gpus = self.gpus if len(self.gpus) > 1 else [sharing.NOBODY]
        return [str(word) for pair in (*options.items(), *(("--gpu", gpu) for gpu in gpus)) for word in pair]

    def described(self) -> dict[str, Any]:
        """What callers need to know."""
        return {"timeout": self.timeout, "retries": asdict(self.retries)}


def milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
