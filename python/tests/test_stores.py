"""Where declared data comes from: S3, HTTP, and stores that fail."""

import contextlib
import subprocess
import sys

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
    environment = {"AWS_METADATA_ENDPOINT": nowhere, "AWS_REGION": "us-east-1", "REKINDLE_DATA_PATIENCE": "1"}
    with node_with(**environment) as node:
        with pytest.raises(package.DataAccessError, match="^there are no credentials for s3://bucket/numbers .* set AWS_ACCESS_KEY_ID"):
            node.deploy("s3://bucket/numbers").total.remote()
        with pytest.raises(package.DataUnavailableError, match="look whether its store works and can be reached"):
            node.deploy(f"{nowhere}/numbers").total.remote()
