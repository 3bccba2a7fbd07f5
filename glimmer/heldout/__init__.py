"""Stages 9 and 10: the same held-out questions before and after, paired statistics, the report.

Names are resolved on first use, so that a rule's code fingerprint covers only what it uses.
"""

from glimmer.lazy import lazy

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "evaluate": "glimmer.heldout.evaluation",
        "compare": "glimmer.heldout.paired",
        "write_report": "glimmer.heldout.report",
    },
)
