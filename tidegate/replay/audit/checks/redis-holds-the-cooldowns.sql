-- title: Redis holds the cooldowns that the topics give
-- hop: Redis and topics
-- severity: error
-- invariant: I6
-- needs: Redis
--
-- The cooldowns in force are computed from commands and specs, and compared with those in Redis: the same jobs, the same
-- commands, the same ends. What changed while the audit read is not provable.
SELECT verdict, job_id AS job, key AS topic, CAST(NULL AS INT) AS partition, CAST(NULL AS BIGINT) AS offset,
  CAST(NULL AS TIMESTAMP) AS at, live AS found, rebuilt AS expected
FROM ledger WHERE kind = 'cooldown'
