import importlib.metadata
import sys

import pytest

from glimmer.errors import ConfigError
from glimmer.training.titan import compat


def test_another_torchtitan_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.4.0")
    with pytest.raises(ConfigError, match=r"torchtitan 0\.4\.0 is installed.*0\.3\.0"):
        compat.apply()


def test_without_flash_attention_3_the_gpu_counts_as_one_below_sm_90(monkeypatch):
    import torchtitan.tools.utils as utils

    monkeypatch.setattr(utils, "has_cuda_capability", lambda major, minor: True)
    compat.use_flash_attention_2()
    assert not utils.has_cuda_capability(9, 0)
    assert utils.has_cuda_capability(8, 0)
    once = utils.has_cuda_capability
    compat.use_flash_attention_2()
    assert utils.has_cuda_capability is once


def test_with_flash_attention_3_nothing_is_changed(monkeypatch):
    import torchtitan.tools.utils as utils

    stock = lambda major, minor: True  # noqa: E731
    monkeypatch.setattr(utils, "has_cuda_capability", stock)
    monkeypatch.setattr(compat.importlib.util, "find_spec", lambda name: sys)
    compat.use_flash_attention_2()
    assert utils.has_cuda_capability is stock
