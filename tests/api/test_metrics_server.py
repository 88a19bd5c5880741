"""What Prometheus scrapes while a run goes on, and what a run says without the package."""

from __future__ import annotations

import sys
from urllib.request import urlopen

import pytest

from naspipe.api.recording import MetricsServer, check_metrics_server
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from tests.cli.test_bad_input import free_ports


def records(port, **more):
    return Execution(metrics_port=port, **more).records


def vitals(stream):
    return {
        "step": 7 + stream,
        "steps": 40,
        "loss": float("nan"),
        "hit_rate": None,
        "last_step_time": 9.5,
    }


def scraped(port):
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return [line for line in answer.read().decode().splitlines() if not line.startswith("#")]


def test_what_is_known_of_each_run():
    pytest.importorskip("prometheus_client", reason="needs prometheus_client")
    port = free_ports(1)
    with MetricsServer(records(port), ["runs/a", "runs/b"], vitals):
        found = scraped(port)
        with pytest.raises(ConfigError, match=f"port {port} is in use.*--set metrics_port=N"):
            check_metrics_server(records(port))
    assert found == [
        'naspipe_step{run="runs/a"} 7.0', 'naspipe_step{run="runs/b"} 8.0',
        'naspipe_steps{run="runs/a"} 40.0', 'naspipe_steps{run="runs/b"} 40.0',
        'naspipe_last_step_time{run="runs/a"} 9.5', 'naspipe_last_step_time{run="runs/b"} 9.5',
        'naspipe_loss{run="runs/a"} NaN', 'naspipe_loss{run="runs/b"} NaN',
    ]  # fmt: skip
    check_metrics_server(records(port))
    with pytest.raises(OSError, match="refused"):
        scraped(port)


def test_nothing_listens_where_nobody_asked_for_it():
    with MetricsServer(records(0), ["runs/a"], vitals) as server:
        assert server._server is None
    check_metrics_server(records(0))


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError) as caught:
        check_metrics_server(records(9400))
    said = str(caught.value)
    assert "\n" not in said and "pip install 'naspipe[prometheus]'" in said


@pytest.mark.parametrize("address", ["", "localhost", "1.2.3", "::1"])
def test_an_address_that_is_none(address):
    with pytest.raises(ConfigError, match="metrics_address: expected an IPv4 address"):
        records(9400, metrics_address=address)


def test_an_address_of_another_host():
    pytest.importorskip("prometheus_client", reason="needs prometheus_client")
    with pytest.raises(ConfigError) as caught:
        check_metrics_server(records(9400, metrics_address="192.0.2.1"))
    said = str(caught.value)
    assert said.startswith("192.0.2.1 is no address of this host (") and "in use" not in said
    assert said.endswith("choose another with --set metrics_address=...")
