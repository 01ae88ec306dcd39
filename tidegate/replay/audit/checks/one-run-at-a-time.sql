-- title: A run that was replaced never comes back
-- hop: log to snapshot
-- severity: error
-- invariant: I4
--
-- Each snapshot names the Spark application that does the job's work. Once another one does, the first must be gone:
-- if it is measured again, two drivers were alive. A handover that was taken back is the exception, because its first
-- driver goes on.
SELECT
  CASE WHEN comes_back AND resumed.command_id IS NULL THEN 'finding' ELSE 'ok' END AS verdict,
  job_id AS job, topic, partition, offset, at,
  concat(incarnation, ' works again after ', before) AS found, 'a run that was never replaced' AS expected
FROM (
  SELECT *, incarnation <> before AND first_value(sequence) OVER (
    PARTITION BY job_id, incarnation ORDER BY sequence, offset) < sequence AS comes_back
  FROM (
    SELECT job_id, topic, partition, offset, observed_at AS at, sequence, incarnation,
      lag(incarnation) OVER (PARTITION BY job_id ORDER BY sequence, offset) AS before,
      lag(observed_at) OVER (PARTITION BY job_id ORDER BY sequence, offset) AS before_at
    FROM snapshots WHERE incarnation IS NOT NULL
  )
)
LEFT JOIN (SELECT DISTINCT job_id AS of_job, command_id, done_at FROM results WHERE phase = 'resuming') AS resumed
  ON resumed.of_job = job_id AND resumed.done_at BETWEEN before_at - INTERVAL 10 MINUTES AND at
