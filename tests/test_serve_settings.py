"""The settings of a service, its queue by itself, and its command's wrong uses."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import until

from decompx_fast import cli
from decompx_fast.config import DecompXConfig
from decompx_fast.errors import InputError, OptionError
from decompx_fast.serve.messages import Outcome, Wanted
from decompx_fast.serve.schemas import Options
from decompx_fast.serve.settings import KEY_VARIABLE, Settings, read_settings
from decompx_fast.serve.waiting import QueueFull, Waiter, WaitingTexts


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    return path


def test_settings_of_a_file_and_of_the_command(tmp_path, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    (tmp_path / "key").write_text("a long secret\n")
    path = written(
        tmp_path,
        f"""
port = 9000
api_key_file = "{tmp_path / "key"}"
[limits]
queue = 7
[models.a]
path = "somewhere"
device = ["cuda:0", "cuda:1"]
[models.b]
options = {{ bias = "equal", at = [[0, 4]] }}
""",
    )
    found = read_settings(path, port=9001, host=None)
    assert (found.port, found.host, found.limits.queue, list(found.models)) == (9001, "127.0.0.1", 7, ["a", "b"])
    assert found.workers_of("a") == 2 and found.models["a"].devices == ("cuda:0", "cuda:1")
    assert found.workers_of("b") >= 1
    assert found.models["b"].options.arguments() == {"bias": "equal", "at": [(0, 4)]}
    assert found.api_key.get_secret_value() == "a long secret" and "secret" not in repr(found)
    monkeypatch.setenv(KEY_VARIABLE, "another secret")
    assert read_settings(None, models={"demo": {}}).api_key.get_secret_value() == "another secret"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models = 3", "models=3"),
        ("[models]", "models="),
        ("[models.'a/../b']", "String should match pattern"),
        ("[models.a]\npth = 'x'", "models.a.pth='x'"),
        ("[models.a]\nworkers = 0", "models.a.workers=0"),
        ("[models.a]\nworkers = true", "models.a.workers=True"),
        ("[models.a.options]\nbias = 'x'", "models.a.options.bias='x'"),
        ("port = 70000\n[models.a]", "port=70000"),
        ("[limits]\nqueue = -1\n[models.a]", "limits.queue=-1"),
        ("[limits]\ntimeout_s = 0\n[models.a]", "limits.timeout_s=0"),
        ("api_key = 'a long secret'\n[models.a]", "api_key_file"),
        ("api_key_file = '/nowhere'\n[models.a]", "api_key_file='/nowhere' cannot be read"),
        ("a = [", "is no TOML"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(tmp_path, text, words):
    with pytest.raises(InputError) as found:
        read_settings(written(tmp_path, text))
    assert words in str(found.value)


def test_keys_that_protect_nothing_are_refused(tmp_path):
    for key, words in (("short", "8 characters"), ("a secret \u00e9", "ASCII")):
        with pytest.raises(OptionError) as found:
            read_settings(None, models={"demo": {}}, api_key=key)
        assert words in str(found.value) and key not in str(found.value)


def test_hosts_are_those_of_the_loopback_unless_it_is_not_bound_there():
    assert "localhost" in Settings(models={"a": {}}).allowed_hosts
    assert Settings(models={"a": {}}, host="0.0.0.0").allowed_hosts == ()
    assert Settings(models={"a": {}}, hosts=["my.example"]).allowed_hosts == ("my.example",)


def test_options_of_requests_are_those_of_the_method_but_for_what_has_no_place_in_an_answer():
    method = set(DecompXConfig().to_dict()) - {"stages", "stage_output"}
    assert method <= set(Options.model_fields)
    assert not {"path", "backend", "workspace_bytes", "device", "batch_size", "ids"} & set(Options.model_fields)


def waiter(text: str, key: str = "", seconds: float = 60) -> Waiter:
    return Waiter(Wanted(text, 0, True), key, {}, time.monotonic() + seconds)


def texts(batch: list[Waiter]) -> list[str]:
    return [one.wanted.text for one in batch]


def test_queue_gives_out_the_oldest_and_what_is_about_as_long():
    queue = WaitingTexts(10, batch=3, batch_characters=1000)
    sizes = ((10, "a"), (90, "a"), (11, "b"), (12, "a"), (8, "a"), (16, "a"), (100, "a"))
    queue.put([waiter("x" * n, key) for n, key in sizes])
    assert [len(text) for text in texts(queue.take(0))] == [8, 10, 12]
    assert [len(text) for text in texts(queue.take(0))] == [90, 100]
    assert [len(text) for text in texts(queue.take(0))] == [11]
    assert [len(text) for text in texts(queue.take(0))] == [16]
    assert queue.take(0) == []


def test_what_waits_is_shared_by_all_that_are_free():
    queue = WaitingTexts(10, batch=8, batch_characters=1000)
    with ThreadPoolExecutor(2) as threads:
        taken = [threads.submit(queue.take, 30) for _ in range(2)]
        until(lambda: queue._takers == 2, "both wait")
        queue.put([waiter("x") for _ in range(6)])
        sizes = sorted(len(one.result()) for one in taken)
    assert sizes == [3, 3]


def test_queue_gives_out_no_more_characters_than_asked_for_unless_one_text_has_them():
    queue = WaitingTexts(10, batch=8, batch_characters=25)
    queue.put([waiter("x" * n) for n in (100, 10, 10, 10)])
    assert [len(queue.take(0)) for _ in range(3)] == [1, 2, 1]


def test_queue_is_bounded_and_takes_all_of_a_request_or_nothing():
    queue = WaitingTexts(3, batch=8, batch_characters=1000)
    queue.put([waiter("a"), waiter("b")])
    with pytest.raises(QueueFull) as found:
        queue.put([waiter("c"), waiter("d")])
    assert found.value.retry_s >= 1 and len(queue) == 2
    queue.put([waiter("c")])
    assert texts(queue.take(0)) == ["a", "b", "c"]


def test_queue_drops_what_nobody_waits_for():
    dropped = []
    queue = WaitingTexts(3, batch=8, batch_characters=1000, dropped=dropped.append)
    gone, late, kept = waiter("gone"), waiter("late", seconds=-1), waiter("kept")
    queue.put([gone, late, kept])
    gone.future.cancel()
    queue.put([waiter("more"), waiter("still more")])  # there is room where they were
    assert texts(queue.take(0)) == ["kept", "more", "still more"] and sum(dropped) == 2
    gone.answer(Outcome())  # nobody is told


def run(capsys, *arguments: str) -> tuple[int, str]:
    code = cli.main(["serve", *arguments])
    return code, capsys.readouterr().err


def test_wrong_uses_of_the_command(capsys, tmp_path):
    config = str(written(tmp_path, "[models.a]"))
    for arguments, code, words in [
        (["--config", config, "--model", "x"], 2, "--config has all"),
        (["--task", "fill-mask"], 2, "--model PATH"),
        (["--config", "/nowhere.toml"], 1, "/nowhere.toml"),
        (["--port", "70000"], 2, "--port"),
        (["--workers", "0"], 2, "--workers"),
        (["--api-key-file", "/nowhere"], 1, "/nowhere"),
        (["--host", "203.0.113.7"], 1, "cannot be listened on"),
    ]:
        found, said = run(capsys, *arguments)
        assert found == code and words in said, (arguments, said)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found, said = run(capsys, "--port", str(taken.getsockname()[1]))
        assert found == 1 and "cannot be listened on" in said
