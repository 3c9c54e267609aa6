"""Each remedy on a quadratic under delay: stable where the closed form says so, and as fast as it says."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from ampnet.update.policy import Update
from ampnet.update.remedies import AnnealedRate, AsyncNesterov, InverseRate, LoweredMomentum, Remedy
from ampnet.update.remedies.remedy import remedied
from tests.update.remedies.quadratic import bound, growth, radius, train

LAGS = (0, 1, 3, 8)


def bare(optimizer: object, **more: object) -> Update:
    """Returns an `Update` with no other remedies than the given ones."""
    return Update(optimizer, **{"weights": "current", "remedies": (), **more})  # type: ignore[arg-type]


def sgd(rate: float, **more: object) -> Update:
    return bare(partial(torch.optim.SGD, lr=rate), **more)


@pytest.mark.parametrize("lag", LAGS)
def test_without_a_remedy_the_bound_on_the_rate_is_the_known_one(lag: int) -> None:
    assert growth(train(sgd(0.97 * bound(lag)), lag=lag, steps=1200)) < 1
    assert growth(train(sgd(1.03 * bound(lag)), lag=lag, steps=1200)) > 1


@pytest.mark.parametrize("lag", LAGS)
def test_delayed_descent_shrinks_as_its_spectral_radius_says(lag: int) -> None:
    rate = 0.15 * bound(lag)

    def step(w: np.ndarray) -> np.ndarray:  # newest first
        return np.concatenate([[w[0] - rate * w[lag]], w[:-1]])

    expected = radius(step, lag + 1)
    assert growth(train(sgd(rate), lag=lag, steps=600)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("lag", LAGS[1:])
def test_weights_that_differ_between_forward_and_backward_lower_the_bound(lag: int) -> None:
    """The discrepancy: at a rate that the delay alone would allow, training diverges; with the forward's weights in the
    backward, or an estimate of them, it does not."""
    rate, b = 0.75 * bound(lag), 3.0
    assert growth(train(sgd(rate), lag=lag, steps=800, b=b)) > 1
    assert growth(train(sgd(rate, weights="stash"), lag=lag, steps=800, b=b)) < 1


@pytest.mark.parametrize("lag", LAGS[1:])
def test_stashed_weights_give_the_true_gradient_of_the_forward(lag: int) -> None:
    rate = 0.6 * bound(lag)
    with_discrepancy = train(sgd(rate, weights="stash"), lag=lag, steps=200, b=2.0)
    assert with_discrepancy == pytest.approx(train(sgd(rate), lag=lag, steps=200), abs=1e-12)


@pytest.mark.parametrize("lag", LAGS[1:])
def test_estimated_weights_allow_larger_rates_than_current_ones(lag: int) -> None:
    """The closed form: the largest stable rate from the spectral radius of the linear recurrence of (weights, mean)."""
    b, kept = 2.0, 0.135 ** (1 / lag)

    def stable(rate: float, estimated: bool) -> bool:
        def step(z: np.ndarray) -> np.ndarray:
            w, mean = z[:-1], z[-1]
            backward = w[0] - lag * mean if estimated else w[0]
            new = w[0] - rate * ((1 + b) * w[lag] - b * backward)
            return np.concatenate([[new], w[:-1], [kept * mean + (1 - kept) * (new - w[0])]])

        return radius(step, lag + 2) < 1

    rates = np.linspace(0.01, 1, 400) * bound(lag)
    current, estimate = (max(r for r in rates if stable(r, e)) for e in (False, True))
    assert estimate > 1.1 * current
    between = (current + estimate) / 2
    assert growth(train(sgd(between), lag=lag, steps=1500, b=b)) > 1
    assert growth(train(sgd(between, weights="estimate"), lag=lag, steps=1500, b=b)) < 1


@pytest.mark.parametrize("lag", LAGS[1:])
def test_predicted_weights_follow_their_recurrence(lag: int) -> None:
    rate, kept = 0.3 * bound(lag), 0.135 ** (1 / lag)

    def step(z: np.ndarray) -> np.ndarray:
        w, means = z[: lag + 1], z[lag + 1 :]
        new = w[0] - rate * (w[lag] + lag * means[lag])
        mean = kept * means[0] + (1 - kept) * (new - w[0])
        return np.concatenate([[new], w[:-1], [mean], means[:-1]])

    expected = radius(step, 2 * lag + 2)
    measured = growth(train(sgd(rate, weights="predict"), lag=lag, steps=1500))
    assert measured == pytest.approx(expected, abs=0.02)
    assert measured < 1


@pytest.mark.parametrize("lag", LAGS[2:])
def test_a_rate_over_the_lag_is_stable_at_the_rate_that_no_delay_allows(lag: int) -> None:
    """``2 / lag`` is at most 1.5 times ``2 sin(pi / (4 lag + 2))`` from a lag of 3 on, so at 0.6 of the bound without
    delay it is stable."""
    rate = 0.6 * bound(0)
    assert growth(train(sgd(rate), lag=lag, steps=300)) > 1
    assert growth(train(sgd(rate, remedies=(InverseRate(),)), lag=lag, steps=2000)) < 1


def test_the_power_and_the_least_factor_of_the_inverse_rate() -> None:
    assert [InverseRate().rate(lag, 0) for lag in (0, 0.6, 1, 4)] == [1, 1, 1, 0.25]
    assert InverseRate(power=0.5).rate(4, 0) == 0.5
    assert InverseRate(least=0.4).rate(4, 0) == 0.4


@pytest.mark.parametrize("lag", LAGS[2:])
def test_an_annealed_rate_is_over_the_lag_first_and_full_later(lag: int) -> None:
    remedy = AnnealedRate(100)
    assert remedy.rate(lag, 0) == pytest.approx(1 / lag)
    assert remedy.rate(lag, 50) == pytest.approx(lag**-0.5)
    assert remedy.rate(lag, 100) == remedy.rate(lag, 10_000) == 1
    rate = 0.6 * bound(0)
    early = train(sgd(rate, remedies=(AnnealedRate(10**9),)), lag=lag, steps=2000)
    assert growth(early) < 1
    late = train(sgd(rate, remedies=(AnnealedRate(1),)), lag=lag, steps=300)
    assert growth(late) > 1  # a quadratic has no later phase in which the full rate would do


@pytest.mark.parametrize("lag", LAGS)
def test_lowered_momentum_keeps_the_length_of_steps(lag: int) -> None:
    remedy = LoweredMomentum()
    lowered = remedy.momentum(0.9, lag)
    assert lowered == pytest.approx(max(0.0, 1 - 0.1 * (lag + 1)))
    assert remedy.momentum(0.9, 9.1) == remedy.momentum(0.9, 50) == 0


def test_lowered_momentum_is_stable_where_full_momentum_is_not() -> None:
    """Heavy ball with delay, from its companion matrix: at this rate 0.9 diverges, and 0.5 does not."""
    lag, rate = 4, 0.06

    def stable(momentum: float) -> bool:
        def step(w: np.ndarray) -> np.ndarray:
            return np.concatenate([[w[0] + momentum * (w[0] - w[1]) - rate * w[lag]], w[:-1]])

        return radius(step, lag + 2) < 1

    assert not stable(0.9)
    assert stable(0.5)
    heavy = partial(torch.optim.SGD, lr=rate, momentum=0.9)
    assert growth(train(bare(heavy), lag=lag, steps=1500)) > 1
    assert growth(train(bare(heavy, remedies=(LoweredMomentum(),)), lag=lag, steps=1500)) < 1


@pytest.mark.parametrize("lag", LAGS)
def test_nesterov_follows_its_recurrence(lag: int) -> None:
    rate, m = 0.5, 0.95

    def step(z: np.ndarray) -> np.ndarray:
        w, v = z[:-1], z[-1]
        short = -rate * (1 - m) * w[lag]
        v = m * v + short
        return np.concatenate([[w[0] + short + m * v], w[:-1], [v]])

    expected = radius(step, lag + 2)
    update = bare(partial(AsyncNesterov, lr=rate, momentum=m), weights="stash")
    assert growth(train(update, lag=lag, steps=900)) == pytest.approx(expected, abs=0.005)


def test_nesterov_allows_larger_rates_at_short_delays_and_not_at_long_ones() -> None:
    """From the recurrence above: with a momentum of 0.95 the largest stable rate is over 3 times that of plain descent
    at lag 1, 1.07 times at lag 3, and 0.79 times at lag 8."""
    for lag, factor, kept in ((1, 2.0, True), (3, 1.03, True), (8, 0.9, False)):
        update = bare(partial(AsyncNesterov, lr=factor * bound(lag), momentum=0.95), weights="stash")
        assert (growth(train(update, lag=lag, steps=4000)) < 1) is kept
        assert (growth(train(sgd(factor * bound(lag), weights="stash"), lag=lag, steps=1500)) < 1) is (factor < 1)


def test_without_delay_every_remedy_leaves_descent_as_it_is() -> None:
    plain = train(sgd(0.3), lag=0, steps=30)
    for more in (
        {"weights": "stash"},
        {"weights": "estimate"},
        {"weights": "predict"},
        {"remedies": (InverseRate(), AnnealedRate(10), LoweredMomentum())},
    ):
        assert train(sgd(0.3, **more), lag=0, steps=30) == plain


def test_what_the_optimizer_holds_is_unchanged_after_a_step() -> None:
    class Half(Remedy):
        def rate(self, lag: float, updates: int) -> float:
            return 0.5

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.2, betas=(0.9, 0.99))
    group = optimizer.param_groups[0]
    with remedied(optimizer, (Half(), LoweredMomentum()), 3, 0):
        assert (group["lr"], group["betas"]) == (pytest.approx(0.1), (pytest.approx(0.6), 0.99))
    assert (group["lr"], group["betas"]) == (0.2, (0.9, 0.99))
    with pytest.raises(ZeroDivisionError), remedied(optimizer, (Half(),), 3, 0):
        raise ZeroDivisionError
    assert group["lr"] == 0.2


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(TypeError, match="remedies is a tuple of Remedy objects"):
        Update(remedies=(AnnealedRate,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="updates must be 1 or more"):
        AnnealedRate(0)
    with pytest.raises(ValueError, match="power must be positive"):
        InverseRate(power=0)
    with pytest.raises(ValueError, match="momentum from 0 up"):
        AsyncNesterov([torch.ones(1)], momentum=1)
    with pytest.raises(ValueError, match="weights must be one of auto, current, stash, estimate, predict"):
        Update(weights="guess")  # type: ignore[arg-type]
