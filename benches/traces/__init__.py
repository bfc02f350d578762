"""Load of serverless functions: traces in the schemas of Azure's, as arrival times, and their replay.

from traces import arrivals, replay
load = arrivals("AzureFunctionsInvocationTraceForTwoWeeksJan2021.txt", functions=12, seconds=60, scale=60, rates=(20, 200))
outcomes = replay(load, lambda function: ask(function))
"""

from traces.azure import TraceError, arrivals
from traces.replay import Outcome, replay

__all__ = ["Outcome", "TraceError", "arrivals", "replay"]
