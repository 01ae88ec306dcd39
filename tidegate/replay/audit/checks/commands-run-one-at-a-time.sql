-- title: One command of a job at a time
-- hop: command to results
-- severity: error
-- invariant: I4
--
-- The actuator carries out the commands of a job one after the other: once a command has ended or another one has
-- started, the first one does nothing more.
SELECT
  CASE WHEN command_id <> before AND first_offset < offset THEN 'finding' ELSE 'ok' END AS verdict,
  job_id AS job, topic, partition, offset, done_at AS at,
  concat(phase, ' of command ', command_id, ' after command ', before, ' had started') AS found,
  'the results of one command stand together' AS expected
FROM (
  SELECT *, lag(command_id) OVER (PARTITION BY job_id ORDER BY partition, offset) AS before,
    min(offset) OVER (PARTITION BY job_id, command_id) AS first_offset
  FROM results
)
