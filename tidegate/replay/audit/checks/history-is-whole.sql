-- title: The history is whole
-- hop: topics
-- severity: error
--
-- The checks can only speak of the records that are held. Where a partition no longer begins at offset 0 (retention, or
-- a recording of a part), what came before is not provable. A topic without records proves nothing either, where there
-- must be some.
SELECT
  CASE WHEN first_offset = 0 OR topic = 'jobs' THEN 'ok' ELSE 'not provable' END AS verdict,
  CAST(NULL AS STRING) AS job, topic, partition, first_offset AS offset, first_at AS at,
  concat('begins at offset ', first_offset) AS found, 'begins at offset 0' AS expected
FROM (
  SELECT topic, partition, min(offset) AS first_offset, min_by(at, offset) AS first_at
  FROM places GROUP BY topic, partition
)
UNION ALL
SELECT 'not provable', NULL, topic, NULL, NULL, NULL, 'holds no record', 'holds every event'
FROM kept WHERE records = 0 AND topic IN ('jobs', 'snapshots', 'decisions')
