"""What Prometheus scrapes of a run while it goes on, through the extra ``prometheus``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Self

from naspipe.config.errors import ConfigError
from naspipe.config.execution import RecordSettings
from naspipe.frontend.training.recording import Recording
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.wire.endpoints import check_ports
from naspipe.runtime.wire.ports import LaunchObserver
from naspipe.trace.results.run_directory import RunDirectory

_GAUGES = {
    "step": "Optimizer steps that are done.",
    "steps": "Optimizer steps of the whole run.",
    "steps_per_second": "Of this life of the run.",
    "last_step_time": "When the last pass was told, in seconds since 1970.",
    "loss": "Of the last pass that was told.",
    "pending": "Subnets under way, the most on a stage.",
    "resident_bytes": "Memory of the launcher's processes on its host.",
    "bubble_ratio": "1 - busy time / time of all stages, in this life.",
    "hit_rate": "Accesses whose layer was there, of all.",
}
"""By the names of a run's vitals."""


def check_metrics_server(records: RecordSettings) -> None:
    """Where metrics are asked for, the package must be there, the address ours, the port free.

    Raises:
        ConfigError: when it is not.
    """
    if not records.metrics_port:
        return
    try:
        import_module("prometheus_client")
    except ImportError as error:
        raise ConfigError(
            f"metrics_port={records.metrics_port}: expected the package prometheus_client "
            f"({error}); install it with pip install 'naspipe[prometheus]'"
        ) from None
    keys = ("metrics_port", "metrics_address")
    check_ports(records.metrics_address, [records.metrics_port], keys)


@contextmanager
def recorded(
    directories: Sequence[RunDirectory],
    workloads: Sequence[Workload],
    observer: LaunchObserver,
    records: RecordSettings,
) -> Iterator[Recording]:
    """What records a run as it goes, tells an observer of it, and answers Prometheus."""
    definitions = [workload.definition for workload in workloads]
    names = [str(directory.path) for directory in directories]
    with (
        Recording(directories, definitions, observer, records.tensorboard) as recording,
        MetricsServer(records, names, recording.vitals),
    ):
        yield recording


class MetricsServer:
    """Answers ``http://ADDRESS:PORT/metrics`` on threads of its own; a context manager.

    Without a port it does nothing.

    Args:
        records: which port and address.
        names: of the runs, by stream: the label ``run``.
        vitals: what is known of a stream, by its number.
    """

    def __init__(
        self,
        records: RecordSettings,
        names: Sequence[str],
        vitals: Callable[[int], Mapping[str, Any]],
    ) -> None:
        self._records = records
        self._names = tuple(names)
        self._vitals = vitals
        self._server: Any = None

    def __enter__(self) -> Self:
        if self._records.metrics_port:
            client = import_module("prometheus_client")
            registry = client.CollectorRegistry()
            registry.register(self)
            port, address = self._records.metrics_port, self._records.metrics_address
            self._server, _ = client.start_http_server(port, addr=address, registry=registry)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def collect(self) -> Iterator[Any]:
        """What the client asks for at every scrape: a gauge for each number that is known."""
        gauge = import_module("prometheus_client.core").GaugeMetricFamily
        found = [self._vitals(stream) for stream in range(len(self._names))]
        for name, text in _GAUGES.items():
            family = gauge(f"naspipe_{name}", text, labels=["run"])
            for run, vitals in zip(self._names, found, strict=True):
                if vitals.get(name) is not None:
                    family.add_metric([run], float(vitals[name]))
            yield family
