"""Which accesses a stage records: all, those of some steps, or none."""

from __future__ import annotations

import pytest

from naspipe.config.definition import Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.execution import RecordSettings
from naspipe.config.ids import AccessKind
from naspipe.store.access_log import AccessLogWriter, read_access_log
from naspipe.worker.stage_files import StageFiles
from tests.store.fake_run import access
from tests.worker.test_log_cost import Silent


@pytest.mark.parametrize(
    ("setting", "passes", "kept"),
    [
        ("full", 1, [0, 1, 2, 3, 4, 5]),
        ("sampled:3", 1, [0, 3]),
        ("sampled:2", 2, [0, 1, 4, 5]),
        ("off", 1, []),
    ],
)
def test_what_is_kept(tmp_path, setting, passes, kept):
    every = RecordSettings(access_log=setting).logged_steps
    with AccessLogWriter(tmp_path / "log") as log:
        files = StageFiles([log], None, Silent(), every, passes)
        for number in range(6):
            files.access(access(0, 0, number, AccessKind.FORWARD, 10 * number))
    assert [each.sequence_id for each in read_access_log(tmp_path / "log")] == kept


@pytest.mark.parametrize("value", ["sampled:0", "sampled", "some", "sampled:-1"])
def test_other_values_are_refused(value):
    with pytest.raises(ConfigError, match="full, sampled:N or off"):
        apply_settings(Settings(), [f"access_log={value}"])
