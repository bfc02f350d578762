"""What the daemon tells Prometheus: at /metrics of its page, from where the page and the commands have it."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from openmetrics import Metrics
from rekindle import CommandError
from test_page import Page
from test_services import Web, begun

KIND = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def metrics(page):
    status, headers, text = page.ask("/metrics")
    assert (status, headers["Content-Type"]) == (200, KIND), text
    return Metrics(text)


def come(page, what, condition):
    """Metrics of which this holds."""
    found = []
    page.rekindle.wait(lambda: condition(found.append(metrics(page)) or found[-1]), what)
    return found[-1]


@pytest.fixture
def page(tmp_path):
    with begun(REKINDLE_PAGE_PORT="127.0.0.1:0", REKINDLE_ACCESS_LOG=str(tmp_path / "log")) as rekindle:
        yield Page(rekindle)


def test_requests_starts_wakes_and_memory_are_told(page):
    first = metrics(page)
    assert first.get("service_requests_total") is None and first.get("access_log_lost_total") == 0
    assert first.get("operation_seconds_count", operation="restore") == 0
    web = Web(page.rekindle, "--idle", "10ms", "--idle-end", "1h", "--max", 1, "--concurrency", 1)
    assert web.get()["count"] == 2
    web.come_to("asleep")
    assert web.get()["count"] == 3
    web.come_to("asleep")
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(web.ask, f"/hold?{web.mark('a')}")
        web.held("a")
        web.serve("one", "--queue", 0)
        assert web.ask()[0] == 429
        web.serve("one", "--queue", 8)
        held_now = come(page, "a request that an instance has", lambda now: now.get("service_in_flight") == 1)
        web.let_go("a")
        assert held.result()[0] == 200
    assert web.ask("/echo", "POST", b"x")[0] == 200
    # It takes the instance with it, and the next one too.
    assert web.ask("/crash")[0] == 502
    assert web.get()["count"] == 2
    web.come_to("asleep")
    now = come(page, "all requests to be counted", lambda now: now.get("service_requests_total") == 7)
    counts = {status: now.get("service_requests_total", service="web", status=status) for status in now.labels("service_requests_total", "status")}
    assert counts == {"1xx": 0, "2xx": 5, "3xx": 0, "4xx": 1, "5xx": 1, "none": 0}
    assert now.get("service_rejections_total", reason="queue-full") == now.get("service_rejections_total") == 1
    assert now.get("service_queue_seconds_count") == 7 and now.get("service_request_seconds_count") == 6
    # The request after it may have been sent to one that had gone.
    assert now.get("service_retries_total", service="web", tenant="") >= 1
    # As the commands have it.
    shown = web.shown()
    assert now.get("service_gpu_memory_bytes") == shown["gpu_bytes"] and now.get("service_instances_limit") == 1
    assert now.get("service_instances", stage="asleep", canary="false") == now.get("service_instances") == 1
    restored = now.get("service_start_seconds_count", **{"from": "image"})
    assert restored == now.get("operation_seconds_count", operation="restore") >= 2
    woken = now.get("service_start_seconds_count", **{"from": "asleep-host"})
    # The crash may have met an instance that was being woken for it.
    assert 2 <= woken <= now.get("operation_seconds_count", operation="wake") and now.get("service_start_failures_total") <= 1
    assert now.get("operation_seconds_count", operation="checkpoint") == 1 and now.get("operation_failures_total") <= 1
    took = sum(
        trace["total_us"]
        for trace in page.rekindle.json("trace", "web-1", "--svg", page.rekindle.root / "picture.svg")["traces"]
        if trace["operation"] == "restore"
    )
    assert took / 1e6 <= now.get("operation_seconds_sum", operation="restore")
    assert now.get("operation_standstill_seconds_sum", operation="checkpoint") <= now.get("operation_seconds_sum", operation="checkpoint")
    assert now.get("sandboxes", state="asleep") == 1
    size = now.get("gpu_memory_size_bytes", gpu="emulated")
    assert size == 4 << 30 == now.get("gpu_memory_bytes") + now.get("gpu_memory_free_bytes")
    first.only_grow_to(held_now)
    held_now.only_grow_to(now)
    # A service that is gone is told of no more.
    page.rekindle("unserve", "web", "--now")
    come(page, "the service to be forgotten", lambda now: now.get("service_requests_total") is None)


def test_tenants_their_quotas_and_refused_tokens_are_told(page):
    made = page.rekindle.json("tenant", "create", "blue", "--rate", "2/h", "--memory", "1G", "--instances", 3)
    web = Web(page.rekindle, "--tenant", "blue", "--min", 1)
    shown = {"Authorization": f"Bearer {made['token']['token']}"}
    assert [web.ask(headers=shown)[0] for _ in range(3)] == [200, 200, 429]
    assert web.ask()[0] == web.ask(headers={"Authorization": "Bearer x"})[0] == 401
    now = come(page, "all requests to be counted", lambda now: now.get("service_requests_total", tenant="blue") == 5)
    reasons = {reason: now.get("service_rejections_total", reason=reason) for reason in ("rate", "no-token", "unknown-token")}
    assert reasons == {"rate": 1, "no-token": 1, "unknown-token": 1} and now.get("service_rejections_total") == 3
    assert now.get("tenant_rate_limited_total", tenant="blue") == 1
    assert (now.get("tenant_instances"), now.get("tenant_instances_limit")) == (1, 3)
    assert now.get("tenant_gpu_memory_limit_bytes") == 1 << 30 and now.get("tenant_gpu_memory_bytes") == web.shown()["gpu_bytes"]


def test_what_fails_and_what_comes_back_is_told(page):
    page.rekindle("run", "-d", "--name", "one", "--gpu", "emulated", "--restart", "on-failure", "--", "sleep", "1000")
    os.kill(page.rekindle.sandbox("one")["pid"], signal.SIGKILL)
    now = come(page, "the program to be brought back", lambda now: now.get("recoveries_total") == 1)
    assert now.get("recovery_failures_total") == 0 and now.get("operation_failures_total") == 0
    assert page.ask("/metrics", host="evil.example")[0] == 421


def test_a_restore_that_fails_is_told():
    with begun(REKINDLE_PAGE_PORT="127.0.0.1:0", REKINDLE_FAULT="restore-complete") as rekindle:
        page = Page(rekindle)
        rekindle.run("one", "sleep", "1000")
        rekindle("checkpoint", "one", "--to", "image", "--stop")
        with pytest.raises(CommandError):
            rekindle("restore", "image", "-d")
        now = come(page, "the failure", lambda now: now.get("operation_failures_total", operation="restore") == 1)
        assert now.get("operation_seconds_count", operation="restore") == 0
        assert re.fullmatch(r"\d+\.\d+\.\d+", *now.labels("build_info", "version"))
