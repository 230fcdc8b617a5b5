"""One real server for all end-to-end tests: the packaged model, real HTTP, real pictures."""

import pytest

from chiasm.launch.local import background_server
from chiasm.settings import resolve
from tests.e2e.served import Served


@pytest.fixture(scope="session")
def served():
    """The packaged model behind HTTP, in this process, so that the worker's counters can be looked at."""
    overrides = ["gateway.port=0", "gateway.max_running_requests=32", "gateway.max_queued_requests=300"]
    settings = resolve(environment={}, overrides=overrides).settings
    with background_server(settings, lambda what, share: None) as server:
        yield Served(server)


@pytest.fixture
def client(served):
    """The official client, unmodified."""
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made
