"""The protocols as their own clients speak them: Triton's, and OpenAI's."""

import asyncio

import ml_dtypes
import numpy
import openai
import pytest
import tritonclient.http
from conftest import APPS, Deployer, begun
from harness import PATIENCE
from test_inference import DATATYPES, SOURCE
from test_openai import TEXT


@pytest.fixture(scope="module")
def ports():
    with begun() as rekindle:
        deployer = Deployer(rekindle)
        rows = [*deployer.app("models", SOURCE)["services"], *deployer(APPS / "bigram.py")["services"]]
        yield {row["name"]: row["port"] for row in rows}


def given(name, array, datatype, is_binary):
    one = tritonclient.http.InferInput(name, list(array.shape), datatype)
    one.set_data_from_numpy(array, binary_data=is_binary)
    return one


@pytest.mark.parametrize("is_binary", [True, False])
def test_triton_s_client_infers(ports, is_binary):
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports['Batches']}", network_timeout=PATIENCE)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("mixer")
    assert client.get_model_metadata("mixer")["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, 3]}
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    a, b = numpy.arange(12, dtype="float32").reshape(4, 3), numpy.ones((4, 3), "float32")
    inputs = [given("a", a, "FP32", is_binary), given("b", b, "FP32", is_binary)]
    outputs = [tritonclient.http.InferRequestedOutput("mixed", binary_data=is_binary)]
    found = client.infer("mixer", inputs, outputs=outputs, request_id="7")
    assert numpy.array_equal(found.as_numpy("mixed"), 2 * a + b) and found.get_response()["id"] == "7"
    assert numpy.array_equal(client.infer("mixer", inputs).as_numpy("mixed"), 2 * a + b)
    with pytest.raises(tritonclient.utils.InferenceServerException, match="'b' is missing"):
        client.infer("mixer", inputs[:1])
    with pytest.raises(tritonclient.utils.InferenceServerException, match="no model 'other'"):
        client.infer("other", inputs)
    client.close()


def test_triton_s_client_has_every_type(ports):
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports['Types']}", network_timeout=PATIENCE)
    arrays = {name: numpy.array([0, 1, 2], name) for name in DATATYPES if name not in ("bytes", "bfloat16")}
    arrays |= {"bytes": numpy.array([b"", "雨".encode(), b"\xff"], object), "bfloat16": numpy.array([1, -0.5, 3], ml_dtypes.bfloat16)}
    found = client.infer("types", [given(name, arrays[name], DATATYPES[name], True) for name in DATATYPES])
    for name, array in arrays.items():
        assert numpy.array_equal(found.as_numpy(name), array), name
    client.close()


@pytest.fixture
def client(ports):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{ports['Model']}/v1", api_key="none", timeout=PATIENCE, max_retries=0) as one:
        yield one


def test_openai_s_client_completes(client):
    assert [one.id for one in client.models.list()] == ["bigram"] and client.models.retrieve("bigram").owned_by == "rekindle"
    found = client.completions.create(model="bigram", prompt="a", temperature=0, max_tokens=100, logprobs=1)
    assert found.choices[0].text == TEXT and found.choices[0].finish_reason == "stop" and found.usage.completion_tokens == 30
    assert found.choices[0].logprobs.tokens[0] == "b"
    pieces = client.completions.create(model="bigram", prompt="a", temperature=0, max_tokens=100, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == TEXT


def test_openai_s_client_chats(client):
    messages = [{"role": "user", "content": "go on"}]
    found = client.chat.completions.create(model="bigram", messages=messages, temperature=0, logprobs=True, top_logprobs=2)
    assert found.choices[0].message.content == f"a{TEXT}" and found.choices[0].logprobs.content[0].top_logprobs[1].token == "?"
    options = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "stop": ["雨"]}
    *pieces, last = client.chat.completions.create(model="bigram", messages=messages, **options)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == f"a{TEXT[:-2]}"
    assert pieces[-1].choices[0].finish_reason == "stop" and last.choices == [] and last.usage.prompt_tokens > 0


def test_openai_s_client_knows_what_is_wrong(client):
    with pytest.raises(openai.NotFoundError) as failed:
        client.completions.create(model="gpt", prompt="a")
    assert failed.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as failed:
        client.completions.create(model="bigram", prompt="a", temperature=7)
    assert failed.value.param == "temperature" and failed.value.type == "invalid_request_error"
    with pytest.raises(openai.InternalServerError, match="no room for this prompt"):
        client.completions.create(model="bigram", prompt="fail")
    with pytest.raises(openai.APIError, match="this step cannot be"):
        list(client.completions.create(model="bigram", prompt="break a", temperature=0, stream=True))


def test_many_of_openai_s_clients_are_answered_at_once(ports):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{ports['Model']}/v1", api_key="none", timeout=PATIENCE, max_retries=0) as client:
            asked = [client.completions.create(model="bigram", prompt=letter, temperature=0, max_tokens=100) for letter in TEXT[:24]]
            return [found.choices[0].text for found in await asyncio.gather(*asked)]

    assert asyncio.run(all_of_them()) == [TEXT[at + 1 :] for at in range(24)]
