"""Functions as services of Rekindle's."""

import sys
import time

import rekindle
from rekindle.workflow import Run
from shared import module_of, used_bytes, wait_for


class Rekindle:
    """Services, one instance of each that stays."""

    def __init__(self, instance):
        self.instance, self.deployed, self.functions = instance, {}, {}

    def begin_deploy(self, files):
        """All at once, as commands under way."""
        return {file: self.instance.begin("deploy", file, "--python", sys.executable, "--json") for file in files}

    def end_deploy(self, begun):
        """Their images are there, and no instance."""
        for file, one in begun.items():
            one.end(limit=600)
            self.deployed[file] = module_of(file).app
            self.rest(self.deployed[file].name)

    def services(self):
        return {row["name"]: row for row in self.instance.json("services")["services"]}

    def keep(self, service):
        """From now on its instances stay."""
        image = self.services()[service]["source"]["image"]
        self.instance("serve", image, "--name", service, "--idle", "1h", "--queue", 1000)

    def running(self, service):
        return sum(one["stage"] == "running" for one in self.services()[service]["instances"])

    def start(self, file, counts=None):
        if file not in self.deployed:
            self.end_deploy(self.begin_deploy([file]))
        app = self.deployed[file]
        counts = counts or dict.fromkeys(app.declarations, 1)
        for name, count in counts.items():
            self.keep(f"{app.name}-{name}")
            self.instance("scale", f"{app.name}-{name}", "--min", count, "--max", count)
        for name, count in counts.items():
            wait_for(lambda: self.running(f"{app.name}-{name}") >= count, f"{count} instances of {app.name}-{name}")

    def call(self, file, name, method, *arguments):
        # Whoever calls asks once where the service listens.
        if (file, name, method) not in self.functions:
            app = self.deployed[file].name
            one = rekindle.Function.from_name(app, name) if method is None else getattr(rekindle.Cls.from_name(app, name)(), method)
            self.functions[file, name, method] = one
        return self.functions[file, name, method].remote(*arguments)

    def flow(self, file, workflow, arguments):
        """One request: the node has each step called."""
        return workflow.remote(*arguments)

    def add(self, file, name):
        """One more instance: seconds until it listens, and of its GPU half by the trace of its restore."""
        service = f"{self.deployed[file].name}-{name}"
        before = {one["name"] for one in self.services()[service]["instances"]}
        start = time.perf_counter()
        self.instance("scale", service, "--min", len(before) + 1, "--max", len(before) + 1)
        wait_for(lambda: self.running(service) > len(before), f"one more instance of {service}")
        took = time.perf_counter() - start
        (new,) = {one["name"] for one in self.services()[service]["instances"]} - before
        phases = self.instance.json("trace", new, "--svg", "/dev/null")["traces"][-1]["phases"]
        half = [row for row in phases if row["lane"] == "gpu half"]
        parts = {row["name"]: row["duration_us"] / 1e6 for row in half}
        return {"whole_s": took, "gpu_half_s": sum(row["duration_us"] for row in half) / 1e6, "gpu_half_parts_s": parts}

    def gpu_bytes(self):
        return used_bytes(self.instance)

    def rest(self, app=None):
        """No instance of any service, or of those of one app."""
        some = [name for name in self.services() if app is None or name.startswith(f"{app}-")]
        for service in some:
            image = self.services()[service]["source"]["image"]
            self.instance("serve", image, "--name", service, "--min", 0, "--idle", "0s", "--idle-end", "0s")
        wait_for(lambda: not any(self.services()[name]["instances"] for name in some), "the instances to end")

    def contexts(self):
        """How many contexts take memory: those that are shared, and those of workers that wait."""
        row = self.instance.json("ps")
        return {"shared": len(row["contexts"]), "waiting": len(row["pool"])}

    def stop(self):
        """On an NVIDIA GPU no context of the daemon's is left beside the programs that come next."""
        for workflow in self.instance.json("services")["workflows"]:
            self.instance("unserve", workflow["name"], "--now")
        for service in self.services():
            self.instance("unserve", service, "--now")
        if self.instance.gpu.startswith("nvidia"):
            self.instance("shutdown")


class Called(Rekindle):
    """The same, but this program has each step of a workflow called."""

    def flow(self, file, workflow, arguments):
        return Run(workflow, arguments, {}).begin().result()
