"""Backtest: what Tidegate would have done for a job it never managed, by the job's Spark event logs or a drawn load.

logs       reads a folder of event logs: runs, by application name
past       what a job's logs say of its arrivals, commits and slots over time
delays     delay over time, and how far two runs are apart
fitting    fits the twin to a past, and checks it on a part of the past that it was not fitted on
trial      runs the engine on the twin under the load of the past; scores what was and what would have been alike
search     looks for the options that matter, spread over Spark
jobfile    the job file for `tidegate apply`
backtest   all of this for one job
report     the figures as tables and JSON
page       the page with pictures
"""
