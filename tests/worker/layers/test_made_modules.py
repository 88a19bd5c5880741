"""What a factory may not make."""

from __future__ import annotations

import pytest
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.worker.layers.layer_store import check_hooks, check_made


def hooked():
    module = nn.Sequential(nn.Linear(4, 4))
    module[0].weight.register_hook(lambda gradient: gradient * 0)
    return module


def hooked_late():
    module = nn.Linear(4, 4)
    module.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    return module


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (3, "expected its factory to return a torch.nn.Module, found int"),
        (nn.LazyLinear(4), "a module with sizes, found weight without one, as in nn.LazyLinear"),
        (hooked(), "parameters without hooks, as its rule has older versions read"),
        (hooked_late(), "parameters without hooks, as its rule has older versions read"),
    ],
)
def test_refused(made, said):
    with pytest.raises(ConfigError, match=f"^layer stem: .*{said}"):
        check_made("stem", made, keeps_versions=True)


def test_taken():
    check_made("stem", hooked(), keeps_versions=False)
    check_made("stem", nn.Linear(4, 4), keeps_versions=True)


def test_hooks_that_want_the_sum_of_passes():
    check_hooks("stem", hooked())
    with pytest.raises(ConfigError, match=r"layer stem: .* several passes, .* found one on bias;"):
        check_hooks("stem", hooked_late())
