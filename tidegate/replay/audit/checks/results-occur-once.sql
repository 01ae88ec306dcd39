-- title: Every result occurs once
-- hop: command to results
-- severity: error
-- invariant: I3
--
-- A phase of a command is reached once per attempt, and its result is published once. A second one was inserted, or
-- came from an actuator that was paused and did not know that another one had taken over.
SELECT
  CASE WHEN number = 1 THEN 'ok' ELSE 'finding' END AS verdict,
  job_id AS job, topic, partition, offset, done_at AS at,
  concat(kind, ' ', phase, ', attempt ', attempt, ', for the ', number, '. time') AS found, 'once' AS expected
FROM (SELECT *, row_number() OVER (PARTITION BY result_id ORDER BY partition, offset) AS number FROM results)
