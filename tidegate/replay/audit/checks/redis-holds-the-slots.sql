-- title: Redis holds the slots that the topics give
-- hop: Redis and topics
-- severity: error
-- needs: Redis
--
-- The slots promised to commands under way are computed from commands, results and specs, and compared with those in
-- Redis.
SELECT verdict, job_id AS job, key AS topic, CAST(NULL AS INT) AS partition, CAST(NULL AS BIGINT) AS offset,
  CAST(NULL AS TIMESTAMP) AS at, live AS found, rebuilt AS expected
FROM ledger WHERE kind = 'pool'
