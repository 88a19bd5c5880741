"""What is compared of the first steps, and what a difference says."""

from __future__ import annotations

import pytest

from naspipe.config.errors import VerificationError
from naspipe.verification.comparison import Comparison
from naspipe.verification.verifier import Verified

LOSSES = ["3f800000", "3f000000"]


def layer(value="aa"):
    return {"param/weight": value, "optimizer/weight/step": "01"}


def plain(step, losses=LOSSES, layers=None, comparison=None):
    layers = {"head": layer()} if layers is None else layers
    comparison.add_plain(step, [{"losses": losses, "layers": layers}])


def compared(steps=2, names=("",)):
    return Comparison(steps, 2, names)


def run(comparison, step, losses=LOSSES, layers=None):
    for number, bits in enumerate(losses):
        comparison.add_loss(0, 2 * step + number, bits)
    for label, digests in ({"head": layer()} if layers is None else layers).items():
        comparison.add_layer(0, 2 * step + 1, label, digests)


@pytest.mark.parametrize("plain_first", [True, False])
def test_equal_steps_are_counted_in_their_order(plain_first):
    comparison = compared()
    for step in (1, 0):
        if plain_first:
            plain(step, comparison=comparison)
        assert not comparison.is_complete
        run(comparison, step)
        if not plain_first:
            assert not comparison.is_complete
            plain(step, comparison=comparison)
    assert comparison.is_complete and comparison.verified_steps == 2


def test_a_step_is_not_equal_before_all_of_it_is_there():
    comparison = compared(1)
    plain(0, layers={"head": layer(), "stem": layer("bb")}, comparison=comparison)
    run(comparison, 0)
    assert comparison.verified_steps == 0
    comparison.add_layer(0, 1, "stem", layer("bb"))
    assert comparison.is_complete


def test_a_layer_without_state_is_the_same_in_every_version():
    comparison = compared(1)
    plain(0, layers={"head": layer(), "pool": {}}, comparison=comparison)
    run(comparison, 0, layers={"head": layer(), "relu": {}})
    assert comparison.is_complete


def test_later_steps_are_not_kept():
    comparison = compared(1)
    run(comparison, 7, losses=["00000000", "00000000"])
    assert comparison._run == {} and comparison.end == 2


def test_steps_after_a_checkpoint_are_compared_by_their_own_numbers():
    comparison = Comparison(2, 2, [""], first=5)
    for step in (5, 6, 7):
        plain(step, comparison=comparison)
        run(comparison, step)
    assert comparison.verified_steps == 2 and comparison.end == 14
    with pytest.raises(VerificationError, match="the loss of pass 0 of step 6"):
        run(comparison, 6, losses=["00000000", "3f000000"])


@pytest.mark.parametrize("plain_first", [True, False])
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"losses": ["3f800000", "3f000001"]}, "the loss of pass 1 of step 0 .* found 3f000001"),
        (
            {"layers": {"head": layer("ab")}},
            "param/weight of layer head after step 0 .*expected aa",
        ),
        (
            {"layers": {"head": {"param/weight": "aa"}}},
            "optimizer/weight/step of layer head after step 0 .* expected 01, found nothing",
        ),
        (
            {"layers": {"head": layer(), "stem": layer()}},
            "layer stem, which the plain loop does not write in step 0",
        ),
    ],
)
def test_a_difference_is_named(changed, text, plain_first):
    comparison = compared()
    with pytest.raises(VerificationError, match=text) as caught:
        if plain_first:
            plain(0, comparison=comparison)
        run(comparison, 0, **changed)
        plain(0, comparison=comparison)
    assert "\n" not in str(caught.value)


def test_a_stream_is_named_where_there_are_several():
    comparison = Comparison(1, 1, ["block-0", "block-1"])
    same = {"losses": ["00"], "layers": {}}
    comparison.add_plain(0, [same, same])
    comparison.add_loss(0, 0, "00")
    with pytest.raises(VerificationError, match=r"^block-1: the loss of step 0 differs"):
        comparison.add_loss(1, 0, "01")


@pytest.mark.parametrize(
    ("verified", "text"),
    [
        (Verified(6), "verified: 6 steps, 0 bits differ"),
        (Verified(1), "verified: 1 step, 0 bits differ"),
        (Verified(0, "because of X"), "verified: no, because of X"),
        (Verified(2, "because of X"), "verified: 2 steps, 0 bits differ (because of X)"),
    ],
)
def test_what_is_said(verified, text):
    assert str(verified) == text
    assert ("because" in verified.as_dict()) == bool(verified.because)


def test_a_difference_comes_with_what_was_observed_of_its_layer():
    hints = [("head", "parameter weight has a hook"), ("stem", "its forward changes buffer x")]
    for layers, seen, unseen in [
        ({"head": layer("bb")}, "parameter weight has a hook (layer head)", "buffer x"),
        ({"head": layer()}, "its forward changes buffer x (layer stem)", "nowhere"),
    ]:
        comparison = compared(1)
        streams = [{"losses": LOSSES, "layers": {"head": layer()}, "hints": hints}]
        comparison.add_plain(0, streams)
        with pytest.raises(VerificationError) as raised:
            run(comparison, 0, losses=LOSSES if "bb" in str(layers) else ["0", "0"], layers=layers)
        said = str(raised.value)
        assert "likely reason: " in said and seen in said and unseen not in said
