"""What a service does when processes that compute end, and with the texts that end them; the processes are stubs."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from serve_starving import starving
from serving import ask, error_of, metric, served, until

from decompx_fast.serve import suspects as suspects_module


def test_process_that_dies_is_503_and_another_answers_within_seconds():
    with served() as client:
        pid = ask(client, "hello").json()["explanations"][0]["pid"]
        died = ask(client, "die")
        assert died.status_code == 503 and error_of(died)["type"] == "WorkerEnded"
        assert int(died.headers["retry-after"]) >= 1
        assert ask(client, "hello").json()["explanations"][0]["pid"] != pid  # waits for the other


@pytest.mark.slow
def test_text_that_ends_its_process_each_time_is_marked_and_costs_no_more():
    with served() as client:
        for _ in range(2):
            assert ask(client, "die").status_code == 503
        ends = metric(client, 'decompx_worker_ends_total{model="demo"}')
        pid = ask(client, "hello").json()["explanations"][0]["pid"]
        marked = ask(client, "die")
        assert marked.status_code == 500 and "retry-after" not in marked.headers
        error = error_of(marked)
        assert error["type"] == "WorkerEnded"
        assert "2 processes have ended" in error["message"] and "send a shorter one" in error["message"]
        found = ask(client, "die", "hello", on_error="skip").json()["explanations"]
        assert found[0]["error"]["type"] == "WorkerEnded" and found[1]["pid"] == pid
        assert metric(client, 'decompx_worker_ends_total{model="demo"}') == ends
        assert ask(client, "die", options={"bias": "none"}).status_code == 503  # another call, which may do


@pytest.mark.slow
def test_texts_beside_one_that_ends_its_process_are_not_marked():
    with served() as client:
        for _ in range(3):
            assert ask(client, "die", "one", "two").status_code == 503  # at first together, then each alone
        found = ask(client, "die", "one", "two", on_error="skip").json()["explanations"]
        assert found[0]["error"]["type"] == "WorkerEnded"
        assert [(one["text"], one["batch"]) for one in found[1:]] == [("one", 1), ("two", 1)]
        found = ask(client, "one", "two").json()["explanations"]
        assert [(one["text"], one["batch"]) for one in found] == [("one", 2), ("two", 2)]  # they have ended nothing


def test_what_is_remembered_of_texts_is_bounded_and_forgotten(monkeypatch):
    suspects = suspects_module.Suspects()
    one, *others = [suspects_module.digest_of("", str(n)) for n in range(suspects_module.MOST + 1)]
    assert suspects.ended([one]) == [] and suspects.ended([one]) == [one]
    assert suspects.is_marked(one) and not suspects.is_suspect(others[0])
    suspects.ended(others)  # together: suspected, not marked
    assert not suspects.is_suspect(one) and all(map(suspects.is_suspect, others))
    suspects.answered(others[0])
    assert not suspects.is_suspect(others[0])
    monkeypatch.setattr(suspects_module, "REMEMBERED_S", -1)
    assert not suspects.is_suspect(others[1])


def test_digests_tell_texts_pairs_and_calls_apart():
    asked = [("", "ab"), ("", ("a", "b")), ("", ("ab", "")), ("a", "b")]
    assert len({suspects_module.digest_of(call, text) for call, text in asked}) == 4


@pytest.mark.slow
def test_process_that_gets_no_memory_ends_and_another_answers():
    with served(work=starving) as client:
        died = ask(client, "a dreadful film")
        assert died.status_code == 503 and error_of(died)["type"] == "WorkerEnded"
        assert metric(client, 'decompx_worker_ends_total{model="demo"}') == 1
        answered = until(lambda: ask(client, "a fine film").json().get("explanations"), "another process answers")
        assert answered[0]["completeness_error"] < 1e-4


def test_process_that_is_killed_while_idle_costs_no_request():
    with served() as client:
        pid = ask(client, "hello").json()["explanations"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        found = ask(client, "hello")
        assert found.status_code == 200 and found.json()["explanations"][0]["pid"] != pid


def test_other_processes_go_on_while_one_is_replaced():
    with served(workers=2) as client, ThreadPoolExecutor(2) as threads:
        dying = threads.submit(ask, client, "die")
        other = {"options": {"bias": "none"}}  # so that they are no part of a batch with the one that dies
        assert [ask(client, "hello", **other).status_code for _ in range(5)] == [200] * 5
        assert dying.result().status_code == 503
