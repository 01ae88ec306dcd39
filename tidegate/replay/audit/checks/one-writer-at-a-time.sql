-- title: At most one driver works on a checkpoint
-- hop: log to snapshot
-- severity: error
-- invariant: I4
-- needs: event logs
--
-- Every micro-batch in the event logs of a job has a start and an end. Two batches of different applications never
-- overlap (by more than a second, for the clocks of two machines): one checkpoint has one writer.
SELECT
  CASE WHEN other.app_id <> app_id AND started_at < other.finished_at - INTERVAL 1 SECOND THEN 'finding' ELSE 'ok'
  END AS verdict,
  job_id AS job, path AS topic, CAST(NULL AS INT) AS partition, batch_id AS offset, started_at AS at,
  concat('batch ', batch_id, ' of ', app_id, ' started while ', other.app_id, ' worked until ', other.finished_at)
    AS found,
  'one application at a time' AS expected
FROM (
  SELECT *, max(named_struct('finished_at', finished_at, 'app_id', app_id)) OVER (
    PARTITION BY job_id ORDER BY started_at, finished_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS other
  FROM batches
)
