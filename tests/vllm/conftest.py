"""The embedded engine, whose answers vLLM's are compared with."""

import pytest

from tests.vllm.gateways import gateway


@pytest.fixture(scope="session")
def embedded():
    with gateway() as made:
        yield made
