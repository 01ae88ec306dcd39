-- title: Committed offsets never fall
-- hop: log to snapshot
-- severity: warning
--
-- What a job has committed stays committed. A lower offset means that the topic or the checkpoint was made again, or
-- that a figure was changed.
SELECT
  CASE WHEN committed < highest THEN 'finding' ELSE 'ok' END AS verdict,
  job_id AS job, topic, partition, offset, at,
  concat(source_topic, ', partition ', source_partition, ': ', committed, ' after ', highest) AS found,
  'an offset that is not lower' AS expected
FROM (
  SELECT *, max(committed) OVER (
    PARTITION BY job_id, source_topic, source_partition
    ORDER BY sequence, offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
  FROM (
    SELECT job_id, topic, partition, offset, observed_at AS at, sequence,
      source.topic AS source_topic, source_partition, committed
    FROM (SELECT *, explode(sources) AS source FROM snapshots)
    LATERAL VIEW posexplode(source.committed_offsets) each AS source_partition, committed
    WHERE committed IS NOT NULL
  )
)
