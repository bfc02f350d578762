"""GPU memory that functions have together with their declared data, where there is a limit."""

import pytest
from nodes import COUNT, expected, node_with, numbers

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


def test_a_function_whose_data_alone_are_more_than_the_limit_is_refused():
    with node_with(REKINDLE_SERVICE_MEMORY="16M") as node:
        _, url = node.file(numbers(1))
        with pytest.raises(Exception, match="services may have 16 MB of each GPU; start rekindled with a larger --service-memory"):
            node.deploy(url)
        assert node.rekindle.json("services")["services"] == []


def shown_bytes(node):
    return node.rekindle.json("services")["services"][0]["gpu_bytes"]
