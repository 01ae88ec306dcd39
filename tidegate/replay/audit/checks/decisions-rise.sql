-- title: Decisions of a job rise
-- hop: snapshot to decision
-- severity: error
--
-- The decider never decides on an older snapshot than before. A falling sequence means that decisions were reordered
-- or inserted.
SELECT
  CASE WHEN sequence < highest THEN 'finding' ELSE 'ok' END AS verdict,
  job_id AS job, topic, partition, offset, decided_at AS at,
  concat('sequence ', sequence, ' comes after ', highest) AS found, 'a higher sequence' AS expected
FROM (
  SELECT *, max(sequence) OVER (
    PARTITION BY job_id, partition ORDER BY offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
  FROM decisions
)
