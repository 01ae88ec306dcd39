-- title: Every run of a job comes from a command
-- hop: command to results
-- severity: warning
--
-- Each new Spark application that a job is measured in was started for a command, and a result names it. Another one was
-- started by somebody else: in mode advise, or behind Tidegate's back. The first run of all may have been there before
-- Tidegate was. One that was measured while a command was under way, or just before the record ends, may have failed or
-- not been verified yet: that is not provable.
WITH unverified AS (
  SELECT job_id, command_id, min(done_at) AS began, max(done_at) AS ended FROM results
  GROUP BY job_id, command_id HAVING NOT bool_or(phase IN ('verified', 'rejected'))
)
SELECT
  CASE
    WHEN result.incarnation IS NOT NULL OR run.first_sequence = run.sequence_of_job THEN 'ok'
    WHEN run.first_at < (SELECT complete_from FROM kept WHERE topic = 'results') THEN 'not provable'
    WHEN run.first_at > (SELECT max(at) FROM places) - INTERVAL 5 MINUTES THEN 'not provable'
    WHEN started.times > 0 THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  run.job_id AS job, 'snapshots' AS topic, run.partition, run.offset, run.first_at AS at,
  concat(run.incarnation, ' works, and no result names it') AS found, 'a result that names it' AS expected
FROM (
  SELECT *, min(first_sequence) OVER (PARTITION BY job_id) AS sequence_of_job
  FROM (
    SELECT job_id, incarnation, min(sequence) AS first_sequence, min(observed_at) AS first_at,
      min_by(partition, sequence) AS partition, min_by(offset, sequence) AS offset
    FROM snapshots WHERE incarnation IS NOT NULL GROUP BY job_id, incarnation
  )
) AS run
LEFT JOIN (
  SELECT run.job_id, run.incarnation, count(*) AS times
  FROM snapshots AS run
  JOIN unverified ON unverified.job_id = run.job_id
    AND run.observed_at BETWEEN unverified.began AND unverified.ended + INTERVAL 1 MINUTE
  GROUP BY run.job_id, run.incarnation
) AS started ON started.job_id = run.job_id AND started.incarnation = run.incarnation
LEFT JOIN (SELECT DISTINCT job_id, incarnation FROM results) AS result
  ON result.job_id = run.job_id AND result.incarnation = run.incarnation
