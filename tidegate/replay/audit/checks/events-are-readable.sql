-- title: Every record is an event that can be read
-- hop: topics
-- severity: warning
--
-- A record that is not an event of its topic can come from anybody who may write there. The services keep it in the
-- dead letters and go on; here it is named.
SELECT 'ok' AS verdict, CAST(NULL AS STRING) AS job, CAST(NULL AS STRING) AS topic, CAST(NULL AS INT) AS partition,
  CAST(NULL AS BIGINT) AS offset, CAST(NULL AS TIMESTAMP) AS at, CAST(NULL AS STRING) AS found,
  CAST(NULL AS STRING) AS expected, (SELECT sum(records) FROM kept) - (SELECT count(*) FROM unreadable) AS n
UNION ALL
SELECT 'finding', NULL, topic, partition, offset, at, concat(code, ': ', detail), 'an event', 1 FROM unreadable
