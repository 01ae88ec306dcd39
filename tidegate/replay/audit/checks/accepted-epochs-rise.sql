-- title: Epochs of accepted commands rise
-- hop: command to results
-- severity: error
-- invariant: I5
--
-- The epoch is the fencing token: a command is accepted only if its epoch is above that of every accepted command of
-- the job.
SELECT
  CASE WHEN epoch <= highest THEN 'finding' ELSE 'ok' END AS verdict,
  job_id AS job, topic, partition, offset, done_at AS at, concat('epoch ', epoch, ' was accepted') AS found,
  concat('above ', highest) AS expected
FROM (
  SELECT *, max(epoch) OVER (
    PARTITION BY job_id ORDER BY partition, offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
  FROM results WHERE phase = 'accepted'
)
