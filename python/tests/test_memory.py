"""GPU memory that functions have together with their declared data, where there is a limit."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from nodes import COUNT, expected, node_with, numbers
from rekindle.errors import CallError

MB = 1 << 20


def test_declared_data_count_before_they_are_there_and_when_they_are():
    with node_with(REKINDLE_SERVICE_MEMORY="64M") as node:
        array = numbers(1)
        _, url = node.file(array)
        sums = node.deploy(url)
        (shown,) = node.rekindle.json("services")["services"]
        need = shown["source"]["need"]
        assert need["gpu"] == "emulated" and sum(datum["bytes"] for datum in need["data"]) >= 4 * COUNT
        assert sums.total.remote() == expected(array)
        node.rekindle.wait(lambda: shown_bytes(node) >= 4 * COUNT, "the data to be seen")
        assert node.rekindle.json("services")["memory"]["limit_bytes"] == 64 * MB


def test_data_on_their_way_count_for_as_long_as_that_takes():
    with node_with(REKINDLE_SERVICE_MEMORY="64M") as node:
        first, second = numbers(1), numbers(2)
        place, url = node.file(first)
        sums = node.deploy(url)
        assert sums.total.remote() == expected(first)
        # Other contents, so that the next instance has to wait for them.
        node.end_instance()
        place.write_bytes(second.tobytes())
        (memory,) = node.memory_daemons()
        os.kill(memory, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(1) as thread:
                answer = thread.submit(sums.total.remote)
                node.rekindle.wait(lambda: any(one["pid"] for one in node.rekindle.sandboxes()), "an instance")
                # Instances are measured each second.
                time.sleep(3)
                assert not answer.done() and shown_bytes(node) >= 4 * COUNT
                os.kill(memory, signal.SIGCONT)
                assert answer.result(60) == expected(second)
        finally:
            os.kill(memory, signal.SIGCONT)


def test_data_stay_an_instance_s_own_that_it_has_not_asked_for_yet():
    with node_with(REKINDLE_SERVICE_MEMORY="64M") as node:
        _, url = node.file(numbers(1))
        node.deploy(url)
        node.deployer.come_to("sums-Sum", "running")
        # Instances are measured each second.
        time.sleep(3)
        assert shown_bytes(node) >= 4 * COUNT


def test_a_limit_that_comes_later_counts_data_that_nobody_has_fetched_yet():
    with node_with() as node:
        _, url = node.file(numbers(1))
        sums = node.deploy(url)
        (shown,) = node.rekindle.json("services")["services"]
        node.rekindle("serve", shown["source"]["image"], "--name", "sums-Sum", "--idle", "0s", "--timeout", "500ms")
        node.deployer.come_to("sums-Sum")
        node.rekindle("shutdown")
        node.rekindle.environment["REKINDLE_SERVICE_MEMORY"] = "16M"
        node.rekindle("services")
        with pytest.raises(CallError, match="GPU memory"):
            sums.total.remote()


def test_without_a_limit_nobody_waits_for_the_sizes_of_data():
    with node_with() as node:
        _, url = node.file(numbers(1))
        # It needs the memory daemon, which there is from then on.
        assert node.deploy(url).total.remote() == expected(numbers(1))
        node.deployer.app("plain", "@app.function(max_containers=1)\ndef one():\n    return 1\n")
        need = lambda: node.deployer.service("plain-one")["source"]["need"]
        (memory,) = node.memory_daemons()
        os.kill(memory, signal.SIGSTOP)
        try:
            node.rekindle("serve", node.deployer.service("plain-one")["source"]["image"], "--name", "plain-one", "--data", url)
            assert "data" not in need()
        finally:
            os.kill(memory, signal.SIGCONT)
        node.rekindle.wait(lambda: [datum["bytes"] for datum in need().get("data", [])] == [4 * COUNT], "the size to be noted")


def test_a_function_whose_data_alone_are_more_than_the_limit_is_refused():
    with node_with(REKINDLE_SERVICE_MEMORY="16M") as node:
        _, url = node.file(numbers(1))
        with pytest.raises(Exception, match="services may have 16 MB of each GPU; start rekindled with a larger --service-memory"):
            node.deploy(url)
        assert node.rekindle.json("services")["services"] == []


def shown_bytes(node):
    return node.rekindle.json("services")["services"][0]["gpu_bytes"]
