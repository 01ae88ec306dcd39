-- title: The recording's files are unchanged
-- hop: topics
-- severity: error
-- needs: a recording
--
-- The manifest of a recording has the SHA-256 of each of its files. A file that is missing or differs was changed after
-- the recording was made.
SELECT
  CASE WHEN problem IS NULL THEN 'ok' ELSE 'finding' END AS verdict,
  CAST(NULL AS STRING) AS job, topic, CAST(NULL AS INT) AS partition, CAST(NULL AS BIGINT) AS offset,
  CAST(NULL AS TIMESTAMP) AS at, problem AS found, 'the file as recorded' AS expected
FROM recorded_files
