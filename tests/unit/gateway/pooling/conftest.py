"""An application around a pooling worker that computes what texts say."""

import pytest

from chiasm.gateway import create_app
from chiasm.settings import GatewaySettings, PoolingSettings
from tests.fakes import FakeIngest
from tests.pooling_fakes import FakePoolingWorker


@pytest.fixture
def worker():
    return FakePoolingWorker()


@pytest.fixture
def app(worker):
    return create_app(worker, FakeIngest(), GatewaySettings(), PoolingSettings(max_inputs=8))
