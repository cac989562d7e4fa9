"""What a service does with too much, too slow, too late and broken requests, and with processes that end; its
processes are stubs."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_stub import broken
from serving import ask, error_of, metric, served, until

from decompx_fast.errors import ModelLoadError
from decompx_fast.serve import backend as backend_module
from decompx_fast.serve.logs import _Lines


@pytest.fixture(scope="module")
def client():
    with served(limits={"body_bytes": 10_000, "texts": 8}) as client:
        yield client


def test_texts_that_wait_together_are_computed_together_in_the_order_of_lengths():
    with served() as client, ThreadPoolExecutor(8) as threads:
        blocker = threads.submit(ask, client, "sleep 1")
        until(lambda: metric(client, 'decompx_batch_texts_count{model="demo"}') == 1, "the first is computed")
        others = [threads.submit(ask, client, "x" * n) for n in (5, 3, 4)]
        others.append(threads.submit(ask, client, "another call", options={"bias": "equal"}))
        found = [one.result().json()["explanations"][0]["batch"] for one in (blocker, *others)]
        assert found == [1, 3, 3, 3, 1]
        assert metric(client, 'decompx_texts_total{model="demo"}') == 5
        assert metric(client, 'decompx_tokens_total{model="demo"}') == 10
        assert metric(client, 'decompx_completeness_error_count{model="demo"}') == 5
        assert metric(client, 'decompx_requests_total{route="/v1/explain",status="200"}') == 5


def test_one_request_has_its_answers_in_its_order(client):
    texts = ["a long text of many words", "short", "one of middle length"]
    found = ask(client, *texts).json()["explanations"]
    assert [one["text"] for one in found] == texts


def test_texts_are_in_the_log_where_that_was_asked_for_and_nowhere_else(caplog):
    for log_texts in (True, False):
        caplog.clear()
        with caplog.at_level("INFO", "decompx_fast.serve"), served(log_texts=log_texts) as client:
            ask(client, "a joy")
        fields = [record.fields for record in caplog.records if record.getMessage() == "request"]
        assert [one.get("logged_texts") for one in fields] == [["a joy"] if log_texts else None]
        assert ("joy" in str([vars(record) for record in caplog.records])) == log_texts


def test_lines_of_the_log_are_json_without_messages_of_exceptions_unless_asked_for():
    for with_messages in (True, False):
        try:
            raise ValueError("a joy")
        except ValueError:
            record = logging.LogRecord("uvicorn.error", logging.ERROR, "a.py", 1, "it failed", (), sys.exc_info())
        line = json.loads(_Lines(with_messages=with_messages).format(record))
        assert (line["event"], line["level"], line["error"]) == ("it failed", "error", "ValueError")
        assert line.get("message") == ("a joy" if with_messages else None)
        assert line["frames"][0].endswith("exceptions_unless_asked_for")


def test_body_that_a_page_of_another_site_could_send_is_refused(client):
    found = client.post("/v1/explain", content=b'{"texts": ["a"]}', headers={"content-type": "text/plain"})
    assert found.status_code == 422 and error_of(found)["argument"] == "body"


@pytest.mark.slow
def test_full_queue_is_429_and_says_when_to_ask_again():
    with served(limits={"queue": 2, "batch": 1}) as client, ThreadPoolExecutor(4) as threads:
        running = threads.submit(ask, client, "sleep 2")
        until(lambda: metric(client, 'decompx_batch_texts_count{model="demo"}') == 1, "the first is computed")
        waiting = [threads.submit(ask, client, text) for text in ("one", "two")]
        until(lambda: metric(client, 'decompx_queue_texts{model="demo"}') == 2, "two wait")
        refused = ask(client, "three")
        assert refused.status_code == 429 and error_of(refused)["type"] == "QueueFull"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert [one.result().status_code for one in (running, *waiting)] == [200, 200, 200]
        assert ask(client, "three").status_code == 200


@pytest.mark.slow
def test_what_is_not_there_in_time_is_504_and_is_not_computed_any_more(monkeypatch):
    monkeypatch.setattr(backend_module, "ABANDONED_S", 60)
    with served(limits={"timeout_s": 0.5, "batch": 1}) as client, ThreadPoolExecutor(4) as threads:
        running = threads.submit(ask, client, "sleep 2")
        until(lambda: metric(client, 'decompx_batch_texts_count{model="demo"}') == 1, "the first is computed")
        late = ask(client, "late")
        assert late.status_code == 504 and "within 0.5 s" in error_of(late)["message"]
        assert running.result().status_code == 504
        until(lambda: ask(client, "again").status_code == 200, "the process is free again")
        assert metric(client, 'decompx_dropped_texts_total{model="demo"}') >= 1


@pytest.mark.slow
def test_what_nobody_waits_for_ends_its_process(monkeypatch):
    monkeypatch.setattr(backend_module, "ABANDONED_S", 0.2)
    with served(limits={"timeout_s": 0.5}) as client:
        assert ask(client, "sleep 600").status_code == 504
        until(lambda: ask(client, "again").status_code == 200, "another process answers")
        assert metric(client, 'decompx_worker_ends_total{model="demo"}') == 1


@pytest.mark.slow
def test_text_of_a_client_that_has_gone_is_dropped():
    with served(limits={"batch": 1}) as client, ThreadPoolExecutor(2) as threads:
        running = threads.submit(ask, client, "sleep 1.5")
        until(lambda: metric(client, 'decompx_batch_texts_count{model="demo"}') == 1, "the first is computed")
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/explain", json={"texts": ["sleep 500"]}, timeout=0.2)
        assert running.result().status_code == 200
        until(lambda: metric(client, 'decompx_dropped_texts_total{model="demo"}') == 1, "it is dropped")
        assert metric(client, 'decompx_requests_total{route="/v1/explain",status="499"}') == 1
        assert ask(client, "next").status_code == 200


def test_model_that_cannot_be_loaded_is_told():
    with served(work=broken, models={"a": {"path": "nowhere", "workers": 1}}) as client:
        assert isinstance(client.failures[0], ModelLoadError) and "nowhere" in str(client.failures[0])
        assert client.get("/v2/health/live").status_code == 200
        assert client.get("/v2/health/ready").status_code == 503


@pytest.mark.parametrize(
    ("body", "status", "argument", "words"),
    [
        (b"", 422, "body", "is missing"),
        (b"nothing", 422, "body", "no JSON"),
        (b"[" * 5000, 422, "body", "JSON"),
        (b'{"texts": ["a"], "n": ' + b"9" * 5000 + b"}", 422, "body", "JSON"),
        (b"\xff\xfe", 422, "body", "JSON"),
        (b"[]", 422, "body", "dictionary"),
        (b"{}", 422, "texts", "is missing"),
        (b'{"texts": []}', 422, "texts", "at least 1"),
        (b'{"texts": "a"}', 422, "texts", "list"),
        (b'{"texts": [""]}', 422, "texts.0", "at least 1"),
        (b'{"texts": [["a"]]}', 422, "texts.0", "2 items"),
        (b'{"texts": ["\\ud800"]}', 422, "texts.0", "unicode"),
        (b'{"texts": ["a", 3]}', 422, "texts.1", "string"),
        (b'{"texts": ["a"], "txt": 1}', 422, "txt", "leave it out"),
        (b'{"texts": ["a"], "options": {"bias": "most"}}', 422, "options.bias", "absdot"),
        (b'{"texts": ["a"], "options": {"workspace_bytes": 9}}', 422, "options.workspace_bytes", "leave it out"),
        (b'{"texts": ["a"], "options": {"generate": 100000}}', 422, "options.generate", "256"),
        (b'{"texts": ["a"], "options": {"steps": "all"}}', 422, "options.steps", "'auto'"),
        (b'{"texts": ["a"], "options": {"steps": "search"}}', 422, "options.steps", "'auto'"),
        (b'{"texts": ["a"], "options": {"steps": 65}}', 422, "options.steps", "64"),
        (b'{"texts": ["a"], "options": {"steps": 0}}', 422, "options.steps", "1"),
        (b'{"texts": ["a"], "options": {"steps": true}}', 422, "options.steps", "'auto'"),
        (b'{"texts": ["a"], "model": "/etc/passwd"}', 404, "model", "use one of demo"),
        (b'{"texts": ["a"], "model": "../demo"}', 404, "model", "use one of demo"),
        (b'{"texts": ["a", "b", "c", "d", "e", "f", "g", "h", "i"]}', 422, "texts", "may have 8"),
        (b'{"texts": ["refuse this"]}', 422, "options.targets", "no class"),
        (b'{"texts": ["break this"]}', 500, None, "fault of the service"),
    ],
)
def test_request_that_cannot_be_used_is_told_why(client, body, status, argument, words):
    found = client.post("/v1/explain", content=body, headers={"content-type": "application/json"})
    error = error_of(found)
    assert (found.status_code, error["argument"]) == (status, argument), error
    assert words in error["message"]


def test_errors_may_stand_in_the_places_of_their_texts(client):
    found = ask(client, "fine", "refuse this", "fine too", on_error="skip")
    assert found.status_code == 200
    first, second, third = found.json()["explanations"]
    assert (first["text"], third["text"]) == ("fine", "fine too")
    assert second["error"]["type"] == "OptionError" and second["error"]["argument"] == "options.targets"


def test_body_that_is_too_long_is_413(client):
    for size in (10_001, 60_000, 10_000_000):
        found = ask(client, "x" * size)
        assert found.status_code == 413 and error_of(found)["argument"] == "body"
    parts = (b"x" * 1000 for _ in range(40))  # of no length that is told before
    assert client.post("/v1/explain", content=parts).status_code == 413
    assert ask(client, "x" * 9_900).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nowhere", 404, "NotFound"),
        ("GET", "/v1/explain", 405, "MethodNotAllowed"),
        ("GET", "/v1/models/..%2f..%2fetc", 404, "NotFound"),
        ("GET", "/v1/models/other", 404, "UnknownModel"),
        ("POST", "/v1/models/other:explain", 404, "UnknownModel"),
        ("GET", "/docs", 404, "NotFound"),
        ("GET", "/static/../../etc/passwd", 404, "NotFound"),
    ],
)
def test_other_paths_and_models_are_404_in_the_same_form(client, method, path, status, kind):
    json_body = {"instances": ["a"]} if method == "POST" else None
    found = client.request(method, path, json=json_body)
    assert found.status_code == status and error_of(found)["type"] == kind


def test_key_is_asked_for_everywhere_but_where_probes_and_the_page_are():
    with served(api_key="a long secret") as client:
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v2", "/v1/models/demo"):
            refused = client.get(path)
            assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer", path
        for wrong in ("Bearer a long secreT", "Bearer", "Basic a long secret", "a long secret", "Bearer \xe9"):
            given = {"authorization": wrong.encode("latin-1")}
            refused = client.post("/v1/explain", json={"texts": ["a"]}, headers=given)
            assert refused.status_code == 401 and "a long secret" not in refused.text
        given = {"authorization": "Bearer a long secret"}
        assert client.post("/v1/explain", json={"texts": ["a"]}, headers=given).status_code == 200
        assert client.get("/metrics", headers=given).status_code == 200
        for path in ("/", "/v2/health/live", "/v2/health/ready"):
            assert client.get(path).status_code == 200
        assert client.post("/", data={"text": "a"}).status_code == 401
        assert client.post("/", data={"text": "a", "key": "a long secret"}).status_code == 200


def test_service_on_the_loopback_is_called_by_its_names_alone(client):
    for name in ("evil.example", "localhost.evil.example", ""):
        found = client.get("/v1/models", headers={"host": name})
        assert found.status_code in (400, 421), name
    assert client.get("/v1/models", headers={"host": "LocalHost:8000"}).status_code == 200


def raw(client: httpx.Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.base_url.port), timeout=30)


def everything(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.slow
def test_slow_and_silent_clients_are_sent_away_and_others_are_served():
    with served(limits={"receive_s": 0.6}) as client:
        silent, headless, bodiless, trickling = (raw(client) for _ in range(4))
        headless.sendall(b"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nx-a: b")
        bodiless.sendall(b"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        trickling.sendall(b"GET / HTTP/1.1\r\n")
        stop = threading.Event()

        def trickle() -> None:
            while not stop.wait(0.1):
                try:
                    trickling.sendall(b"x-a: b\r\n")
                except OSError:
                    return

        threading.Thread(target=trickle, daemon=True).start()
        assert ask(client, "meanwhile").status_code == 200
        kept = raw(client)  # slow with its second request
        kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in kept.recv(65_536)
        kept.sendall(b"GET /v2")
        for connection in (silent, headless, bodiless, kept):
            answer = everything(connection)
            assert b" 408 " in answer and b'"RequestTimeout"' in answer
        until(lambda: metric(client, 'decompx_requests_total{route="other",status="408"}') == 1, "it is counted")
        begun = time.monotonic()
        try:
            while trickling.recv(1000):
                pass
        except OSError:
            pass
        assert time.monotonic() - begun < 20
        stop.set()


def test_broken_clients_cost_nothing():
    with served() as client:
        for junk in (b"\x00\x01\x02", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n" * 3):
            with raw(client) as connection:
                connection.sendall(junk)
                connection.shutdown(socket.SHUT_WR)
                assert b"Traceback" not in everything(connection)
        with raw(client) as connection:  # goes in the middle of its body
            connection.sendall(b"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        assert ask(client, "still here").status_code == 200


def test_no_more_connections_than_allowed():
    with served(limits={"connections": 3, "receive_s": 30}) as client:
        held = [raw(client) for _ in range(2)]  # and the client's own
        with raw(client) as one_more:
            assert b" 503 " in everything(one_more)
        for connection in held:
            connection.close()

        def free() -> bool:
            with raw(client) as again:
                again.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return b" 200 " in everything(again)

        until(free, "there is room again")


def json_values() -> st.SearchStrategy:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner)
    )


KEYS = ("texts", "model", "options", "words", "details", "on_error", "other")
BODIES = (
    st.binary(max_size=200)
    | json_values().map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(KEYS), json_values()).map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(("bias", "targets", "at", "head", "top_k")), json_values()).map(
        lambda options: json.dumps({"texts": ["a"], "options": options}).encode()
    )
)


def check_body(client: httpx.Client, body: bytes) -> None:
    found = client.post("/v1/explain", content=body, headers={"content-type": "application/json"})
    allowed = (200, 404, 422) if len(body) <= 10_000 else (413,)
    assert found.status_code in allowed, (found.status_code, found.text)
    if found.status_code != 200:
        error_of(found)


@settings(max_examples=60)
@given(body=BODIES)
def test_malformed_bodies_are_refused_in_the_one_form(client, body):
    check_body(client, body)


@pytest.mark.slow
@settings(max_examples=1000)
@given(body=BODIES)
def test_a_thousand_malformed_bodies_are_refused_in_the_one_form(client, body):
    check_body(client, body)
