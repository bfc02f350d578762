"""Where declared data comes from: S3, HTTP, and stores that fail."""

import contextlib
import subprocess
import sys
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
import numpy
import pytest
import rekindle as package
from harness import free_port
from nodes import expected, node_with, numbers
from store import Store

# By these the machine that tests run on may have some of its own.
SOURCES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
SOURCES += ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_NAME")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@contextlib.contextmanager
def s3(log):
    """A server that speaks S3, by a client of it. What it is asked stands in the log."""
    port = free_port()
    with log.open("w") as output:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=output, stderr=output)
        try:
            client = boto3.client(
                "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id="tests", aws_secret_access_key="secret"
            )
            while server.poll() is None:
                with contextlib.suppress(botocore.exceptions.EndpointConnectionError):
                    client.create_bucket(Bucket="bucket")
                    break
            yield client
        finally:
            server.kill()
            server.wait()


def test_objects_of_s3_are_fetched_once_for_all_instances(tmp_path):
    array = numbers(1)
    with s3(tmp_path / "log") as client, node_with(AWS_ENDPOINT_URL=client.meta.endpoint_url, **CREDENTIALS) as node:
        client.put_object(Bucket="bucket", Key="models/numbers", Body=array.tobytes())
        sums = node.deploy("s3://bucket/models/numbers")
        assert sums.total.remote() == expected(array)
        node.end_instance()
        assert numpy.array_equal(sums.array.remote(), array)
        # One request for each piece of 8 MB.
        assert (tmp_path / "log").read_text().count("GET /bucket/models/numbers") == 3
        client.put_object(Bucket="bucket", Key="models/numbers", Body=numbers(2).tobytes())
        node.end_instance()
        assert sums.total.remote() == expected(numbers(2))
        node.deploy("s3://bucket/models/others")
        with pytest.raises(package.DataNotFoundError, match="^s3://bucket/models/others is not there"):
            sums.total.remote()


AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "tests", "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0"}
# By URLs: what is asked for, with what the environment says beside the endpoint, and as whom.
CLOUDS = {
    "gs://bucket/models/numbers": ("GOOGLE_BASE_URL", {"GOOGLE_BEARER_TOKEN": "tests"}, "Bearer tests"),
    "az://bucket/models/numbers": ("AZURE_STORAGE_ENDPOINT", AZURE, "SharedKey tests"),
    "abfs://bucket/models/numbers": ("AZURE_STORAGE_ENDPOINT", AZURE, "SharedKey tests"),
}


@contextlib.contextmanager
def cloud(url, **environment):
    """Of the cloud that the URL is of: a server, the object's path there, and a node that asks it."""
    endpoint, credentials, client = CLOUDS[url]
    with Store() as store, node_with(**{endpoint: store.url}, **credentials, **environment) as node:
        yield store, f"/{urlsplit(url).netloc}{urlsplit(url).path}", node
        assert store.clients == {client}


@pytest.mark.parametrize("url", CLOUDS)
def test_objects_of_other_clouds_are_fetched_once_in_ranges_of_one_version(url):
    array = numbers(11)
    with cloud(url) as (store, path, node):
        # What is not there is not fetched ahead.
        sums = node.deploy(url)
        store.objects[path] = array.tobytes()
        store.failures = ["cut", 503]
        assert sums.total.remote() == expected(array)
        node.end_instance()
        assert numpy.array_equal(sums.array.remote(), array)
        assert node.fetched() == 1
        # Three pieces, and the rest of the one that was cut off.
        assert {asked for asked, _ in store.asked} == {path} and len(store.asked) == 4
        store.objects[path] = numbers(12).tobytes()
        node.end_instance()
        assert sums.total.remote() == expected(numbers(12))
        del store.objects[path]
        node.end_instance()
        with pytest.raises(package.DataNotFoundError, match=f"^{url} is not there"):
            sums.total.remote()


@pytest.mark.parametrize("url", CLOUDS)
def test_an_object_of_another_cloud_that_becomes_another_one_is_refused_by_its_tag(url):
    with cloud(url, REKINDLE_FAULT="data-piece:hang") as (store, path, node):
        store.objects[path] = numbers(13).tobytes()
        call = node.waiting(node.deploy(url))
        store.objects[path] = numbers(14).tobytes()
        node.rekindle.let_go("data-piece")
        with pytest.raises(package.DataChangedError):
            call.get(timeout=60)


def test_a_store_that_fails_for_a_while_is_asked_again():
    array = numbers(3)
    with Store() as store, node_with() as node:
        # What is not there is not fetched ahead.
        sums = node.deploy(f"{store.url}/numbers")
        store.objects["/numbers"] = array.tobytes()
        store.failures = [503, "cut", 500, "cut"]
        assert sums.total.remote() == expected(array)
        assert not store.failures and node.fetched() == 1


def test_a_store_that_goes_on_failing_is_told_of():
    array = numbers(4)
    with Store() as store, node_with(REKINDLE_DATA_PATIENCE="1") as node:
        # What is not there is not fetched ahead.
        sums = node.deploy(f"{store.url}/numbers")
        store.objects["/numbers"] = array.tobytes()
        for failure, error, words in (
            (503, package.DataUnavailableError, "cannot be read .* look whether its store works"),
            ("nothing", package.DataUnavailableError, "look whether its store works"),
            (403, package.DataAccessError, "may not be read .* give rekindled credentials"),
            (404, package.DataNotFoundError, "is not there"),
        ):
            store.failures = [failure] * 200
            with pytest.raises(error, match=words):
                sums.total.remote()
        store.failures = []
        assert sums.total.remote() == expected(array)


def test_an_object_of_another_version_is_refused_by_its_tag():
    with Store() as store, node_with(REKINDLE_FAULT="data-piece:hang") as node:
        store.objects["/numbers"] = numbers(5).tobytes()
        sums = node.deploy(f"{store.url}/numbers")
        call = node.waiting(sums)
        store.objects["/numbers"] = numbers(6).tobytes()
        node.rekindle.let_go("data-piece")
        with pytest.raises(package.DataChangedError):
            call.get(timeout=60)
        assert sums.total.remote() == expected(numbers(6))


def test_a_store_that_is_down_and_credentials_that_are_missing_are_told_apart(monkeypatch):
    for name in SOURCES:
        monkeypatch.delenv(name, raising=False)
    nowhere = f"http://127.0.0.1:{free_port()}"
    host = nowhere.removeprefix("http://")
    environment = {"AWS_METADATA_ENDPOINT": nowhere, "AWS_REGION": "us-east-1", "REKINDLE_DATA_PATIENCE": "1"}
    environment |= {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host, "IDENTITY_ENDPOINT": nowhere, "HOME": "/nonexistent"}
    abfss = "abfss://container@account.dfs.core.windows.net/numbers"
    with node_with(**environment) as node:
        for url, names in (
            ("s3://bucket/numbers", "AWS_ACCESS_KEY_ID"),
            ("gs://bucket/numbers", "GOOGLE_APPLICATION_CREDENTIALS"),
            (abfss, "AZURE_STORAGE_"),
        ):
            with pytest.raises(package.DataAccessError, match=f"^there are no credentials for {url} .* set {names}"):
                node.deploy(url).total.remote()
        with pytest.raises(package.DataAccessError, match="^az://container/numbers cannot be asked for .* set AZURE_STORAGE_ACCOUNT_NAME"):
            node.deploy("az://container/numbers").total.remote()
        with pytest.raises(package.DataUnavailableError, match="look whether its store works and can be reached"):
            node.deploy(f"{nowhere}/numbers").total.remote()
