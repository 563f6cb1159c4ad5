"""Which pool a request goes to once its name has led to one: rules, shares, copies, fallback. No I/O, no clock.

A document is compiled into tables once; a pool without `traffic` has none, so its requests pay one look at None.
Asking a classifier, sending copies and finding a pool down are the data path's.
"""

from tidepool_router.governance.asked import Asked
from tidepool_router.governance.route import Plan, route
from tidepool_router.governance.table import ClassifierTable, RuleTable, Table, compile_traffic

__all__ = ["Asked", "ClassifierTable", "Plan", "RuleTable", "Table", "compile_traffic", "route"]
