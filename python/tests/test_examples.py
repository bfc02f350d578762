"""The workflows of the examples: deployed, they find what the same computation finds in one process."""

import subprocess
import sys

import pytest
from conftest import ROOT, Deployer, begun

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def deployer():
    with begun(EXAMPLES_GPU="emulated") as instance, pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXAMPLES_GPU", "emulated")
        yield Deployer(instance)


@pytest.mark.parametrize("name, services", [("03_image", 3), ("04_traffic", 5), ("05_social", 3)])
def test_a_workflow_finds_what_one_process_finds(deployer, name, services):
    file, rekindle = EXAMPLES / f"{name}.py", deployer.rekindle
    assert len(deployer(file)["services"]) == services
    called = subprocess.run([sys.executable, file], check=True, capture_output=True, text=True, timeout=120).stdout
    alone = rekindle("run", "--gpu", "emulated", "--", sys.executable, file, "--local")
    assert called.strip() and called == alone
    # All of them have been in one context, and what they handed on is used up.
    rekindle.wait(lambda: not [row for row in rekindle.json("ps")["handed_on"] if row["arrays"]], "all arrays to be used up")
