-- title: Redis holds the fences that the results give
-- hop: Redis and topics
-- severity: error
-- invariant: I5
-- needs: Redis
--
-- A job's fence in Redis has the epoch of an accepted command, and none that went further is newer. A fence that Redis
-- has lost is not provable: the next command writes it again.
SELECT verdict, job_id AS job, key AS topic, CAST(NULL AS INT) AS partition, CAST(NULL AS BIGINT) AS offset,
  CAST(NULL AS TIMESTAMP) AS at, live AS found, rebuilt AS expected
FROM ledger WHERE kind = 'fence'
