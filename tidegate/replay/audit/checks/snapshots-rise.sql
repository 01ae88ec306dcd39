-- title: Snapshots of a job rise
-- hop: log to snapshot
-- severity: error
--
-- The sequence of a snapshot is the second in which its interval ended. On the topic a job's sequences never fall: the
-- records were reordered if one does. (The same sequence again is the same snapshot, measured by two collectors.)
SELECT
  CASE WHEN sequence < highest THEN 'finding' ELSE 'ok' END AS verdict,
  job_id AS job, topic, partition, offset, observed_at AS at,
  concat('sequence ', sequence, ' comes after ', highest) AS found, 'a higher sequence' AS expected
FROM (
  SELECT *, max(sequence) OVER (
    PARTITION BY job_id, partition ORDER BY offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
  FROM snapshots
)
