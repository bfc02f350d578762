"""The workloads by their names, and what those on torch begin with."""

WORKLOADS = {}


def workload(name, **environment):
    """Registers a function that sets up and returns `step(i) -> host bytes`."""

    def register(build):
        WORKLOADS[name] = (build, environment)
        return build

    return register


def torch_module():
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch
