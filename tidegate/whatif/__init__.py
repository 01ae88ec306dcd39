"""What if: recorded snapshots decided again by another policy, other options or another engine.

recorded      one job's recorded events, and its decisions with what they were made from
topics        one job's events from the topics of a broker
vary          another policy, other options or another job file, applied to each recorded version of the spec
engines       the engine that decides: this one, or another checkout's or wheel's in a child process
continuation  the job on the calibrated twin, from the first different change of size on
course        what was measured and decided at each snapshot, in a few numbers
trial         all decisions made again; where the sizes differ, the twin says what would have been measured
differences   what differs, decision by decision: the first other reason or guard
figures       lateness, slots, changes and money of what ran and of what would have run, with their spread
inputs        the inputs of a decision, each as a number that can be another one
altered       the inputs of a decision with one of them altered
nearest       what it would take to change one decision
"""
