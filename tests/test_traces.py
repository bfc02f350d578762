"""Traces of serverless load: files of Azure's schemas become arrival times, and are replayed on time."""

import statistics
import subprocess
import sys
import threading
import time

import pytest
from rekindle import ROOT

sys.path[:0] = [str(ROOT / "benches")]

from traces import TraceError, arrivals, replay, synthetic  # noqa: E402
from traces.azure import MINUTES, OF_2019, of_file, per_function, variation  # noqa: E402


def day(tmp_path, *functions):
    """A trace of 2019; of each function, counts by minutes."""
    rows = [",".join([*OF_2019, *map(str, range(1, MINUTES + 1))])]
    rows += [",".join(["o", "a", f"f{number}", "http", *(str(counts.get(m, 0)) for m in range(MINUTES))]) for number, counts in enumerate(functions)]
    path = tmp_path / "day.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def two_weeks(tmp_path, *lines):
    path = tmp_path / "weeks.txt"
    path.write_text("\n".join(["app,func,end_timestamp,duration", *lines]) + "\n")
    return path


def test_minutes_of_2019_become_times_in_them(tmp_path):
    path = day(tmp_path, {0: 3, 1: 1, 5: 7}, {2: 2})
    load = arrivals(path, functions=2, seconds=180)
    assert load == sorted(load)
    by = sorted(per_function(load), key=len)
    assert [len(times) for times in by] == [2, 4]
    assert all(120 <= time < 180 for time in by[0])
    assert [int(time // 60) for time in by[1]] == [0, 0, 0, 1]
    # From the sixth minute on, in a sixth of the time.
    late = arrivals(path, functions=1, seconds=10, scale=6, start=300)
    assert len(late) == 7 and all(0 <= time < 10 and number == 0 for time, number in late)


def test_invocations_of_2021_begin_before_they_end(tmp_path):
    path = two_weeks(tmp_path, "a,f,10.5,0.5", "a,g,21,1", "b,f,40,2.5", "a,f,12,5")
    assert arrivals(path, functions=3, seconds=60, seed=1) == sorted(arrivals(path, functions=3, seconds=60, seed=1))
    assert sorted(time for time, _ in arrivals(path, functions=3, seconds=60)) == [7.0, 10.0, 20.0, 37.5]
    # Functions of one name in two apps are two.
    assert sorted(map(len, per_function(arrivals(path, functions=3, seconds=60)))) == [1, 1, 2]
    assert [time for time, _ in arrivals(path, functions=1, seconds=5, scale=2, start=20)] == [0.0]


def test_functions_are_chosen_by_rate_and_seed(tmp_path):
    path = day(tmp_path, *({minute: number for minute in range(10)} for number in range(1, 31)))
    load = arrivals(path, functions=4, seconds=600, rates=(5, 8), seed=3)
    assert sorted(len(times) / 10 for times in per_function(load)) == [5, 6, 7, 8]
    assert arrivals(path, functions=4, seconds=600, seed=3) == arrivals(path, functions=4, seconds=600, seed=3)
    assert arrivals(path, functions=4, seconds=600, seed=3) != arrivals(path, functions=4, seconds=600, seed=4)


def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path):
    path = day(tmp_path, {0: 1})
    with pytest.raises(TraceError, match="has 1 and not 2 functions"):
        arrivals(path, functions=2, seconds=60)
    with pytest.raises(TraceError, match="has one day"):
        arrivals(path, functions=1, seconds=60, scale=1440.5)
    path.write_text(path.read_text() + "o,a,f,http,1,2\n")
    with pytest.raises(TraceError, match="line 3: expected 1440 counts"):
        arrivals(path, functions=1, seconds=60)
    with pytest.raises(TraceError, match="line 3: expected an app"):
        arrivals(two_weeks(tmp_path, "a,f,10,1", "a,f,ten,1"), functions=1, seconds=60)
    path.write_text("a,b\n")
    with pytest.raises(TraceError, match="begins with a,b; expected the columns"):
        arrivals(path, functions=1, seconds=60)


def test_synthetic_files_have_their_classes_variation_and_read_alike(tmp_path):
    command = [sys.executable, ROOT / "benches/traces/generate", "--out", tmp_path, "--functions", 30, "--hours", 3, "--rates", 2, 20, "--seed", 5]
    said = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    assert said.startswith("Synthetic") and (tmp_path / "SYNTHETIC.txt").exists()
    found = synthetic.invocations(30, 3 * 3600, (2, 20), 5)
    middle = {kind: statistics.median(variation(times.tolist()) for name, times in found if name == kind) for kind in synthetic.CLASSES}
    assert middle["periodic"] < 0.1 < 0.7 < middle["sporadic"] < 1.3 < 2 < middle["bursty"]
    counts = sorted(len(times) for _, times in found)
    for name in (synthetic.FILE_2019, synthetic.FILE_2021):
        assert sorted(map(len, of_file(tmp_path / name)[0])) == counts
    of_2019, of_2021 = (arrivals(tmp_path / name, functions=30, seconds=180, scale=60) for name in (synthetic.FILE_2019, synthetic.FILE_2021))
    assert len(of_2019) == len(of_2021) == sum(counts)


def test_a_replay_is_on_time_whatever_becomes_of_requests():
    turn, at_once, most = threading.Lock(), 0, 0

    def call(function):
        nonlocal at_once, most
        with turn:
            at_once += 1
            most = max(most, at_once)
        try:
            if function == 1:
                raise ValueError("no")
            time.sleep({0: 2, 2: 30}[function])
            return f"answer {function}"
        finally:
            with turn:
                at_once -= 1

    outcomes = replay([(0.0, 0), (0.1, 0), (0.2, 1), (0.2, 2)], call, patience=4)
    assert [one.answer for one in outcomes] == ["answer 0", "answer 0", None, None]
    assert outcomes[2].error == "ValueError: no" and "not answered 4 s after" in outcomes[3].error
    # The second began while the first was under way, and took no longer for it.
    assert most >= 3 and all(2 <= one.latency < 3.5 for one in outcomes[:2])
    assert outcomes[3].latency is None and all(one.began >= one.due for one in outcomes)
