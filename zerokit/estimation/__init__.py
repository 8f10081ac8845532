"""Estimates from options or a ds_config, in sweeps, and searches for sizes that fit.

:mod:`zerokit.memory` does the arithmetic. Importing this package imports neither torch nor transformers nor
deepspeed.
"""

from zerokit.estimation.advice import Advice, advise
from zerokit.estimation.api import estimate
from zerokit.estimation.fit import Fit, Limits, find_limits, verdict
from zerokit.estimation.request import Question, Runs
from zerokit.estimation.sweep import Axes, sweep
