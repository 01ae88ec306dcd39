-- title: No interval is without a snapshot
-- hop: log to snapshot
-- severity: warning
-- invariant: I12
--
-- A job is measured once per interval. Where a snapshot is missing, the collector was away, or the snapshot was
-- removed (then an offset is missing, too). Tidegate did nothing in that time. Where the spec has shortened the interval,
-- the longer one still counts for the first snapshot. Between the removal of a job and its first spec after that, nothing
-- is measured.
SELECT
  CASE WHEN before IS NULL OR sequence - before <= greatest(interval_seconds, interval_before)
    OR coalesce(exists(breaks, broken_at -> broken_at > before_at AND broken_at <= observed_at), false) THEN 'ok'
  ELSE 'finding' END AS verdict,
  job_id AS job, topic, partition, offset, observed_at AS at,
  concat('nothing was measured for ', sequence - before, ' s') AS found,
  concat('a snapshot every ', interval_seconds, ' s') AS expected
FROM (
  SELECT *, lag(sequence) OVER ordered AS before, lag(interval_seconds) OVER ordered AS interval_before,
    lag(observed_at) OVER ordered AS before_at
  FROM snapshots WINDOW ordered AS (PARTITION BY job_id ORDER BY sequence, offset)
)
LEFT JOIN (
  SELECT job_id, array_agg(at) AS breaks FROM specs WHERE topic = 'jobs' AND (removed OR version = 1) GROUP BY job_id
) USING (job_id)
