-- title: Every offset occurs once
-- hop: topics
-- severity: error
--
-- A place on a topic holds one record. Two records with one offset mean that the record was put together by hand.
SELECT
  CASE WHEN offset = before THEN 'finding' ELSE 'ok' END AS verdict,
  CAST(NULL AS STRING) AS job, topic, partition, offset, at,
  'another record has the same offset' AS found, 'one record' AS expected
FROM (SELECT *, lag(offset) OVER (PARTITION BY topic, partition ORDER BY offset) AS before FROM places)
