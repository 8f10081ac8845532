"""Estimates as people ask for them: from options or a ds_config, one by one, in a sweep, or turned round.

The arithmetic is that of :mod:`zerokit.memory`; here is what goes in and how it is shown. Importing this
package is light: neither torch nor transformers nor deepspeed.
"""

from zerokit.estimation.api import estimate
from zerokit.estimation.fit import Fit, Limits, find_limits, verdict
from zerokit.estimation.request import Question, Runs
from zerokit.estimation.sweep import Axes, sweep

__all__ = ["Axes", "Fit", "Limits", "Question", "Runs", "estimate", "find_limits", "sweep", "verdict"]
