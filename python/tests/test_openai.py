"""OpenAI's protocol, of a small language model on the emulated GPU: whole answers and streams, many at once, and what is refused."""

import http.client
import json
import threading

import numpy
import pytest
import rekindle as package
from conftest import APPS, Deployer, begun
from harness import PATIENCE

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
TEXT = "bcdefghijklmnopqrstuvwxyz雨!"


@pytest.fixture(scope="module")
def model():
    """Its port, and its Rekindle."""
    with begun() as rekindle:
        (row,) = Deployer(rekindle)(APPS / "bigram.py")["services"]
        yield row["port"], rekindle


@pytest.fixture
def port(model):
    return model[0]


def connect(port, path, **fields):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", path, json.dumps({"model": "bigram", **fields}), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def ask(port, path, status=200, **fields):
    connection, answer = connect(port, path, **fields)
    said = answer.read()
    connection.close()
    assert answer.status == status, said
    return json.loads(said)


def complete(port, prompt="a", **fields):
    (choice,) = ask(port, COMPLETIONS, prompt=prompt, **{"temperature": 0, "max_tokens": 100, **fields})["choices"]
    return choice


def events(answer):
    """What a stream says, as it comes."""
    while line := answer.readline():
        if line.strip():
            assert line.startswith(b"data: "), line
            said = line.removeprefix(b"data: ").strip()
            yield said.decode() if said == b"[DONE]" else json.loads(said)


def stream(port, path, **fields):
    connection, answer = connect(port, path, stream=True, **fields)
    assert answer.status == 200 and answer.getheader("Content-Type").startswith("text/event-stream")
    *rows, last = events(answer)
    connection.close()
    assert last == "[DONE]"
    return rows


def test_a_text_is_completed(port):
    answer = ask(port, COMPLETIONS, prompt="a", temperature=0, max_tokens=100)
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-") and answer["model"] == "bigram"
    assert answer["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]
    # The end is a token, too.
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 30, "total_tokens": 31}
    assert complete(port, [97, 98], max_tokens=3) == {"index": 0, "text": "cde", "logprobs": None, "finish_reason": "length"}
    assert complete(port, ["ab"], max_tokens=1)["text"] == complete(port, [[97, 98]], max_tokens=1)["text"] == "c"
    assert ask(port, COMPLETIONS, prompt="a", temperature=0)["usage"]["completion_tokens"] == 16
    # A character that is not whole when the answer ends.
    assert complete(port, "y", max_tokens=3)["text"] == "z\ufffd"


def test_a_conversation_goes_on(port):
    messages = [{"role": "system", "content": "say it"}, {"role": "user", "content": [{"type": "text", "text": "now"}]}]
    answer = ask(port, CHATS, messages=messages, temperature=0)
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": f"a{TEXT}", "refusal": None} and choice["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == len("system: say it\nuser: now\nassistant: ")
    assert ask(port, CHATS, messages=messages, max_completion_tokens=2, temperature=0)["choices"][0]["message"]["content"] == "ab"


def test_it_ends_where_it_is_told(port):
    assert complete(port, stop="def") == {"index": 0, "text": "bc", "logprobs": None, "finish_reason": "stop"}
    assert complete(port, stop=["nowhere", "xyz", "hij"])["text"] == "bcdefg"
    # What might have been the beginning of one is there in the end.
    assert complete(port, stop="!!")["text"] == TEXT and complete(port, stop="雨!")["text"] == TEXT[:-2]
    rows = stream(port, COMPLETIONS, prompt="a", temperature=0, max_tokens=100, stop=["xyz"])
    texts = [row["choices"][0]["text"] for row in rows]
    assert "".join(texts) == "bcdefghijklmnopqrstuvw" and texts[0] == "b" and rows[-1]["choices"][0]["finish_reason"] == "stop"
    assert {row["choices"][0]["finish_reason"] for row in rows[:-1]} == {None}


def test_the_same_seed_says_the_same(port):
    said = lambda **fields: complete(port, "0", **{"temperature": 2, "max_tokens": 40, **fields})["text"]
    assert said(seed=5) == said(seed=5)
    assert len({said(seed=seed) for seed in range(8)}) == 8 and len({said() for _ in range(8)}) == 8
    # The likeliest alone are left.
    assert said(top_p=0.0001) == said(temperature=0) == ("1234567890" * 4)
    assert said(seed=3, top_p=0.15) == said(temperature=0)


def test_it_says_how_likely_each_token_was(port):
    (choice,) = ask(port, COMPLETIONS, prompt="a", temperature=0, max_tokens=3, logprobs=2)["choices"]
    assert choice["logprobs"]["tokens"] == ["b", "c", "d"] and choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert all(list(row) == [token, "?"] for row, token in zip(choice["logprobs"]["top_logprobs"], "bcd", strict=True))
    likely = choice["logprobs"]["token_logprobs"][0]
    assert likely == pytest.approx(choice["logprobs"]["top_logprobs"][0]["?"] + 3) and -0.2 < likely < 0
    asked = {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 2, "logprobs": True, "top_logprobs": 1}
    (choice,) = ask(port, CHATS, **asked)["choices"]
    first = choice["logprobs"]["content"][0]
    assert first["token"] == "a" and first["bytes"] == [97] and first["top_logprobs"][0]["token"] == "a"
    rows = stream(port, CHATS, **asked)
    assert [row["choices"][0]["logprobs"]["content"][0]["token"] for row in rows[1:]] == ["a", "b"]


def test_an_answer_comes_as_it_is_made(port):
    rows = stream(port, COMPLETIONS, prompt="a", temperature=0, max_tokens=100, stream_options={"include_usage": True})
    texts = [row["choices"][0]["text"] for row in rows[:-1]]
    assert "".join(texts) == TEXT and [text for text in texts if text] == list(TEXT)
    assert rows[-1]["choices"] == [] and rows[-1]["usage"]["completion_tokens"] == 30 and rows[0]["usage"] is None
    assert len({row["id"] for row in rows}) == 1
    rows = stream(port, CHATS, messages=[{"role": "user", "content": "x"}], temperature=0, max_tokens=4)
    assert rows[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""} and rows[0]["object"] == "chat.completion.chunk"
    assert [row["choices"][0]["delta"] for row in rows[1:]] == [{"content": letter} for letter in "abcd"]
    assert rows[-1]["choices"][0]["finish_reason"] == "length"
    # Nothing keeps a part of it back: this one has no end.
    connection, answer = connect(port, COMPLETIONS, prompt="0", temperature=0, max_tokens=90000, stream=True)
    found = events(answer)
    assert [next(found)["choices"][0]["text"] for _ in range(20)] == list("1234567890" * 2)
    connection.close()


def test_a_client_that_goes_away_leaves_its_place(model):
    port, rekindle = model
    state = package.Cls.from_name("bigram", "Model")().state
    rekindle.wait(lambda: state.remote()[0] == [], "those before to be gone")
    streams = [connect(port, COMPLETIONS, prompt="0", temperature=0, max_tokens=90000, stream=True) for _ in range(3)]
    for _, answer in streams:
        assert next(events(answer))["choices"][0]["text"] == "1"
    # And one that is to have its answer whole.
    silent = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    silent.request("POST", COMPLETIONS, json.dumps({"model": "bigram", "prompt": "0", "max_tokens": 90000, "temperature": 0}))
    rekindle.wait(lambda: len(state.remote()[0]) == 4, "all four to be under way")
    # The next one waits for a place.
    waiting = threading.Thread(target=complete, args=(port,))
    waiting.start()
    silent.close()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    for connection, answer in streams:
        answer.close()
        connection.close()
    rekindle.wait(lambda: state.remote()[0] == [], "their sequences to end")
    assert complete(port)["text"] == TEXT


def test_many_are_computed_together(model):
    port, _ = model
    prompts = "".join(TEXT[at] for at in range(20))
    found = {}

    def one(letter, as_stream):
        asked = {"prompt": letter, "temperature": 0, "max_tokens": 100}
        if as_stream:
            found[letter] = "".join(row["choices"][0]["text"] for row in stream(port, COMPLETIONS, **asked))
        else:
            found[letter] = complete(port, **asked)["text"]

    threads = [threading.Thread(target=one, args=(letter, at % 2)) for at, letter in enumerate(prompts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == {letter: TEXT[at + 1 :] for at, letter in enumerate(prompts)}
    active, widest, _ = package.Cls.from_name("bigram", "Model")().state.remote()
    assert widest == 4 and len(active) <= 4


def wrong(port, path, sentence, status=400, kind="invalid_request_error", **fields):
    error = ask(port, path, status, **fields)["error"]
    assert sentence in error["message"] and error["type"] == kind, error
    return error


REFUSED = [
    ({}, "neither a text nor a list of tokens"),
    ({"prompt": ""}, "the prompt is empty"),
    ({"prompt": ["a", "b"]}, "one of them, and one alone"),
    ({"prompt": [257]}, "not from 0 to 256"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens is 0; give a whole number of 1 or more"),
    ({"prompt": "a", "max_tokens": "7"}, "max_tokens is '7'"),
    ({"prompt": "a", "temperature": 3}, "temperature is 3; give a number from 0 to 2"),
    ({"prompt": "a", "top_p": -1}, "top_p is -1"),
    ({"prompt": "a", "n": 2}, "n is 2, which is not supported"),
    ({"prompt": "a", "echo": True}, "echo is True"),
    ({"prompt": "a", "logit_bias": {"97": 1}}, "logit_bias"),
    ({"prompt": "a", "stop": ["a"] * 5}, "a list of up to 4"),
    ({"prompt": "a", "stop": [""]}, "stop is ['']"),
    ({"prompt": "a", "seed": 1.5}, "seed is 1.5"),
    ({"prompt": "a", "stream": "yes"}, "stream is 'yes'"),
    ({"prompt": "a", "logprobs": 6}, "logprobs is 6; give a whole number from 0 to 5"),
]


def test_what_is_wrong_is_said_as_clients_expect_it(model):
    port, rekindle = model
    for fields, sentence in REFUSED:
        wrong(port, COMPLETIONS, sentence, **fields)
        if "prompt" in fields:
            # Before a stream begins, too.
            wrong(port, COMPLETIONS, sentence.replace("stream is 'yes'", ""), **({"stream": True} | fields))
    assert wrong(port, COMPLETIONS, "there is no model 'gpt'", 404, model="gpt", prompt="a")["code"] == "model_not_found"
    error = wrong(port, COMPLETIONS, "100000 tokens, of which the prompt takes 99999", prompt="a" * 99999, max_tokens=2)
    assert error["code"] == "context_length_exceeded" and error["param"] == "max_tokens"
    user = [{"role": "user", "content": "x"}]
    wrong(port, CHATS, "no list of messages", messages=[])
    wrong(port, CHATS, "is no message", messages=["x"])
    wrong(port, CHATS, "is no text", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}])
    wrong(port, CHATS, "tools is", messages=user, tools=[{"type": "function"}])
    wrong(port, CHATS, "response_format is", messages=user, response_format={"type": "json_object"})
    wrong(port, CHATS, "say `logprobs: true` too", messages=user, top_logprobs=1)
    wrong(port, "/v1/embeddings", "there are /v1/completions", 404)
    # What the engine fails at: one prompt, and a step of all that are under way.
    for is_stream in (False, True):
        wrong(port, COMPLETIONS, "MemoryError: no room for this prompt", 500, "server_error", prompt="fail", stream=is_stream)
    wrong(port, COMPLETIONS, "ArithmeticError: this step cannot be", 500, "server_error", prompt="break", temperature=0)
    # A stream that has begun ends with the error.
    connection, answer = connect(port, COMPLETIONS, prompt="break a", temperature=0, stream=True)
    *_, last = events(answer)
    assert "this step cannot be" in last["error"]["message"] and last["error"]["type"] == "server_error"
    connection.close()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    for method, path, body, status in (("GET", COMPLETIONS, None, 405), ("POST", COMPLETIONS, "{", 400), ("POST", CHATS, "[]", 400)):
        connection.request(method, path, body)
        answer = connection.getresponse()
        assert answer.status == status and json.loads(answer.read())["error"]["type"] == "invalid_request_error"
    for path, key in (("/v1/models", "data"), ("/v1/models/bigram", "id")):
        connection.request("GET", path)
        assert json.loads(connection.getresponse().read())[key]
    connection.close()
    assert complete(port)["text"] == TEXT


MISSING = """
from rekindle.inference import ByteTokenizer

class Engine:
    slots, context, tokenizer = 2, 100, ByteTokenizer()

    def __init__(self, data):
        self.data = data

    def begin(self, slot, tokens):
        return self.data.load().wait().copy_to_host()

    def advance(self, tokens):
        return {slot: self.begin(slot, []) for slot in tokens}

    def end(self, slot):
        pass

@app.cls(gpu="emulated", concurrency=4, data={"weights": rekindle.Data(URL, dtype="float32", shape=257)})
class Model:
    @rekindle.asgi_app()
    def serve(self):
        return rekindle.openai_app(Engine(self.weights), name="bigram")
"""


def test_weights_that_cannot_be_had_are_said_and_asked_for_anew(rekindle, deploy):
    place = rekindle.root / "weights"
    (row,) = deploy.app("missing", f"URL = {place.as_uri()!r}\n{MISSING}")["services"]
    error = ask(row["port"], COMPLETIONS, 503, prompt="a")["error"]
    assert str(place) in error["message"] and error["type"] == "server_error"
    logits = numpy.zeros(257, "<f4")
    logits[ord("x")] = 9
    place.write_bytes(logits.tobytes())
    assert complete(row["port"], max_tokens=3)["text"] == "xxx"
