"""Requests to services as spans of traces: a real service, and a collector that keeps what it got."""

import datetime
import json

import pytest
from collector import collecting
from openmetrics import Metrics
from rekindle import CommandError, Rekindle
from test_page import Page
from test_services import Web, begun

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"


def request(web, name, path="/", **headers):
    return web.ask(path, headers={"X-Request-Id": name, **headers})


def come(rekindle, collector, name):
    """The span of the request with this id."""
    rekindle.wait(lambda: collector.one(**{"rekindle.request_id": name}), f"the span of {name}")
    return collector.one(**{"rekindle.request_id": name})


def traced(rekindle):
    return rekindle.json("trace", "web-1", "--svg", rekindle.root / "picture.svg")["traces"]


def nanoseconds(text):
    since = datetime.datetime.fromisoformat(text) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(microseconds=1) * 1000


def is_as_traced(collector, coming, trace):
    """The span of a restore or wake is what `rekindle trace` tells of it, phase by phase."""
    begin = nanoseconds(trace["began"])
    assert (coming.begin, coming.end) == (begin, begin + trace["total_us"] * 1000)
    told = {(one["name"], one["lane"], begin + one["start_us"] * 1000, one["duration_us"] * 1000) for one in trace["phases"]}
    found = {(one.name, one.attributes["rekindle.lane"], one.begin, one.end - one.begin) for one in collector.below(coming)}
    # What went on when the span was sent may have been told since.
    assert found <= told and len(found) >= 3, (found, told)


def test_a_request_has_spans_of_its_queue_its_instance_s_coming_and_the_program():
    with collecting() as (collector, address), begun(OTEL_EXPORTER_OTLP_ENDPOINT=address) as rekindle:
        web = Web(rekindle, "--idle", "10ms", "--idle-end", "0s", "--max", 1)
        # The one that it was tried with.
        web.come_to()
        web.serve("one", "--idle", "1h", "--idle-end", "1h")
        status, _, body = request(web, "first", traceparent=f"{PARENT}1", tracestate="a=1")
        sent = {name.lower(): value for name, value in json.loads(body)["headers"].items()}
        first = come(rekindle, collector, "first")
        assert status == 200 and (first.name, first.kind, first.failed) == ("GET web", "server", False)
        # It goes on in its client's trace, and the program in it.
        assert (first.trace, first.parent) == (PARENT[3:35], PARENT[36:52])
        assert sent["traceparent"] == f"00-{first.trace}-{first.id}-01" and sent["tracestate"] == "a=1"
        assert first.attributes["rekindle.service"] == "web" and first.attributes["http.response.status_code"] == 200
        assert first.attributes["url.path"] == "/" and collector.resource["service.name"]
        parts = {one.name: one for one in collector.below(first)}
        assert sorted(parts) == ["program", "queue", "restore"], parts
        assert first.begin <= parts["queue"].begin <= parts["queue"].end <= parts["program"].begin <= parts["program"].end <= first.end
        assert parts["program"].attributes["rekindle.instance"] == "web-1" and parts["program"].kind == "client"
        # The instance was there before it had the request.
        assert first.begin <= parts["restore"].begin and parts["restore"].end <= parts["queue"].end
        (trace,) = [one for one in traced(rekindle) if one["operation"] == "restore"]
        is_as_traced(collector, parts["restore"], trace)
        web.serve("one", "--idle", "10ms")
        web.come_to("asleep")
        # One that finds it asleep, and one that finds it awake; they begin traces.
        request(web, "second")
        second = come(rekindle, collector, "second")
        wakes = [one for one in collector.below(second) if one.name == "wake"]
        trace = [one for one in traced(rekindle) if one["operation"] == "wake"][0]
        assert len(wakes) == 1 and second.parent == "" and second.trace != first.trace
        is_as_traced(collector, wakes[0], trace)
        web.serve("one", "--idle", "1h")
        web.get()
        request(web, "third", "/?secret=1")
        third = come(rekindle, collector, "third")
        assert sorted(one.name for one in collector.below(third)) == ["program", "queue"] and third.attributes["url.path"] == "/"
        # What its client does not follow is not told of. One that is sent once more has two tries.
        request(web, "no", traceparent=f"{PARENT}0")
        assert request(web, "crash", "/crash")[0] == 502
        crash = come(rekindle, collector, "crash")
        names = [one.name for one in collector.below(crash)]
        # A third, if it came where the first instance was just going.
        assert crash.failed and names.count("program") == names.count("queue") >= 2
        assert collector.one(**{"rekindle.request_id": "no"}) is None


def test_what_a_program_tells_of_its_time_is_below_it_and_no_client_s():
    with collecting() as (collector, address), begun(OTEL_EXPORTER_OTLP_ENDPOINT=address) as rekindle:
        web = Web(rekindle)
        status, headers, _ = request(web, "first", "/spans")
        assert status == 200 and "rekindle-spans" not in {name.lower() for name in headers}
        first = come(rekindle, collector, "first")
        (program,) = [one for one in collector.below(first) if one.name == "program"]
        own, early = collector.below(program)
        (part,) = collector.below(own)
        assert (own.name, own.id, early.name, part.name, part.id) == ("own", "a" * 16, "early", "part", "b" * 16)
        assert own.end - own.begin == 200_000 and part.end - part.begin == 100_000 and own.begin < part.begin
        # Nothing of a program was before it had the request.
        assert early.begin == early.end == program.begin


def test_whoever_is_not_sampled_is_told_so_and_nobody_is_asked():
    with collecting() as (collector, address):
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_TRACES_SAMPLER": "parentbased_always_off"}
        with begun(**settings) as rekindle:
            web = Web(rekindle)
            headers = json.loads(request(web, "first")[2])["headers"]
            assert {name.lower(): value for name, value in headers.items()}["traceparent"].endswith("-00")
            # Unless its client has it followed.
            request(web, "second", traceparent=f"{PARENT}1")
            assert come(rekindle, collector, "second").trace == PARENT[3:35]
            assert {one.trace for one in collector.spans} == {PARENT[3:35]}


def test_a_collector_that_is_away_or_fails_holds_up_nobody_and_is_counted():
    with collecting() as (collector, address):
        collector.answer = 400
        with begun(OTEL_EXPORTER_OTLP_ENDPOINT=address, REKINDLE_PAGE_PORT="127.0.0.1:0") as rekindle:
            page, web = Page(rekindle), Web(rekindle, "--min", 1)
            assert request(web, "first")[0] == request(web, "second")[0] == 200

            def counts():
                now = Metrics(page.ask("/metrics")[2])
                return now.get("traced_requests_total"), now.get("traced_requests_dropped_total")

            rekindle.wait(lambda: counts() == (0, 2), "both to be counted")
            assert collector.asked >= 1
            collector.answer = 200
            assert request(web, "third")[0] == 200
            come(rekindle, collector, "third")
            rekindle.wait(lambda: counts() == (1, 2), "the third to be counted")
            log = (rekindle.state / "daemon.log").read_text()
            assert (log.count("does not take spans"), log.count("takes spans again")) == (1, 1), log


def test_an_endpoint_that_is_none_is_refused_in_a_sentence():
    for wrong in ("localhost:4318", "http://"):
        with Rekindle(OTEL_EXPORTER_OTLP_ENDPOINT=wrong) as rekindle:
            with pytest.raises(CommandError, match="--otlp-endpoint http://localhost:4318") as error:
                rekindle("ps")
            assert error.value.message.count("\n") == 0
            del rekindle.environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
