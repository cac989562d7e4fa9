"""The service as users run it: a process of its own, models of a configuration, a real client over the loopback."""

from __future__ import annotations

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import httpx
import jsonschema
import pytest
import torch
from serving import Command, until

from decompx_fast import DecompX, Explanation
from decompx_fast.serve.page import without_inline_styles

pytestmark = pytest.mark.slow

TEXTS = ["the film is a joy", "a very dull mess of a film", "the acting is sharp"]
CONFIG = """
log_texts = false

[limits]
tokens = 40

[models.small]
path = {model}
workers = 1

[models.nobias]
path = {model}
workers = 1
options = {{ bias = "none" }}
"""


@pytest.fixture(scope="module")
def command(model, tmp_path_factory):
    config = tmp_path_factory.mktemp("serve") / "serve.toml"
    config.write_text(CONFIG.format(model=json.dumps(model)))
    command = Command("--config", str(config))
    try:
        command.event("worker_ready", 2)
        yield command
    finally:
        code = command.end()
    assert code == 0 and [event["event"] for event in command.events][-1] == "ended"


@pytest.fixture(scope="module")
def client(command):
    with command.client() as client:
        yield client


@pytest.fixture(scope="module")
def explainer(model):
    return DecompX.from_pretrained(model)


@pytest.fixture(scope="module")
def schemas(data_dir: Path):
    """Checks a value against a definition of one of the protocols' schemas."""

    def check(protocol: str, name: str, value) -> None:
        schema = json.loads((data_dir / f"{protocol}.json").read_text())
        jsonschema.validate(value, {**schema, "$ref": f"#/$defs/{name}"})

    return check


def same(found: dict, expected: Explanation) -> None:
    """Whether an answer holds an explanation, whole enough to be read back."""
    back = Explanation.from_dict(found)
    assert (back.tokens, back.targets, back.engine) == (expected.tokens, expected.targets, expected.engine)
    torch.testing.assert_close(back.scores, expected.scores, rtol=1e-5, atol=1e-6)
    total = back.totals - back.target_logits.double()
    if expected.options["bias"] != "none":
        assert total.abs().max() <= back.completeness_error + 1e-6


def test_explain_gives_what_the_library_gives(client, explainer):
    texts = [*TEXTS, ["the film", "a mess"]]
    found = client.post("/v1/explain", json={"model": "small", "texts": texts, "options": {"bias": "equal"}})
    assert found.status_code == 200 and found.headers["x-content-type-options"] == "nosniff"
    answer = found.json()
    assert answer["model"] == "small"
    expected = explainer.explain([tuple(one) if isinstance(one, list) else one for one in texts], bias="equal")
    for n, (one, two) in enumerate(zip(answer["explanations"], expected, strict=True)):
        same(one, two)
        assert one["metadata"]["input"] == n


def test_words_details_and_targets(client, explainer):
    body = {"model": "nobias", "texts": TEXTS[:1], "words": True, "details": True, "options": {"targets": 1}}
    (found,) = client.post("/v1/explain", json=body).json()["explanations"]
    same(found, explainer.explain(TEXTS[0], bias="none", targets=1).words())
    assert found["bias_sites"] and found["source_unit"] == "word"


def test_steps_are_a_number_or_as_many_as_it_takes(client, explainer):
    asked = {"targets": 1, "baseline": "remove", "seed": 3}
    for steps in (3, "auto"):
        body = {"model": "small", "texts": TEXTS[:1], "options": {**asked, "steps": steps}}
        (found,) = client.post("/v1/explain", json=body).json()["explanations"]
        expected = explainer.explain(TEXTS[0], steps=steps, **asked)
        same(found, expected)
        assert found["metadata"]["steps"] == expected.metadata["steps"]
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": TEXTS[:1]}
    request = {"inputs": [text], "parameters": {"targets": 1, "baseline": "remove", "seed": 3, "steps": "auto"}}
    (first, *_) = client.post("/v2/models/small/infer", json=request).json()["outputs"]
    same(json.loads(first["data"][0]), expected)


def test_what_the_library_refuses_is_422_with_its_message_and_the_clients_own_number(client):
    long = " ".join(["film"] * 50)
    cases = [
        (["film", " "], {}, "texts.1", "text 1 is an empty text"),
        ([" "], {}, "texts.0", "the text is an empty text"),
        (["film"], {"targets": "NOPE"}, "options", "no class 'NOPE'"),
        (["film"], {"at": "film"}, "options.at", "at="),
        (["film"], {"bias_token_split": "dot"}, "options.bias_token_split", "bias_token_split='dot' needs"),
        (["film", long], {}, "texts.1", "text 1 has 52 tokens, and this service takes 40"),
    ]
    for texts, options, argument, words in cases:
        found = client.post("/v1/explain", json={"model": "small", "texts": texts, "options": options})
        error = found.json()["error"]
        assert (found.status_code, error["argument"]) == (422, argument), error
        assert words in error["message"]


def test_many_clients_at_once_get_their_own_answers(client, explainer):
    texts = [f"{'the film is ' * (1 + n % 4)}{word}" for n, word in enumerate("joy mess hero end bad dull".split() * 5)]
    with ThreadPoolExecutor(10) as threads:

        def ask(text: str) -> dict:
            return client.post("/v1/explain", json={"model": "small", "texts": [text]}).json()["explanations"][0]

        found = list(threads.map(ask, texts))
    for text, one, expected in zip(texts, found, explainer.explain(texts), strict=True):
        assert one["texts"] == [text]
        same(one, expected)


def test_kserve_v1_requests_and_answers_have_the_published_form(client, explainer, schemas):
    schemas("kserve_v1", "models", client.get("/v1/models").json())
    assert client.get("/v1/models").json()["models"] == ["small", "nobias"]
    schemas("kserve_v1", "ready", client.get("/v1/models/small").json())
    request = {"instances": [TEXTS[0], {"text": "film", "text_pair": "joy"}], "parameters": {"bias": "equal"}}
    schemas("kserve_v1", "request", request)
    answer = client.post("/v1/models/small:explain", json=request).json()
    schemas("kserve_v1", "explain_response", answer)
    expected = explainer.explain([TEXTS[0], ("film", "joy")], bias="equal")
    for one, prediction, two in zip(answer["explanations"], answer["predictions"], expected, strict=True):
        same(one, two)
        assert prediction["predicted_label"] == two.predicted_label
    same(client.post("/v1/models/small:explain", json={"inputs": TEXTS[:1]}).json()["explanations"][0],
         explainer(TEXTS[0]))  # fmt: skip
    both = client.post("/v1/models/small:explain", json={"inputs": TEXTS, "instances": TEXTS})
    assert both.status_code == 422 and both.json()["error"]["argument"] == "instances"


def test_open_inference_requests_and_answers_have_the_published_form(client, explainer, schemas):
    def check(name: str, value: dict) -> dict:
        schemas("open_inference_2.0", name, value)
        return value

    check("server_metadata", client.get("/v2").json())
    assert check("live", client.get("/v2/health/live").json())["live"]
    assert check("live", client.get("/v2/health/ready").json())["ready"]
    assert check("model_ready", client.get("/v2/models/small/ready").json())["ready"]
    about = check("model_metadata", client.get("/v2/models/small").json())
    text = {"name": "text", "datatype": "BYTES", "shape": [3, 1], "data": [[one] for one in TEXTS]}
    request = check("infer_request", {"id": "42", "inputs": [text], "parameters": {"bias": "equal", "words": False}})
    answer = check("infer_response", client.post("/v2/models/small/infer", json=request).json())
    assert (answer["id"], answer["model_name"]) == ("42", "small")
    outputs = {one["name"]: one for one in answer["outputs"]}
    assert [(one["name"], one["datatype"]) for one in about["outputs"]] == [
        (one["name"], one["datatype"]) for one in answer["outputs"]
    ]
    shapes, begin = outputs["scores_shape"]["data"], 0
    for n, expected in enumerate(explainer.explain(TEXTS, bias="equal")):
        same(json.loads(outputs["explanation"]["data"][n]), expected)
        k, c = shapes[2 * n : 2 * n + 2]
        scores = torch.tensor(outputs["scores"]["data"][begin : begin + k * c]).reshape(k, c)
        torch.testing.assert_close(scores, expected.scores, rtol=1e-5, atol=1e-6)
        begin += k * c
    assert outputs["scores"]["shape"] == [begin] and outputs["scores_shape"]["shape"] == [3, 2]


def test_open_inference_pairs_chosen_outputs_and_errors(client, explainer, schemas):
    def tensor(name: str, *texts: str, **more) -> dict:
        return {"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": list(texts), **more}

    request = {"inputs": [tensor("text", "film"), tensor("text_pair", "joy")], "outputs": [{"name": "explanation"}]}
    answer = client.post("/v2/models/small/infer", json=request).json()
    assert [one["name"] for one in answer["outputs"]] == ["explanation"] and "id" not in answer
    same(json.loads(answer["outputs"][0]["data"][0]), explainer(("film", "joy")))
    wrong = [
        ({"inputs": [tensor("texts", "film")]}, 422, "'text'"),
        ({"inputs": [tensor("text", "film", shape=[2])]}, 422, "its shape says 2"),
        ({"inputs": [tensor("text", "film", datatype="FP32")]}, 422, "BYTES"),
        ({"inputs": [tensor("text", "film", data=[1])]}, 422, "texts"),
        ({"inputs": [tensor("text", "a", "b"), tensor("text_pair", "a")]}, 422, "differ"),
        ({"inputs": [tensor("text", "film")], "outputs": [{"name": "logits"}]}, 422, "explanation"),
        ({"inputs": [tensor("text", "film")], "parameters": {"bias": "x"}}, 422, "parameters.bias"),
        ({"inputs": [tensor("text", "film")], "parameters": {"words": "yes"}}, 422, "parameters.words"),
        ({"inputs": []}, 422, "inputs"),
    ]
    for body, status, words in wrong:
        found = client.post("/v2/models/small/infer", json=body)
        assert found.status_code == status and words in found.json()["error"], (body, found.text)
        schemas("open_inference_2.0", "error", found.json())
    for path in ("/v2/models/other", "/v2/models/other/ready", "/v2/nothing"):
        found = client.get(path)
        assert found.status_code == 404
        schemas("open_inference_2.0", "error", found.json())


def test_openapi_description_is_whole_and_names_every_route(client):
    found = client.get("/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    paths = {"/v1/explain", "/v1/models", "/v1/models/{name}", "/v1/models/{name}:explain", "/metrics", "/v2"}
    paths |= {"/v2/health/live", "/v2/health/ready", "/v2/models/{name}", "/v2/models/{name}/ready"}
    assert set(found["paths"]) == {*paths, "/v2/models/{name}/infer"}
    schemas = found["components"]["schemas"]
    for name, schema in schemas.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)):
            assert reference in schemas, (name, reference)
    example = schemas["ExplainRequest"]["examples"][0]
    jsonschema.validate(example, {**schemas["ExplainRequest"], "components": found["components"]})


class _Page(HTMLParser):
    """What a page holds that could load, run or style something."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.nonces: list[str | None] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag == "style":
            self.nonces.append(dict(attributes).get("nonce"))

    def handle_data(self, data):
        self.text += data


def test_page_shows_what_was_typed_escaped_and_by_a_strict_policy(client):
    empty = client.get("/")
    typed = '<script>alert(1)</script> "film" style="x" <style>joy</style> &amp; </textarea>'
    found = client.post("/", data={"text": typed, "model": "small", "bias": "equal"})
    assert found.status_code == 200 and "Sum" in found.text
    for answer in (empty, found):
        page, policy = _Page(answer.text), answer.headers["content-security-policy"]
        nonce = re.search(r"'nonce-([^']+)'", policy)[1]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
        assert page.nonces and set(page.nonces) == {nonce}
        assert not {"script", "iframe", "img", "object", "base"} & set(page.tags)
        names = {name for name, _ in page.attributes}
        assert "style" not in names and "src" not in names and not any(name.startswith("on") for name in names)
        assert [value for name, value in page.attributes if name == "href"] == ["data:,"]
    assert empty.headers["content-security-policy"] != found.headers["content-security-policy"]
    page = _Page(found.text)
    assert page.text.count("<script>alert(1)</script>") == 2  # in the form again, and in the explanation
    assert client.post("/", data={"text": "film", "words": "1", "model": "nobias"}).status_code == 200


def test_page_says_what_is_wrong(client):
    for form, status, words in [
        ({"text": " "}, 422, "type one"),
        ({"text": "film", "model": "<b>x"}, 404, "no such model"),
        ({"text": "film", "model": "small", "bias": "x"}, 422, "bias"),
        ({"text": "film " * 60, "model": "small"}, 422, "62 tokens"),
        ({f"a{n}": "x" for n in range(20)}, 422, "form"),
    ]:
        found = client.post("/", data=form)
        assert found.status_code == status and words in _Page(found.text).text, found.text
        assert "<b>x" not in found.text


def test_inline_styles_become_marks_that_stand_for_the_same():
    fragment, styles = without_inline_styles('<a style="--a:1">x</a><b style="--a:2"></b><i style="--a:1"></i>')
    assert fragment == '<a data-dx-style="0">x</a><b data-dx-style="1"></b><i data-dx-style="0"></i>'
    assert styles == [("0", "--a:1"), ("1", "--a:2")]


def test_log_has_a_line_for_each_request_and_no_text(command, client):
    secret = "joy hero"
    found = client.post("/v1/explain", json={"model": "small", "texts": [secret]}, headers={"x-request-id": "mine-1"})
    assert found.headers["x-request-id"] == "mine-1"
    client.post("/", data={"text": secret, "model": "nothing"})
    client.get(f"/{secret.replace(' ', '-')}")

    def line() -> dict | None:
        return next((event for event in command.events if event.get("request_id") == "mine-1"), None)

    event = until(line, "it is in the log")
    assert {"route": "/v1/explain", "status": 200, "model": "small", "texts": 1, "tokens": 4}.items() <= event.items()
    assert event["time_ms"] > 0
    assert all(line.startswith("{") for line in command.lines), command.lines
    assert "joy" not in "".join(command.lines)


def test_process_that_is_killed_is_replaced_and_the_service_answers_again(command, client, explainer):
    first = [event for event in command.events if event["event"] == "worker_ready" and event["model"] == "nobias"][-1]
    ready = sum(event["event"] == "worker_ready" for event in command.events)
    os.kill(first["pid"], signal.SIGKILL)
    other = client.post("/v1/explain", json={"model": "small", "texts": TEXTS[:1]})
    assert other.status_code == 200  # each model has processes of its own
    command.event("worker_ready", ready + 1)
    (found,) = client.post("/v1/explain", json={"model": "nobias", "texts": TEXTS[:1]}).json()["explanations"]
    same(found, explainer(TEXTS[0], bias="none"))
    ended = [event for event in command.events if event["event"] == "worker_ended"]
    assert ended[-1]["how"] == "signal 9" and ended[-1]["model"] == "nobias"


def test_sigterm_finishes_what_is_in_flight_and_takes_nothing_new(model):
    command = Command("--model", model, "--workers", "1")
    try:
        command.event("worker_ready")
        with command.client() as client, ThreadPoolExecutor(1) as threads:
            texts = [" ".join(["film"] * n) for n in range(1, 14)]
            options = {"check": "thorough"}
            running = threads.submit(client.post, "/v1/explain", json={"texts": texts, "options": options})
            until(lambda: "decompx_requests_in_flight 2.0" in client.get("/metrics").text, "it is in flight")
            code = command.end(signal.SIGTERM)
            found = running.result()
            assert found.status_code == 200 and len(found.json()["explanations"]) == len(texts)
            assert code == 0
            with pytest.raises(httpx.ConnectError):
                httpx.get(client.base_url.join("/v2"), trust_env=False)
    finally:
        command.end(signal.SIGKILL)


def test_model_that_cannot_be_loaded_ends_the_service_with_its_message(tmp_path):
    command = Command("--model", str(tmp_path / "nothing"))
    assert command.end(0) == 1
    assert "nothing" in command.lines[-1] and command.lines[-1].startswith("decompx-fast: ")
