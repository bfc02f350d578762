"""The access log of services: a line of JSON for each request, and the id that it has."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from rekindle import CommandError, Rekindle
from test_services import Web, begun

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "access.log"


def written(log):
    """For a moment there is no file: between the one that became the one before, and the next."""
    try:
        return log.read_text()
    except FileNotFoundError:
        return ""


def lines(rekindle, log, count):
    """All lines, once there are so many."""
    rekindle.wait(lambda: len(log.read_text().splitlines()) >= count, f"{count} lines")
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(found) == count, found
    return found


def test_each_request_has_a_line_and_an_id(log):
    with begun(REKINDLE_ACCESS_LOG=str(log)) as rekindle:
        web = Web(rekindle, "--max", 1, "--queue", 0, "--concurrency", 1)
        status, headers, body = web.ask("/?secret=1", headers={"X-Request-Id": "my-id", "traceparent": TRACE})
        assert (status, headers["X-Request-Id"]) == (200, "my-id")
        got = {name.lower(): value for name, value in json.loads(body)["headers"].items()}
        assert (got["x-request-id"], got["traceparent"]) == ("my-id", TRACE)
        (line,) = lines(rekindle, log, 1)
        # What it had taken is not known beforehand.
        assert line.pop("instance_us") > 0 and line.pop("queued_us") >= 0 and line.pop("time").endswith("Z")
        assert line == {
            "service": "web",
            "tenant": None,
            "instance": "web-1",
            "method": "GET",
            "path": "/",
            "status": 200,
            "bytes_in": 0,
            "bytes_out": len(body),
            "client": "127.0.0.1",
            "request_id": "my-id",
        }
        # One without an id gets one.
        sent = b"x" * 100_000
        status, headers, body = web.ask("/echo", "POST", sent)
        assert (status, body) == (200, sent)
        line = lines(rekindle, log, 2)[-1]
        assert line["request_id"] == headers["X-Request-Id"] and len(line["request_id"]) == 32
        assert (line["bytes_in"], line["bytes_out"]) == (100_000, 100_000)
        # One that is refused, one whose client goes, and one whose instance ends.
        with ThreadPoolExecutor(1) as threads:
            held = threads.submit(web.ask, f"/hold?{web.mark('a')}")
            web.held("a")
            assert web.ask("/refused")[0] == 429
            web.let_go("a")
            assert held.result()[0] == 200
        refused, _ = lines(rekindle, log, 4)[2:]
        assert (refused["path"], refused["status"], refused["instance"], refused["instance_us"]) == ("/refused", 429, None, None)
        with web.connect() as gone:
            gone.sendall(f"GET /hold?{web.mark('b')} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            web.held("b")
        web.let_go("b")
        line = lines(rekindle, log, 5)[-1]
        assert (line["status"], line["instance"], line["path"]) == (None, "web-1", "/hold")
        rekindle.wait(lambda: web.shown()["in_flight"] == 0, "the end of all requests")
        assert web.ask("/crash", "POST", b"")[0] == 502
        line = lines(rekindle, log, 6)[-1]
        assert (line["status"], line["instance"], line["method"]) == (502, "web-1", "POST")
        shown = rekindle.json("services")["access_log"]
        assert shown == {"to": str(log), "lost": 0}


def test_it_is_kept_within_its_limit(log):
    with begun(REKINDLE_ACCESS_LOG=str(log), REKINDLE_LOG_MAX="8K") as rekindle:
        web = Web(rekindle)
        for number in range(60):
            assert web.ask(f"/{number}")[0] == 404
        before = log.with_name("access.log.1")
        rekindle.wait(lambda: "/59" in written(log), "the last line")
        assert before.exists() and log.stat().st_size + before.stat().st_size <= 8 << 10
        # Another place is the next daemon's.
        assert rekindle.json("services")["access_log"]["lost"] == 0


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with Rekindle(REKINDLE_ACCESS_LOG=str(tmp_path)) as rekindle:
        with pytest.raises(CommandError, match="access log") as error:
            rekindle("ps")
        assert error.value.message.count("\n") == 0
        del rekindle.environment["REKINDLE_ACCESS_LOG"]
