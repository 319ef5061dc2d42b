# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import moxie


@pytest.fixture(scope="session")
def device():
    return moxie.Device("sim")


@pytest.fixture
def random():
    return np.random.default_rng(7)
