-- title: Offsets have no gaps
-- hop: topics
-- severity: error
-- invariant: I1
--
-- Kafka gives a topic's records consecutive offsets, and Tidegate writes no transactions. A missing offset between two
-- held ones is a record that was removed. `jobs` is compacted, so its gaps mean nothing. A recording of one job leaves
-- out the others' records, so there a gap proves nothing.
SELECT
  CASE
    WHEN before IS NULL OR offset <= before + 1 THEN 'ok'
    WHEN (SELECT one_job FROM source) IS NOT NULL THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  CAST(NULL AS STRING) AS job, topic, partition, offset, at,
  concat('missing records before this one: ', offset - before - 1) AS found,
  concat('offset ', before + 1, ' follows offset ', before) AS expected
FROM (SELECT *, lag(offset) OVER (PARTITION BY topic, partition ORDER BY offset) AS before FROM places)
WHERE topic <> 'jobs'
