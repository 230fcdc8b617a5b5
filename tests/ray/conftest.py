"""A Ray cluster of three nodes on this machine, a store for its gateways, and a server placed on it."""

import asyncio
import os
import socket
import threading
from contextlib import contextmanager

import pytest
import uvloop

from chiasm.settings import resolve
from tests.redis_server import redis_server

TOKEN = "a-token-of-the-tests"
START_TIMEOUT_S = 300.0
NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="session", autouse=True)
def quiet_ray():
    pytest.importorskip("ray", reason="Ray is not installed here: make test-ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # this machine has other things in its memory, too
        patch.setenv("CHIASM_ROUTING__WORKER_TOKEN", TOKEN)
        yield


@pytest.fixture(scope="session")
def cluster():
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(2):
            made.add_node(**NODE)
        yield made
    finally:
        made.shutdown()


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("store")) as running:
        yield running


class Placed:
    """A `ClusterServer` on a thread of its own, as tests see it."""

    def __init__(self, server, loop):
        self.server, self._loop = server, loop

    @property
    def address(self):
        return self.server.address

    @property
    def addresses(self):
        return self.server.addresses

    @property
    def nodes(self):
        return self.server.nodes

    def until(self, condition, timeout_s=300.0):
        """Wait until something holds; fails when it does not come to that."""

        async def wait():
            async with asyncio.timeout(timeout_s):
                while not condition():  # noqa: ASYNC110 - what happens elsewhere sets no event
                    await asyncio.sleep(0.1)

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    def kill_actor(self, name):
        """As when its node takes it away: Ray's process and what runs in it."""
        import ray

        ray.kill(self.server._placed[name]._actor)

    def kill_process(self, name):
        os.kill(self.nodes[name][1], 9)  # all nodes are this machine


@contextmanager
def placed(cluster, start_timeout_s=START_TIMEOUT_S, **values):
    from chiasm.launch.cluster.connection import joined
    from chiasm.launch.cluster.placement import cluster_specs
    from chiasm.launch.cluster.serve import ClusterServer

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    chosen = {"cluster.address": f"ray://{cluster.address}", "gateway.port": port, "routing.restart_backoff_s": 0.1}
    settings = resolve(values=chosen | values).settings
    with joined(settings, 0.0):
        server = ClusterServer(settings, cluster_specs(settings))
        loop, stop, ready, ends = uvloop.new_event_loop(), asyncio.Event(), threading.Event(), []

        def run():
            try:
                loop.run_until_complete(server.serve(stop, lambda what, share: None, ready.set))
            except Exception as error:  # noqa: BLE001 - raised again where the server was asked for
                ends.append(error)
            finally:
                ready.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            assert ready.wait(start_timeout_s)
            if ends:
                raise ends[0]
            yield Placed(server, loop)
        finally:
            if thread.is_alive():
                loop.call_soon_threadsafe(stop.set)
            thread.join(60)
            loop.close()
