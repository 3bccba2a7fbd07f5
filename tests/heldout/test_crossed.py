"""The interval over seeds and questions: by hand, against statsmodels, and in simulation."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import t as student
from scipy.stats import ttest_1samp
from statsmodels.stats.anova import anova_lm

from glimmer.heldout.crossed import crossed_mean, mean_squares

TABLES = arrays(
    np.int8, st.tuples(st.integers(2, 5), st.integers(2, 12)), elements=st.integers(-1, 1)
)


def long_form(table):
    seeds, questions = np.indices(table.shape)
    return pd.DataFrame(
        {"y": table.ravel(), "seed": seeds.ravel(), "question": questions.ravel(), "all": 1}
    )


def drawn(seeds=4, questions=30, seed=0):
    rng = np.random.default_rng(seed)
    return (
        0.2
        + rng.normal(0, 0.3, (seeds, 1))
        + rng.normal(0, 0.4, (1, questions))
        + rng.normal(0, 0.5, (seeds, questions))
    )


def test_by_hand():
    """Two seeds, three questions: +1 +1 0 and +1 0 0; mean 1/2."""
    table = np.array([[1, 1, 0], [1, 0, 0]])
    # Seeds 2/3 and 1/3, questions 1, 1/2 and 0; of the squares' sum 3/2 they have 1/6 and 1.
    assert [float(x) for x in mean_squares(table)] == pytest.approx([1 / 6, 1 / 2, 1 / 6])
    found = crossed_mean(table)
    # (1/6 + 1/2 - 1/6) / 6; a third of it from the seeds, with 1 degree of freedom: 1/3 + 2/3 / 2.
    assert found["standard_error"] == pytest.approx(np.sqrt(1 / 12))
    assert found["degrees_of_freedom"] == pytest.approx(1.5)
    assert found["p"] == pytest.approx(2 * student.sf(0.5 / np.sqrt(1 / 12), 1.5))
    assert (found["low"], found["high"]) == (-1, 1)  # 1/2 ± 1.7: no difference is further from 0
    assert found["components"]["seeds"] == pytest.approx(0, abs=1e-7)
    assert found["components"]["questions"] == pytest.approx(np.sqrt(1 / 6))
    assert found["components"]["rest"] == pytest.approx(np.sqrt(1 / 6))


def test_mean_squares_are_those_of_the_analysis_of_variance():
    table = drawn()
    theirs = anova_lm(smf.ols("y ~ C(seed) + C(question)", long_form(table)).fit())["mean_sq"]
    assert [float(x) for x in mean_squares(table)] == pytest.approx(theirs.tolist())


@pytest.mark.filterwarnings("ignore:The MLE may be on the boundary")  # "all" itself varies by 0
def test_mean_and_error_are_those_of_a_mixed_model():
    """Balanced and no component negative: restricted maximum likelihood gives the same."""
    table = drawn()
    parts = {"seed": "0 + C(seed)", "question": "0 + C(question)"}
    model = smf.mixedlm("y ~ 1", long_form(table), groups="all", vc_formula=parts).fit()
    found = crossed_mean(table)
    assert found["mean"] == pytest.approx(model.fe_params["Intercept"])
    assert found["standard_error"] == pytest.approx(model.bse_fe["Intercept"], rel=1e-3)
    components = found["components"]
    expected = dict(zip(model.model.exog_vc.names, np.sqrt(model.vcomp), strict=True))
    assert components["seeds"] == pytest.approx(expected["seed"], rel=2e-3)
    assert components["questions"] == pytest.approx(expected["question"], rel=2e-3)
    assert components["rest"] == pytest.approx(np.sqrt(model.scale), rel=2e-3)


def test_without_question_effects_it_is_the_t_test_of_the_seeds():
    """Each question's mean the same: all variance is that of the seeds and what is left."""
    table = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 1]])
    found = crossed_mean(table)
    theirs = ttest_1samp(table.mean(axis=1), 0)
    low, high = theirs.confidence_interval()
    assert (found["low"], found["high"]) == pytest.approx((low, high))
    assert found["p"] == pytest.approx(theirs.pvalue)


def test_seeds_alike_it_is_the_t_test_of_the_questions():
    row = np.repeat([1, -1, 0], [30, 10, 60])
    found = crossed_mean(np.stack([row] * 3))
    theirs = ttest_1samp(row, 0)
    low, high = theirs.confidence_interval()
    assert (found["low"], found["high"]) == pytest.approx((low, high))
    assert found["p"] == pytest.approx(theirs.pvalue)


@given(TABLES)
def test_any_table(table):
    seeds, questions = table.shape
    found = crossed_mean(table)
    assert -1 <= found["low"] <= found["mean"] + 1e-12
    assert found["mean"] - 1e-12 <= found["high"] <= 1
    small, large = sorted((seeds - 1, questions - 1))
    assert small - 1e-9 <= found["degrees_of_freedom"] <= large + 1e-9
    if min(abs(found["mean"]), found["standard_error"], abs(found["p"] - 0.05)) > 1e-9:
        assert (found["p"] < 0.05) == (not found["low"] <= 0 <= found["high"])
    turned = crossed_mean(-table)
    assert (turned["low"], turned["high"]) == pytest.approx((-found["high"], -found["low"]))
    mixed = crossed_mean(table[::-1, ::-1])
    assert mixed["standard_error"] == pytest.approx(found["standard_error"])


def test_tables_at_once_are_tables_one_by_one():
    stack = np.random.default_rng(0).integers(-1, 2, (7, 3, 20))
    found = crossed_mean(stack)
    for name in ("mean", "low", "high", "p"):
        one_by_one = [float(crossed_mean(table)[name]) for table in stack]
        assert found[name].tolist() == pytest.approx(one_by_one)


@pytest.mark.parametrize("value", [0, 1])
def test_no_variance_at_all(value):
    found = crossed_mean(np.full((2, 5), value))
    assert found["low"] == found["high"] == value
    assert found["p"] == 1 - value


@pytest.mark.parametrize("spread", [0.0, 0.03])
@pytest.mark.parametrize("seeds", [3, 5])
def test_coverage(seeds, spread):
    """4,000 tables of 100 questions, seeded; benchmarks/paired_simulation.py draws 10,000 each."""
    rng = np.random.default_rng(seeds)
    easy = rng.random((4000, 1, 100)) < 0.4
    rates = 0.5 + spread * rng.standard_normal((4000, seeds, 1))
    after = rng.random((4000, seeds, 100)) < np.where(easy, rates + 0.3, rates - 0.2)
    before = rng.random((4000, 1, 100)) < np.where(easy, 0.5, 0.1)
    found = crossed_mean(after.astype(int) - before.astype(int))
    truth = 0.5 - (0.4 * 0.5 + 0.6 * 0.1)
    held = np.mean((found["low"] <= truth) & (truth <= found["high"]))
    assert 0.93 <= held <= 0.97
